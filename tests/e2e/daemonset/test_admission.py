"""The writes that the real API server allows and denies to a token of the agent."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.daemon.events import LOST
from agent.publish import NodeEvent, PublishOutcome
from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD, NODE_FEATURES, NODE_GPUS
from gputopo.labels import encode_topology, keys
from tests import api_objects
from tests.api_client import ApiError, Client
from tests.api_objects import Object
from tests.e2e import cleaning, servers
from tests.e2e.agent.access import RBAC, define, user
from tests.e2e.agent.node_features import NODE_FEATURE as LABELS_ONLY
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import ACCOUNT, POLICIES, agent_token, every_right, install, refusal
from tests.e2e.daemonset.installed import AGENT_NAMESPACE as NAMESPACE
from tests.e2e.servers import ControlPlane
from tests.machines import dgx1

pytestmark = pytest.mark.e2e
# As Node Feature Discovery's own definition, as far as the policy looks at it.
MAP: Object = {
    "type": "object",
    "additionalProperties": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
NODE_FEATURE: Object = copy.deepcopy(LABELS_ONLY)
NODE_FEATURE["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["features"] = {
    "type": "object",
    "properties": {"flags": MAP, "attributes": MAP, "instances": MAP},
}
OWN, OTHER = "/api/v1/nodes/gpu-0", "/api/v1/nodes/gpu-1"
STATE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())
AGENT_USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"


def with_labels(**labels: str | None) -> Object:
    return {"metadata": {"labels": labels}}


def with_annotations(**annotations: str | None) -> Object:
    return {"metadata": {"annotations": annotations}}


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """Two GPU nodes with a label of somebody else, and the agent's manifests but for the DaemonSet.

    For all tests here at once, since a policy takes a second to come and another to go: what they try is a dry run.
    """
    api = control_plane.client()
    cluster = Cluster(control_plane, api, "admission")
    for name in ("gpu-0", "gpu-1"):
        api.create("/api/v1/nodes", api_objects.gpu_node(name, 8, {"team": "a"}))
    define(cluster, NODE_FEATURE)
    install(cluster, "overlays/nfd/rbac.yaml", "overlays/nfd/admission.yaml")
    yield cluster
    cleaning.clean(api, pristine)
    api.close()


@pytest.fixture(scope="module")
def token(installed: Cluster) -> str:
    """The token that the kubelet of gpu-0 mounts into the agent's pod."""
    return agent_token(installed, "gpu-0")


@pytest.fixture(scope="module")
def agent(installed: Cluster, token: str) -> Iterator[Client]:
    """A client with that token."""
    client = installed.client(token)
    yield client
    client.close()


def node_gpus(name: str, **metadata: Any) -> Object:
    state = msgspec.to_builtins(STATE)
    return {
        "apiVersion": NODE_GPUS.api_version,
        "kind": "NodeGpus",
        "metadata": {"name": name, **metadata},
        **{key: state[key] for key in ("observedAt", "contentHash", "agentVersion", "allocations")},
    }


def test_an_agent_publishes_all_that_it_has_to_say_of_its_own_node(
    installed: Cluster, token: str, tmp_path: Path
) -> None:
    kube = from_kubeconfig(AGENT, str(installed.kubeconfig(tmp_path / "agent.kubeconfig", token)))
    publisher = NodePublisher(kube, "gpu-0")
    facts = encode_topology(dgx1())

    assert publisher.publish_facts(facts) == PublishOutcome(written=True)
    assert publisher.write_state(STATE).written
    publisher.write_event(NodeEvent(LOST, "gpu3 is lost", warning=True))
    assert publisher.publish_facts(facts) == PublishOutcome(written=False)
    assert not publisher.write_state(STATE).written

    metadata = installed.api.get(OWN)["metadata"]
    assert metadata["labels"].items() >= (facts.labels | facts.mirrors | {"team": "a"}).items()
    assert metadata["annotations"].items() >= facts.annotations.items()
    assert installed.api.get(NODE_GPUS.path("gpu-0"))["metadata"]["ownerReferences"][0]["name"] == "gpu-0"
    mine = [each for each in installed.writes() if each.agent.startswith("gputopo-agent/")]
    assert [(each.user, each.verb, each.resource, each.status) for each in mine] == [
        (AGENT_USER, "patch", "nodes", 200),  # our keys
        (AGENT_USER, "patch", "nodes", 200),  # the mirrors
        (AGENT_USER, "patch", "nodegpus", 201),
        (AGENT_USER, "create", "events", 201),
        (AGENT_USER, "patch", "nodegpus", 200),  # changes nothing, so it is not stored
    ]
    kube.close()


