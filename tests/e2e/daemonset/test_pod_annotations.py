"""Write access to the planner's annotations on pods of the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from gputopo.crd.reservations import PlannedMember
from gputopo.labels import keys
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.request.pod_request import InvalidRequest
from tests.api_client import ApiError, Client
from tests.api_objects import Object, pod
from tests.e2e import cleaning
from tests.e2e.agent.access import RBAC
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, install_planner_policies, refusal
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
GATE = {"name": keys.GATE}
PLANNER = "gputopo-planner"
REFUSED = "gputopo's planner"  # in the messages of both policies
SUBRESOURCES = ("status", "binding", "ephemeralcontainers", "resize")
OWN = {key.key: key.example for key in keys.WRITTEN_ON_PODS}


class Clients(NamedTuple):
    """Clients that write pods."""

    planner: Client
    tenant: Client  # may do everything with pods of its namespace
    namesake: Client  # the same, by a service account that is named like the planner's
    admin: Client


def annotated(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    made = pod(name, 1, **spec)
    made["metadata"]["annotations"] = OWN if annotations is None else annotations
    return made


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """The policies in force, a pod that waits behind our gate, and one that a planner ungated before."""
    api = control_plane.client()
    found = Cluster(control_plane, api, "pod-annotations")
    found.create_pod(annotated("gated", {"note": "x"}, schedulingGates=[GATE]))
    found.create_pod(annotated("ungated", OWN | {"note": "x"}))
    install_planner_policies(found)
    yield found
    cleaning.clean(api, pristine)
    api.close()


@pytest.fixture(scope="module")
def clients(cluster: Cluster) -> Iterator[Clients]:
    with ExitStack() as opened:

        def client(account: str, namespace: str) -> Client:
            made = cluster.client(cluster.token(account, namespace=namespace))
            opened.callback(made.close)
            return made

        yield Clients(
            client(PLANNER, NAMESPACE), tenant(cluster, client, "tenant"), tenant(cluster, client, PLANNER), cluster.api
        )


def tenant(cluster: Cluster, client: Any, account: str) -> Client:
    """A service account of the test's namespace that may do everything with its pods."""
    space = cluster.namespace
    cluster.api.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": account}})
    rules = [{"apiGroups": [""], "resources": ["pods", *(f"pods/{each}" for each in SUBRESOURCES)], "verbs": ["*"]}]
    role = {"metadata": {"name": account}, "rules": rules}
    cluster.api.create(f"{RBAC}/namespaces/{space}/roles", role)
    binding = {
        "metadata": {"name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": space}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
    }
    cluster.api.create(f"{RBAC}/namespaces/{space}/rolebindings", binding)
    made: Client = client(account, space)
    wait_for(lambda: refusal(made, "POST", cluster.pods(), pod("probe"))[0] == 200, "the rights of the account")
    return made


def member(cluster: Cluster, name: str) -> Member:
    found = cluster.pod(name)
    metadata = found["metadata"]
    gates = tuple(gate["name"] for gate in found["spec"].get("schedulingGates", []))
    wanted = GangRequest(GangName(cluster.namespace, "llm-7"))
    return Member(
        uid=metadata["uid"],
        namespace=cluster.namespace,
        name=name,
        version=metadata["resourceVersion"],
        gang_request=wanted,
        request=InvalidRequest(""),
        created=0.0,
        gates=gates,
    )


def test_the_planner_writes_them(cluster: Cluster, clients: Clients) -> None:
    gated = member(cluster, "gated")
    seat = PlannedMember(gated.uid, gated.name, "gpu-0", (("nvidia.com/gpu", 1),), (), 3)

    for body in (pod_patches.ungate_and_pin_patch(gated, seat, "llm-7-1a2b3c"), pod_patches.touch_patch(gated, "uid")):
        assert refusal(clients.planner, "PATCH", cluster.pods("gated"), body) == (200, "")


@pytest.mark.parametrize("who", ["tenant", "namesake", "admin"])
@pytest.mark.parametrize("key", sorted(OWN))
def test_other_programs_cannot_write_them(cluster: Cluster, clients: Clients, who: str, key: str) -> None:
    client: Client = getattr(clients, who)
    change = partial(refusal, client, "PATCH")

    tried = [
        refusal(client, "POST", cluster.pods(), annotated("new", {key: "x"})),
        change(cluster.pods("gated"), {"metadata": {"annotations": {key: "x"}}}),
        change(cluster.pods("ungated"), {"metadata": {"annotations": {key: "x"}}}),
        change(cluster.pods("ungated"), {"metadata": {"annotations": {key: None}}}),
        change(cluster.pods("ungated"), {"metadata": {"annotations": None}}),
        change(cluster.pods("gated/status"), {"metadata": {"annotations": {key: "x"}}}),
        refusal(client, "POST", cluster.pods("ungated/binding"), binding("ungated", {key: "x"})),
    ]

    assert [(status, REFUSED in message) for status, message in tried] == [(403, True)] * 7


@pytest.mark.parametrize("name", ["gated", "ungated"])
@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
def test_no_other_subresource_writes_them(cluster: Cluster, clients: Clients, name: str, subresource: str) -> None:
    """The API server may take metadata from such a request, or leave it out; the stored pod must stay the same."""
    path, before = cluster.pods(name), tuple(sorted(cluster.pod(name)["metadata"]["annotations"].items()))
    container = {"name": "debug", "image": "x"}
    change = {"ephemeralContainers": [container]} if subresource == "ephemeralcontainers" else {}
    for key in sorted(OWN):
        for value in ("x", None):
            body = {"metadata": {"annotations": {key: value}}, "spec": change}
            assert stored_annotations(clients.tenant, f"{path}/{subresource}", body) in {None, before}


def stored_annotations(client: Client, path: str, body: Object) -> tuple[tuple[str, str], ...] | None:
    """Return the annotations of the pod after a patch; None: the patch is denied. Nothing is stored."""
    try:
        stored = client.patch(path, body, "strategic", dryRun="All")
    except ApiError as refused:
        if refused.status == 403:
            return None
        raise
    return tuple(sorted(stored["metadata"].get("annotations", {}).items()))


def binding(name: str, annotations: dict[str, str]) -> Object:
    """Return a Binding as kube-scheduler writes it."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-0"}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def test_kubelets_schedulers_and_controllers_are_not_restricted(cluster: Cluster, clients: Clients) -> None:
    """On pods that bear the annotations and on pods that do not."""
    change = partial(refusal, clients.tenant, "PATCH")
    for name in ("gated", "ungated"):
        path = cluster.pods(name)
        assert change(path, {"metadata": {"labels": {"app": "b"}, "annotations": {"note": "y"}}}) == (200, "")
        assert change(path, {"metadata": {"finalizers": ["example.com/stay"]}}) == (200, "")
        assert change(f"{path}/status", {"status": {"phase": "Running"}}) == (200, "")
        assert refusal(clients.tenant, "DELETE", path) == (200, "")
    assert change(cluster.pods("gated"), {"spec": {"schedulingGates": None}}) == (200, "")
    assert refusal(clients.tenant, "POST", cluster.pods("ungated/binding"), binding("ungated", {})) == (200, "")
    assert refusal(clients.tenant, "POST", cluster.pods(), annotated("new", {"note": "x"})) == (200, "")
