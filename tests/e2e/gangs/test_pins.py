"""One merge patch ungates a member, pins and annotates it, or changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from tests.api_client import ApiError
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.members import GATES
from tests.e2e.scheduler.running import placed

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("gpu_nodes")]
NODE = "gpu-2"
RANK = {keys.POD_GANG_RANK.key: "3"}
KUEUE = {"name": "kueue.x-k8s.io/admission"}
LINUX = {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}
ONE_OR_TWO = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1", NODE]}]}
LIKES = [{"weight": 1, "preference": ONE_OR_TWO}]
PIN: Object = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}


def required(*terms: Object) -> Object:
    """Return a required node affinity."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


def gated(cluster: Cluster, node_affinity: Object | None = None, **spec: Any) -> Object:
    """Create a gated pod."""
    spec = {"schedulingGates": GATES} | spec
    if node_affinity is not None:
        spec["affinity"] = {"nodeAffinity": node_affinity}
    return cluster.create_pod(pod("train", 1, **spec))


def send_patch(
    cluster: Cluster, found: Object, *terms: Object, gates: list[Object] | None = None, uid: str = ""
) -> None:
    """Send the patch."""
    name, seen = found["metadata"]["name"], found["metadata"]
    metadata = {"uid": uid or seen["uid"], "resourceVersion": seen["resourceVersion"], "annotations": RANK}
    spec = {"schedulingGates": gates, "affinity": {"nodeAffinity": required(*terms)}}
    cluster.api.patch(cluster.pods(name), {"metadata": metadata, "spec": spec})


@pytest.mark.parametrize(
    ("before", "terms"),
    [
        pytest.param(None, (PIN,), id="no-affinity"),
        pytest.param({"preferredDuringSchedulingIgnoredDuringExecution": LIKES}, (PIN,), id="preferences-stay"),
        pytest.param(required(LINUX, ONE_OR_TWO), (LINUX | PIN, ONE_OR_TWO | PIN), id="each-term-is-narrowed"),
        pytest.param(required({}, LINUX), ({}, LINUX | PIN), id="an-empty-term-matches-nothing-and-stays"),
        pytest.param(
            required(PIN), ({"matchFields": PIN["matchFields"] * 2},), id="what-was-pinned-there-already-twice"
        ),
    ],
)
def test_one_patch_ungates_pins_and_annotates(
    cluster: Cluster, scheduler: StartScheduler, before: Object | None, terms: tuple[Object, ...]
) -> None:
    scheduler()
    waiting = gated(cluster, before)

    send_patch(cluster, waiting, *terms)

    bound = placed(cluster, "train")
    assert bound["spec"]["nodeName"] == NODE
    assert "schedulingGates" not in bound["spec"]
    assert bound["spec"]["affinity"]["nodeAffinity"] == (before or {}) | required(*terms)
    assert bound["metadata"]["annotations"] == RANK


def test_another_gate_keeps_the_pod_waiting(cluster: Cluster, scheduler: StartScheduler) -> None:
    scheduler()
    waiting = gated(cluster, schedulingGates=[KUEUE, *GATES])

    send_patch(cluster, waiting, PIN, gates=[KUEUE])

    (condition,) = cluster.wait_for_pod("train", lambda each: each["status"].get("conditions"))["status"]["conditions"]
    assert condition["reason"] == "SchedulingGated"
    assert cluster.pod("train")["spec"]["schedulingGates"] == [KUEUE]


@pytest.mark.parametrize(
    ("before", "terms"),
    [
        pytest.param(required(LINUX, ONE_OR_TWO), (LINUX | PIN,), id="a-term-is-dropped"),
        pytest.param(required({}, LINUX), (PIN, LINUX | PIN), id="an-empty-term-is-narrowed"),
    ],
)
def test_widening_the_affinity_is_refused(cluster: Cluster, before: Object, terms: tuple[Object, ...]) -> None:
    with pytest.raises(ApiError) as refused:
        send_patch(cluster, gated(cluster, before), *terms)

    assert refused.value.status == 422


def test_a_changed_pod_is_not_patched(cluster: Cluster) -> None:
    seen = gated(cluster)
    cluster.api.patch(cluster.pods("train"), {"metadata": {"labels": {"touched": "yes"}}})

    with pytest.raises(ApiError) as refused:
        send_patch(cluster, seen, PIN)

    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert cluster.pod("train")["spec"]["schedulingGates"] == GATES


def test_another_pod_of_the_same_name_is_not_patched(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as refused:
        send_patch(cluster, gated(cluster), PIN, uid="00000000-0000-0000-0000-000000000000")

    assert refused.value.status == 422
    assert "metadata.uid" in refused.value.message
    assert cluster.pod("train")["spec"]["schedulingGates"] == GATES


def test_an_ungated_pod_is_not_patched(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as refused:
        send_patch(cluster, gated(cluster, schedulingGates=[]), PIN)

    assert refused.value.status == 422