@pytest.mark.parametrize("key", [key.key for key in (*keys.NODE_LABELS, *keys.MIRRORS) if key != keys.PRODUCT])
def test_every_label_of_the_contract_can_be_set(agent: Client, key: str) -> None:
    assert refusal(agent, "PATCH", OWN, with_labels(**{key: "x"})) == (200, "")


def in_order(message: str) -> str:
    """With the keys at its end sorted: a map has no order."""
    text, found, named = message.partition("not ")
    return text + found + ", ".join(sorted(named.split(", ")))


FOREIGN = "gputopo's agent may change only its own labels and annotations of a Node, not "
NOTHING_ELSE = "gputopo's agent may change only labels and annotations of a Node"
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "1"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(with_labels(team="b"), FOREIGN + "team", id="a label of somebody else"),
        pytest.param(with_labels(team=None), FOREIGN + "team", id="the removal of one"),
        pytest.param(with_labels(**{"nvidia.com/gpu.present": "true"}), FOREIGN + "nvidia.com/gpu.present", id="GFD's"),
        pytest.param(
            with_labels(**{"node-role.kubernetes.io/control-plane": ""}),
            FOREIGN + "node-role.kubernetes.io/control-plane",
            id="a role",
        ),
        pytest.param(
            with_labels(**{"not-gputopo.io/gpus": "8", "gputopo.io.example.com/gpus": "8", "gputopo.io/gpus": "8"}),
            FOREIGN + "gputopo.io.example.com/gpus, not-gputopo.io/gpus",
            id="keys that look like ours beside one that is",
        ),
        pytest.param(with_annotations(note="x"), FOREIGN + "note", id="an annotation of somebody else"),
        pytest.param(
            with_annotations(**{keys.NVIDIA_COUNT.key: "8"}),
            FOREIGN + keys.NVIDIA_COUNT.key,
            id="a mirror as annotation",
        ),
        pytest.param({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, NOTHING_ELSE, id="a taint"),
        pytest.param({"spec": {"unschedulable": True}}, NOTHING_ELSE, id="a cordon"),
        pytest.param({"metadata": {"finalizers": ["example.com/stay"]}}, NOTHING_ELSE, id="a finalizer"),
        pytest.param({"metadata": {"ownerReferences": [OWNER]}}, NOTHING_ELSE, id="an owner"),
    ],
)
def test_of_its_own_node_it_may_not_change(agent: Client, body: Object, why: str) -> None:
    status, message = refusal(agent, "PATCH", OWN, body)

    assert (status, in_order(message.partition("denied request: ")[2])) == (403, why)


@pytest.mark.parametrize("kind", ["merge", "strategic", "apply", "json"])
def test_another_node_is_denied_by_every_kind_of_patch(agent: Client, kind: str) -> None:
    body: Any = with_labels(**{keys.GPUS.key: "8"})
    if kind == "apply":
        body |= {"apiVersion": "v1", "kind": "Node"}
    if kind == "json":
        body = [{"op": "add", "path": "/metadata/labels/gputopo.io~1gpus", "value": "8"}]

    assert refusal(agent, "PATCH", OWN, body, kind) == (200, "")
    status, message = refusal(agent, "PATCH", OTHER, body, kind)
    assert status == 403
    assert message.endswith("gputopo's agent may change only the Node that its token names; this token names gpu-0")


def test_a_token_without_the_claim_changes_nothing(installed: Cluster) -> None:
    unbound = installed.client(installed.token(ACCOUNT, namespace=NAMESPACE))

    for path, body in ((OWN, with_labels(**{keys.GPUS.key: "8"})), (NODE_GPUS.path("gpu-0"), node_gpus("gpu-0"))):
        status, message = refusal(unbound, "PATCH", path, body, "merge" if path == OWN else "apply")
        assert (status, message.rpartition("; ")[2]) == (403, "this token names none")
    unbound.close()


