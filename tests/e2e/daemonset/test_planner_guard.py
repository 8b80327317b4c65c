"""The writes to pods that the real API server allows and denies to a token of the planner."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gputopo.crd.reservations import PlannedMember
from gputopo.labels import keys
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.controllers import JOB_TRACKING
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.request.pod_request import InvalidRequest
from tests.api_client import Client
from tests.api_objects import Object, pod
from tests.daemonset.tools import kustomized
from tests.e2e import cleaning
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, apply, documents, refusal
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
GATE, OTHERS = {"name": keys.GATE}, {"name": "example.com/other"}
PLACED = {keys.POD_RESERVATION.key: "llm-7-1a2b3c"}
PODS: dict[str, Object] = {
    "gated": {"schedulingGates": [GATE, OTHERS]},
    "let-go": {},
    "theirs": {},
    "held": {"schedulingGates": [OTHERS]},
}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """The planner's objects, its policy in force, and pods of each sort. All tests are dry runs."""
    api = control_plane.client()
    found = Cluster(control_plane, api, "planner-guard")
    for name, spec in PODS.items():
        made = pod(name, 1, **spec)
        made["metadata"] |= {
            "annotations": PLACED if name == "let-go" else {},
            "labels": {"app": "a"},
            "finalizers": [JOB_TRACKING, "example.com/stay"],
        }
        found.create_pod(made)  # before the policy that lets only the planner write its annotation
    apply(found, documents("base/namespace.yaml"))
    apply(found, [each for each in kustomized("scheduler/planner-without-gates") if each["kind"] not in UNWANTED])
    planner = found.client(found.token("gputopo-planner", namespace=NAMESPACE))
    wait_for(lambda: refusal(planner, "DELETE", found.pods("theirs"))[0] == 403, "the policy")
    planner.close()
    yield found
    cleaning.clean(api, pristine)
    api.close()


UNWANTED = ("Deployment", "CustomResourceDefinition", "PodDisruptionBudget", "FlowSchema", "PriorityClass")


@pytest.fixture(scope="module")
def planner(cluster: Cluster) -> Iterator[Client]:
    """A client with the planner's token."""
    client = cluster.client(cluster.token("gputopo-planner", namespace=NAMESPACE))
    yield client
    client.close()


def member(cluster: Cluster, name: str) -> Member:
    found = cluster.pod(name)
    metadata, gates = found["metadata"], found["spec"].get("schedulingGates", [])
    return Member(
        uid=metadata["uid"],
        namespace=cluster.namespace,
        name=name,
        version=metadata["resourceVersion"],
        gang_request=GangRequest(GangName(cluster.namespace, "llm-7")),
        request=InvalidRequest(""),
        created=0.0,
        gates=tuple(gate["name"] for gate in gates),
        finalizers=tuple(metadata["finalizers"]),
    )


def test_the_planner_may_do_all_that_it_ever_does(cluster: Cluster, planner: Client) -> None:
    gated, let_go = member(cluster, "gated"), member(cluster, "let-go")
    seat = PlannedMember(gated.uid, gated.name, "gpu-0", (("nvidia.com/gpu", 1),), (), 3)

    for of, body in (
        (gated, pod_patches.ungate_and_pin_patch(gated, seat, "llm-7-1a2b3c")),
        (gated, pod_patches.ungate_patch(gated)),
        (gated, pod_patches.touch_patch(gated, "uid")),
        (let_go, pod_patches.strip_finalizer_patch(let_go, JOB_TRACKING)),
    ):
        assert refusal(planner, "PATCH", cluster.pods(of.name), body) == (200, "")
    assert refusal(planner, "DELETE", cluster.pods("let-go")) == (200, "")


