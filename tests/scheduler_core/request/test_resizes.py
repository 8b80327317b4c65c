"""Pods whose requests are changed while they run, as kube-scheduler counts them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_core.planner.commit.resource_fit import FitPod, requests_of
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.node_load import pod_load

Json = dict[str, Any]
INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


def pod(
    asked: str, allocated: str | None, in_effect: str | None, conditions: list[Json], sidecar: bool = False
) -> Json:
    status: Json = {"name": "c"}
    if allocated is not None:
        status["allocatedResources"] = {"cpu": "1", "memory": allocated}
    if in_effect is not None:
        status["resources"] = {"requests": {"cpu": "1", "memory": in_effect}}
    container: Json = {"name": "c", "resources": {"requests": {"cpu": "1", "memory": asked}}}
    where, statuses = ("initContainers", "initContainerStatuses") if sidecar else ("containers", "containerStatuses")
    container |= {"restartPolicy": "Always"} if sidecar else {}
    return {"spec": {where: [container]}, "status": {statuses: [status], "conditions": conditions}}


@pytest.mark.parametrize("sidecar", [False, True], ids=["container", "sidecar"])
@pytest.mark.parametrize(
    ("asked", "allocated", "in_effect", "conditions", "expected"),
    [
        pytest.param("1Gi", "1Gi", "1Gi", [], 1, id="not resized"),
        pytest.param("1Gi", None, None, [], 1, id="a kubelet that reports nothing"),
        pytest.param("1Gi", "4Gi", "4Gi", DEFERRED, 4, id="made smaller, and not done yet"),
        pytest.param("1Gi", "1Gi", "4Gi", [], 4, id="made smaller, allocated, and not in effect yet"),
        pytest.param("4Gi", "1Gi", "1Gi", DEFERRED, 4, id="made larger, and not done yet"),
        pytest.param("900Gi", "1Gi", "1Gi", INFEASIBLE, 1, id="made larger than the node: it protects no node"),
        pytest.param("1024Mi", "1Gi", "1Gi", [], 1, id="another spelling"),
    ],
)
def test_what_counts_while_a_pod_is_resized(
    asked: str, allocated: str | None, in_effect: str | None, conditions: list[Json], expected: int, *, sidecar: bool
) -> None:
    found = pod(asked, allocated, in_effect, conditions, sidecar=sidecar)

    assert pod_load(msgspec.convert(found, FullPod)).memory == expected << 30
    assert pod_load(msgspec.convert(found, FullPod)).cpu_milli == 1000
    assert requests_of(msgspec.convert(found, FitPod))["memory"] == expected << 30