def test_a_claim_cannot_be_forged(installed: Cluster, agent: Client, token: str) -> None:
    header, payload, signature = token.split(".")
    claims = base64.urlsafe_b64decode(payload + "==")
    assert b'"gpu-0"' in claims
    moved = base64.urlsafe_b64encode(claims.replace(b'"gpu-0"', b'"gpu-1"')).decode().rstrip("=")
    forger = installed.client(f"{header}.{moved}.{signature}")
    body = with_labels(**{keys.GPUS.key: "8"})

    assert refusal(forger, "PATCH", OTHER, body)[0] == 401
    # Nor may the agent say that it is somebody else, or have a token made for another pod.
    extra = {
        "Impersonate-User": AGENT_USER,
        "Impersonate-Extra-Authentication.kubernetes.io%2Fnode-Name": "gpu-1",
    }
    with pytest.raises(ApiError, match="cannot impersonate"):
        agent.request("PATCH", OTHER, body, headers={**extra, "Content-Type": "application/merge-patch+json"})
    tokens = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    assert refusal(agent, "POST", tokens, request)[0] == 403
    forger.close()


def test_writes_that_rbac_refuses_are_refused_by_admission_as_well(installed: Cluster, agent: Client) -> None:
    installed.api.patch(NODE_GPUS.path("gpu-1"), node_gpus("gpu-1"), "apply", fieldManager="test")
    status_patch = {"status": {"capacity": {"nvidia.com/gpu": "9"}}}
    attempts: list[tuple[str, str, Object | None]] = [
        ("POST", "/api/v1/nodes", api_objects.gpu_node("gpu-9", 8)),
        ("DELETE", OWN, None),
        ("PATCH", f"{OWN}/status", status_patch),
        ("DELETE", NODE_GPUS.path("gpu-1"), None),
    ]

    def refused_by() -> list[str]:
        refusals = [refusal(agent, *attempt) for attempt in attempts]
        assert {status for status, _ in refusals} <= {200, 403}
        by_policy = "denied request: gputopo's agent "
        return ["policy" if by_policy in message else message and "rbac" for _, message in refusals]

    assert refused_by() == ["rbac"] * 4
    with every_right(installed):
        wait_for(lambda: "rbac" not in refused_by(), "the authorizer to learn of the binding")
        assert refused_by() == ["policy"] * 4


@pytest.mark.parametrize(
    ("name", "metadata", "why"),
    [
        pytest.param("gpu-1", {}, "the node that its token names; this token names gpu-0", id="of another node"),
        pytest.param(
            "gpu-0", {"finalizers": ["example.com/stay"]}, "may not change its finalizers", id="with a finalizer"
        ),
        pytest.param("gpu-0", {"ownerReferences": [OWNER]}, "may not change its finalizers", id="of another owner"),
    ],
)
def test_a_node_gpus_is_denied(agent: Client, name: str, metadata: Object, why: str) -> None:
    status, message = refusal(agent, "PATCH", NODE_GPUS.path(name), node_gpus(name, **metadata), "apply")

    assert (status, message[-len(why) :]) == (403, why)


def test_a_node_gpus_edited_by_others_does_not_stop_its_agent(installed: Cluster, agent: Client) -> None:
    path = NODE_GPUS.path("gpu-0")
    held = node_gpus("gpu-0", finalizers=["example.com/stay"], ownerReferences=[OWNER])
    installed.api.patch(path, held, "apply", fieldManager="somebody", force="true")

    assert refusal(agent, "PATCH", path, {"agentVersion": "0.2.0"}) == (200, "")
    installed.api.patch(path, {"metadata": {"finalizers": None, "ownerReferences": None}})


def test_an_agent_publishes_its_own_node_feature(installed: Cluster, token: str, tmp_path: Path) -> None:
    kube = from_kubeconfig(AGENT_WITH_NFD, str(installed.kubeconfig(tmp_path / "nfd.kubeconfig", token)))

    assert NodeFeaturePublisher(kube, "gpu-0", NAMESPACE).publish_facts(encode_topology(dgx1())) == PublishOutcome(
        written=True
    )
    assert NodeFeaturePublisher(kube, "gpu-0", NAMESPACE).publish_facts(encode_topology(dgx1())) == PublishOutcome(
        written=False
    )
    kube.close()


