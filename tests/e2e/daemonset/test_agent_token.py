"""Attacks with the token that an agent's pod mounts, on the real API server with the manifests installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.daemon.events import LOST
from gputopo.crd.nodegpus import MAX_ALLOCATIONS, MAX_NICS
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE, MAX_TIME_LENGTH
from gputopo.kube.rbac import EVENTS, LEASES, NODE_GPUS
from gputopo.labels import keys
from gputopo.labels.annotation import max_bytes
from gputopo.model import MAX_GPUS
from tests import api_objects
from tests.api_client import ApiError, Client
from tests.api_objects import Object
from tests.e2e import cleaning
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import ACCOUNT, AGENT_NAMESPACE, agent_token, every_right, install, refusal
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
OWN, OTHER = "/api/v1/nodes/gpu-0", "/api/v1/nodes/gpu-1"
EVENT_PATH = EVENTS.path(namespace="default")
AGENT = keys.FIELD_MANAGER


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """Two GPU nodes with labels of an administrator, and the agent's manifests but for the DaemonSet."""
    api = control_plane.client()
    cluster = Cluster(control_plane, api, "attack")
    for name in ("gpu-0", "gpu-1"):
        api.create("/api/v1/nodes", api_objects.gpu_node(name, 8, {keys.COST_PER_HOUR.key: "32.77"}))
    install(cluster)
    for name in ("gpu-0", "gpu-1"):
        api.patch(NODE_GPUS.path(name), node_gpus(metadata={"name": name}), "apply", fieldManager=AGENT)
    yield cluster
    cleaning.clean(api, pristine)
    api.close()


@pytest.fixture(scope="module")
def agent(installed: Cluster) -> Iterator[Client]:
    """A client with the token that the kubelet of gpu-0 mounts."""
    client = installed.client(agent_token(installed, "gpu-0"))
    yield client
    client.close()


FORCE: dict[str, dict[str, str]] = {"apply": {"force": "true"}, "merge": {}}


def labels(**values: str | None) -> Object:
    return {"metadata": {"labels": values}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key.key, "0.01") for key in keys.NODE_KEYS_READ),
        (keys.COST_PER_HOUR.key, None),  # which the nodes here have
        ("gputopo.io/anything", "x"),
    ],
)
def test_keys_of_administrators_on_its_own_node_are_denied(agent: Client, key: str, value: str | None) -> None:
    status, message = refusal(agent, "PATCH", OWN, labels(**{key: value}))

    assert (status, message.rpartition(": ")[2]) == (
        403,
        f"gputopo's agent may change only its own labels and annotations of a Node, not {key}",
    )


def test_an_annotation_with_the_prefix_that_is_not_the_topology_is_denied(agent: Client) -> None:
    status, message = refusal(agent, "PATCH", OWN, {"metadata": {"annotations": {"gputopo.io/note": "x"}}})

    assert (status, message.endswith("not gputopo.io/note")) == (403, True)


def test_a_node_with_thousands_of_annotations_is_not_compared(agent: Client) -> None:
    """Once, a second of the API server's CPU time for each write."""
    many = dict.fromkeys((f"k{number}" for number in range(5_000)), "")
    status, message = refusal(agent, "PATCH", OWN, {"metadata": {"annotations": many}})

    assert (status, message.rpartition(": ")[2]) == (
        403,
        "gputopo's agent changes only a Node with at most 1,000 labels and 1,000 annotations",
    )


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 403)])
def test_labels_of_products_are_limited(agent: Client, more: int, status: int) -> None:
    names = (f"{keys.PRODUCT_PREFIX}product-{number}" for number in range(MAX_GPUS + more))

    assert refusal(agent, "PATCH", OWN, labels(**dict.fromkeys(names, "1")))[0] == status


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 403)])
def test_the_annotation_is_limited(agent: Client, more: int, status: int) -> None:
    text = "x" * (max_bytes(MAX_GPUS) + more)

    assert refusal(agent, "PATCH", OWN, {"metadata": {"annotations": {keys.TOPOLOGY.key: text}}})[0] == status