CHANGES = "changes only pods that it gates or ungated"
MINE = "changes only its own annotations of a pod, not labels or owners"
SMALL = "changes only pods with at most 1,000 annotations, 100 finalizers and 100 scheduling gates"
SPEC = "changes only the affinity of a pod and its own gate, and nothing else in its spec"
STRIPS = f"removes only the finalizers {JOB_TRACKING} of a pod, and adds none"


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        pytest.param("theirs", {"metadata": {"annotations": PLACED}}, CHANGES, id="a pod of somebody else"),
        pytest.param("held", {"spec": {"schedulingGates": None}}, CHANGES, id="a pod that others hold"),
        pytest.param("gated", {"spec": {"schedulingGates": [GATE]}}, SPEC, id="a gate of others"),
        pytest.param("gated", {"metadata": {"labels": {"app": "b"}}}, MINE, id="a label"),
        pytest.param("gated", {"metadata": {"annotations": {"note": "x"}}}, MINE, id="an annotation of others"),
        pytest.param("let-go", {"metadata": {"annotations": {"note": "x"}}}, MINE, id="the same, where it was let go"),
        pytest.param("gated", {"spec": {"nodeSelector": {"a": "b"}}}, SPEC, id="a node selector"),
        pytest.param("let-go", {"spec": {"activeDeadlineSeconds": 1}}, SPEC, id="an end"),
        pytest.param("let-go", {"metadata": {"finalizers": [JOB_TRACKING]}}, STRIPS, id="a finalizer of others"),
        pytest.param(
            "gated",
            {"metadata": {"finalizers": [JOB_TRACKING, "example.com/stay", "example.com/more"]}},
            STRIPS,
            id="another finalizer",
        ),
    ],
)
def test_of_a_pod_it_may_not_change(cluster: Cluster, planner: Client, name: str, body: Any, why: str) -> None:
    status, message = refusal(planner, "PATCH", cluster.pods(name), body)

    assert (status, message.partition("denied request: ")[2]) == (403, f"gputopo's planner {why}")


@pytest.mark.parametrize(
    ("metadata", "gates"),
    [
        pytest.param({"annotations": {f"example.com/{at}": "" for at in range(1_001)}}, [], id="annotations"),
        pytest.param({"finalizers": [f"example.com/{at}" for at in range(101)]}, [], id="finalizers"),
        pytest.param({}, [{"name": f"example.com/{at}"} for at in range(100)], id="gates"),
    ],
)
def test_of_a_large_pod_it_changes_nothing(
    cluster: Cluster, planner: Client, metadata: Object, gates: list[Object]
) -> None:
    """The comparison of 40,000 annotations takes the API server 8 s, of 20,000 finalizers 16 s."""
    large = pod("large", 1, schedulingGates=[GATE, *gates])
    large["metadata"] |= metadata
    cluster.create_pod(large)
    try:
        status, message = refusal(planner, "PATCH", cluster.pods("large"), {"metadata": {"annotations": PLACED}})
    finally:
        cluster.api.patch(cluster.pods("large"), {"metadata": {"finalizers": None}})
        cluster.api.delete(cluster.pods("large"))

    assert (status, message.partition("denied request: ")[2]) == (403, f"gputopo's planner {SMALL}")


def test_neither_images_nor_tolerations_may_be_changed(cluster: Cluster, planner: Client) -> None:
    spec = cluster.pod("let-go")["spec"]
    (container,) = spec["containers"]

    for change in (
        {"containers": [container | {"image": "registry.invalid/evil:1"}]},
        {"tolerations": [*spec["tolerations"], {"operator": "Exists"}]},
    ):
        assert SPEC in refusal(planner, "PATCH", cluster.pods("let-go"), {"spec": change})[1]


@pytest.mark.parametrize("name", ["gated", "theirs", "held"])
def test_the_planner_may_not_delete_a_pod_that_it_did_not_ungate(cluster: Cluster, planner: Client, name: str) -> None:
    status, message = refusal(planner, "DELETE", cluster.pods(name))

    assert (status, message.partition("denied request: ")[2]) == (
        403,
        "gputopo's planner deletes only pods that it ungated",
    )


def test_others_are_not_bound_by_it(cluster: Cluster) -> None:
    change = partial(refusal, cluster.api, "PATCH", cluster.pods("theirs"))

    assert change({"metadata": {"labels": {"app": "b"}}}) == (200, "")
    assert refusal(cluster.api, "DELETE", cluster.pods("theirs")) == (200, "")