def node_feature(node: str | None, **spec: Any) -> Object:
    return {
        "apiVersion": NODE_FEATURES.api_version,
        "kind": "NodeFeature",
        "metadata": {"name": MINE, "labels": {} if node is None else {keys.NFD_NODE_NAME: node}},
        "spec": spec,
    }


MINE = "gputopo-features-for-gpu-0"
NAMED = "the node that its token names; this token names gpu-0"
NO_FEATURES = "sets only labels in a NodeFeature, not features that rules could turn into other labels"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(node_feature("gpu-0", labels={keys.GPUS.key: "8"}), "", id="its own, with its own keys"),
        pytest.param(node_feature("gpu-0", labels={}, features={"flags": {}}), "", id="its own, without features"),
        pytest.param(node_feature("gpu-1", labels={keys.GPUS.key: "8"}), NAMED, id="another node's"),
        pytest.param(node_feature(None, labels={}), NAMED, id="nobody's"),
        pytest.param(node_feature("gpu-0", labels={"team": "b"}), "may ask for its own labels, not team", id="a label"),
        pytest.param(
            node_feature("gpu-0", labels={keys.NVIDIA_COUNT.key: "8"}), f"not {keys.NVIDIA_COUNT.key}", id="a mirror"
        ),
        pytest.param(node_feature("gpu-0", features={"flags": {"a.b": {"elements": {}}}}), NO_FEATURES, id="a feature"),
        pytest.param(node_feature("gpu-0", features={"instances": {"a.b": {}}}), NO_FEATURES, id="an instance"),
    ],
)
def test_of_a_node_feature(agent: Client, installed: Cluster, body: Object, why: str) -> None:
    """The object is always new: an apply to an existing object would keep a label that is left out."""
    if any(each["metadata"]["name"] == MINE for each in installed.api.items(NODE_FEATURES.path(None, NAMESPACE))):
        installed.api.delete(NODE_FEATURES.path(MINE, NAMESPACE))
    status, message = refusal(agent, "PATCH", NODE_FEATURES.path(MINE, NAMESPACE), body, "apply")

    assert (status, message[-len(why) :] if why else message) == (403 if why else 200, why)


def test_the_node_feature_of_another_node_cannot_be_taken_over(agent: Client, installed: Cluster) -> None:
    """Not even by naming the own node in it: NFD would then forget the labels of the other."""
    theirs = "gputopo-features-for-gpu-1"
    body = node_feature("gpu-1", labels={keys.GPUS.key: "8"})
    body["metadata"]["name"] = theirs
    installed.api.create(NODE_FEATURES.path(None, NAMESPACE), body)
    grab = {"metadata": {"labels": {keys.NFD_NODE_NAME: "gpu-0"}}, "spec": {"labels": {keys.GPUS.key: "0"}}}

    status, message = refusal(agent, "PATCH", NODE_FEATURES.path(theirs, NAMESPACE), grab)

    assert (status, "writes only the NodeFeature with the name of its own node" in message) == (403, True)


def test_other_users_are_not_restricted_by_the_policies(installed: Cluster) -> None:
    account = {"metadata": {"name": "labeller"}}
    installed.api.create(f"/api/v1/namespaces/{installed.namespace}/serviceaccounts", account)
    subject = {"kind": "ServiceAccount", "name": "labeller", "namespace": installed.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gputopo-agent"}
    installed.api.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": "labeller"}, "subjects": [subject], "roleRef": reference}
    )
    client = installed.client(installed.token("labeller"))

    wait_for(lambda: refusal(client, "PATCH", OTHER, with_labels(team="b")) == (200, ""), user(installed, "labeller"))
    client.close()


def test_the_api_server_finds_no_fault_with_the_types_of_the_expressions(installed: Cluster) -> None:
    with servers.controller_manager(installed.plane, ("validatingadmissionpolicy-status-controller",)):
        wait_for(
            lambda: all("typeChecking" in each.get("status", {}) for each in installed.api.items(POLICIES)),
            "the types to be checked",
        )

    found = {each["metadata"]["name"]: each["status"]["typeChecking"] for each in installed.api.items(POLICIES)}
    kinds = ("nodes", "nodegpus", "leases", "events", "nodefeatures")
    assert found == {f"gputopo-agent-{kind}": {} for kind in kinds}