def node_gpus(allocations: list[Any] | None = None, **more: Any) -> Object:
    fields: Object = {"observedAt": "2026-11-21T12:00:00Z", "contentHash": "1a2b", "agentVersion": "0.1.0"}
    metadata = {"name": "gpu-0", **more.pop("metadata", {})}
    body = {"apiVersion": NODE_GPUS.api_version, "kind": "NodeGpus", "metadata": metadata, **(fields | more)}
    return body if allocations is None else body | {"allocations": allocations}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (OWN, {"apiVersion": "v1", "kind": "Node", **labels(**{keys.GPUS.key: "8"})}),
        (NODE_GPUS.path("gpu-0"), node_gpus(agentVersion="2")),
    ],
)
@pytest.mark.parametrize("kind", ["apply", "merge"])
def test_field_managers_without_number_are_denied(agent: Client, path: str, body: Object, kind: str) -> None:
    """Each would stay in the object's managed fields."""
    with pytest.raises(ApiError, match="gputopo's agent writes as its own field managers only"):
        agent.patch(path, body, kind, dryRun="All", fieldManager="stranger-7", **FORCE[kind])


@pytest.mark.parametrize("path", [OWN, NODE_GPUS.path("gpu-0")])
def test_managed_fields_cannot_be_filled(agent: Client, path: str) -> None:
    fields: Object = {"f:metadata": {"f:labels": {f"f:example.com/{number}": {} for number in range(100)}}}
    version = "v1" if path == OWN else NODE_GPUS.api_version
    entry = {"operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields}
    many = [{"manager": f"stranger-{number}", **entry} for number in range(100)]

    status, message = refusal(agent, "PATCH", path, {"metadata": {"managedFields": many}})

    assert (status, message.endswith("writes as its own field managers only")) == (403, True)


def test_node_gpus_of_any_node_cannot_be_read(agent: Client) -> None:
    """NodeGpus names the pods of all tenants."""
    for name in ("gpu-0", "gpu-1", None):
        assert refusal(agent, "GET", NODE_GPUS.path(name))[0] == 403


def test_of_what_others_may_read_a_node_is_all(agent: Client) -> None:
    """RBAC cannot restrict the names of Nodes to that of the token; docs/install.md says so."""
    assert refusal(agent, "GET", OTHER)[0] == 200
    for path in ("/api/v1/nodes", "/api/v1/pods", "/api/v1/events", "/api/v1/namespaces", "/api/v1/secrets"):
        assert refusal(agent, "GET", path)[0] == 403


POD = {"namespace": "n" * 63, "name": "p" * 253, "container": "c" * 63, "uid": "u" * 96}
DEVICE = {"gpu": "g" * 96, "pod": POD, "replica": 2**31 - 1, "migDevice": "m" * 96}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(node_gpus([DEVICE] * (MAX_ALLOCATIONS + 1)), "must have at most 1024 items", id="allocations"),
        pytest.param(
            node_gpus(nics=[{"nic": "n", "pod": POD}] * (MAX_NICS + 1)), "must have at most 256 items", id="NICs"
        ),
        pytest.param(node_gpus([DEVICE | {"gpu": "g" * 97}]), "may not be more than 96", id="a GPU"),
        pytest.param(node_gpus([DEVICE | {"migDevice": "m" * 97}]), "may not be more than 96", id="a MIG device"),
        pytest.param(node_gpus([DEVICE | {"replica": -1}]), "greater than or equal to 0", id="a replica"),
        pytest.param(node_gpus([DEVICE | {"pod": POD | {"name": "p" * 254}}]), "more than 253", id="a pod"),
        pytest.param(node_gpus([DEVICE | {"pod": POD | {"namespace": "n" * 64}}]), "more than 63", id="a namespace"),
        pytest.param(node_gpus(agentVersion="v" * 97), "may not be more than 96", id="the version"),
        pytest.param(node_gpus(contentHash="h" * 97), "may not be more than 96", id="the hash"),
        pytest.param(
            node_gpus(metadata={"annotations": {"a": "x" * 200_000}}), "sets no labels and annotations", id="metadata"
        ),
    ],
)
def test_a_node_gpus_is_bounded(agent: Client, body: Object, why: str) -> None:
    status, message = refusal(agent, "PATCH", NODE_GPUS.path("gpu-0"), body, "apply")

    assert status in {403, 422}
    assert why in message


def test_the_largest_node_gpus_is_below_a_megabyte(agent: Client) -> None:
    nic = {"nic": "n" * 96, "pod": POD, "virtualFunction": "v" * 96}
    largest = node_gpus([DEVICE] * MAX_ALLOCATIONS, nics=[nic] * MAX_NICS, contentHash="h" * 96, agentVersion="v" * 96)

    assert refusal(agent, "PATCH", NODE_GPUS.path("gpu-0"), largest, "apply") == (200, "")
    assert len(msgspec.json.encode(largest)) < 1 << 20


def event(**changes: Any) -> Object:
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "gpu-0.17", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"},
        "reason": LOST,
        "message": "gpu3 is lost",
        "type": "Warning",
        "source": {"component": AGENT, "host": "gpu-0"},
        "reportingComponent": AGENT,
        "reportingInstance": "gpu-0",
    }
    return body | changes


ABOUT = "may report Events only about the Node that its token names; this token names gpu-0"
AS_ITSELF = "reports Events in its own name, from its own node"
PLAIN = "reports Events in the namespace default, with at most 1024 characters"
BOUNDED = "reports Events of the types Normal and Warning, and of the Node no more than its name and UID"
LONG = "x" * 900_000
NODE = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"}
FIELDS: Object = {
    "f:message": {},
    "f:metadata": {"f:labels": {f"f:{number}-{'x' * 50}": {} for number in range(10_000)}},
}
# As the API server names the manager of these requests: the fields of the same entry are kept.
MANAGED = {
    "manager": "gputopo-e2e", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": FIELDS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({}, "", id="its own Event"),
        pytest.param({"involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}}, ABOUT, id="a Node"),
        pytest.param({"involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "gpu-0"}}, ABOUT, id="a Pod"),
        pytest.param({"involvedObject": {"kind": "Node", "name": "gpu-0", "apiVersion": "v2"}}, ABOUT, id="a kind"),
        pytest.param({"involvedObject": {}}, ABOUT, id="nothing"),
        pytest.param({"reportingComponent": "kubelet"}, AS_ITSELF, id="as the kubelet"),
        pytest.param({"source": {"component": "kubelet", "host": "gpu-0"}}, AS_ITSELF, id="from the kubelet"),
        pytest.param({"source": {"component": AGENT, "host": "gpu-1"}}, AS_ITSELF, id="from another node"),
        pytest.param({"reportingInstance": "gpu-1"}, AS_ITSELF, id="as another agent"),
        pytest.param({"reason": "NodeNotReady"}, AS_ITSELF, id="a reason of the node controller"),
        pytest.param({"message": "x" * 1025}, PLAIN, id="a long message"),
        pytest.param({"related": {"kind": "Pod", "name": "a"}}, PLAIN, id="a related object"),
        pytest.param(
            {"metadata": {"name": "gpu-0.17", "annotations": {"a": "x" * 200_000}}}, PLAIN, id="a large annotation"
        ),
        pytest.param({"type": LONG}, BOUNDED, id="a long type"),
        *(
            pytest.param({"involvedObject": {**NODE, field: LONG}}, BOUNDED, id=f"a long {field} of the Node")
            for field in ("uid", "resourceVersion", "fieldPath")
        ),
        pytest.param({"metadata": {"name": "gpu-0.17", "managedFields": [MANAGED]}}, BOUNDED, id="many managed fields"),
    ],
)
def test_an_event(agent: Client, changes: Object, why: str) -> None:
    status, message = refusal(agent, "POST", EVENT_PATH, event(**changes))

    assert (status, why in message) == (403 if why else 200, True)


def test_an_event_with_a_token_without_the_claim_is_denied(installed: Cluster) -> None:
    unbound = installed.client(installed.token(ACCOUNT, namespace=AGENT_NAMESPACE))

    assert refusal(unbound, "POST", EVENT_PATH, event())[0] == 403
    unbound.close()


def test_events_that_rbac_refuses_are_refused_by_admission_as_well(installed: Cluster, agent: Client) -> None:
    """Also by the other API of Events, which has the same objects."""
    installed.api.create(EVENT_PATH, event(metadata={"name": "kept"}))
    newer = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "gpu-1.17", "namespace": "default"},
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"},
        "eventTime": "2026-11-21T12:00:00.000000Z",
        "reason": LOST,
        "note": "gpu3 is lost",
        "action": "none",
        "type": "Warning",
        "reportingController": AGENT,
        "reportingInstance": "gpu-0",
    }
    elsewhere = event(metadata={"name": "gpu-0.17", "namespace": installed.namespace})
    attempts: list[tuple[str, str, Object | None]] = [
        ("PATCH", f"{EVENT_PATH}/kept", {"message": "forged"}),
        ("DELETE", f"{EVENT_PATH}/kept", None),
        ("POST", EVENTS.path(namespace=installed.namespace), elsewhere),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", newer),
    ]

    def refusals() -> list[tuple[int, bool]]:
        found = (refusal(agent, *attempt) for attempt in attempts)
        return [(status, "gputopo-agent-events" in message) for status, message in found]

    assert refusals() == [(403, False)] * 4
    with every_right(installed):
        wait_for(lambda: (403, False) not in refusals(), "the authorizer to learn of the binding")
        # The API server itself accepts no Event about a Node in another namespace.
        assert refusals() == [(403, True), (403, True), (422, False), (403, True)]


def lease(name: str = "gpu-0", **fields: Any) -> Object:
    metadata = {"name": name, **fields.pop("metadata", {})}
    spec = {"holderIdentity": "2026-11-21T12:00:00Z", "renewTime": "2026-11-21T12:05:00.000000Z", **fields}
    return {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}


def test_an_agent_creates_and_renews_the_lease_of_its_node(installed: Cluster, agent: Client) -> None:
    uid = installed.api.get(OWN)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0", "uid": uid}
    made = agent.create(LEASES.path(namespace=HEARTBEAT_NAMESPACE), lease(metadata={"ownerReferences": [owner]}))
    renewal = {"metadata": {"managedFields": [{}]}, "spec": {"renewTime": "2026-11-21T12:10:00.000000Z"}}
    path = LEASES.path("gpu-0", HEARTBEAT_NAMESPACE)

    assert agent.patch(path, renewal, "merge")["metadata"]["uid"] == made["metadata"]["uid"]
    assert refusal(agent, "DELETE", path)[0] == 403
    installed.api.delete(path)


@pytest.mark.parametrize(
    ("namespace", "body", "message"),
    [
        pytest.param(HEARTBEAT_NAMESPACE, lease("gpu-1"), "this token names gpu-0", id="of another node"),
        pytest.param("kube-node-lease", lease(), "this token names gpu-0", id="of the kubelet of its node"),
        pytest.param("kube-system", lease("kube-scheduler"), "this token names gpu-0", id="of a scheduler"),
        pytest.param(
            HEARTBEAT_NAMESPACE, lease(metadata={"labels": {"a": "b"}}), "sets no labels and annotations of a Lease",
            id="labels",
        ),
        pytest.param(
            HEARTBEAT_NAMESPACE, lease(metadata={"finalizers": ["a.example/b"]}), "may not change its finalizers",
            id="finalizers",
        ),
        pytest.param(
            HEARTBEAT_NAMESPACE,
            lease(holderIdentity="x" * (MAX_TIME_LENGTH + 1)),
            "and no further texts",
            id="long text",
        ),
    ],
)  # fmt: skip
def test_other_leases_are_denied(installed: Cluster, agent: Client, namespace: str, body: Object, message: str) -> None:
    """Also where RBAC would permit them."""
    with every_right(installed):
        wait_for(lambda: message in refusal(agent, "POST", LEASES.path(namespace=namespace), body)[1], message)


def test_the_heartbeat_of_another_node_cannot_be_renewed_or_deleted(installed: Cluster, agent: Client) -> None:
    path = LEASES.path("gpu-1", HEARTBEAT_NAMESPACE)
    installed.api.create(LEASES.path(namespace=HEARTBEAT_NAMESPACE), lease("gpu-1"))

    renewal = {"spec": {"renewTime": "2026-11-21T13:00:00.000000Z"}}
    with every_right(installed):
        wait_for(lambda: "this token names gpu-0" in refusal(agent, "PATCH", path, renewal)[1], "the renewal")
        wait_for(lambda: "deletes no Lease" in refusal(agent, "DELETE", path)[1], "the deletion")

    installed.api.delete(path)


def test_without_the_role_of_the_namespace_no_other_lease_can_be_written(agent: Client) -> None:
    for namespace in ("kube-node-lease", AGENT_NAMESPACE, "default"):
        status, message = refusal(agent, "POST", LEASES.path(namespace=namespace), lease())
        assert (status, "cannot create resource" in message) == (403, True)
