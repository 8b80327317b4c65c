"""Pods as the API has them, read and written as a kubelet does."""

from __future__ import annotations

import pytest

from tests.api_objects import Object, container, pod
from tests.simulated_node.kubelet import Container, Pod, Rejection
from tests.simulated_node.lifecycle import finished, kubelet_pod, rejected, running

NOW = "2026-11-21T06:00:00Z"


def _stored(**spec: object) -> Object:
    made = pod("train", gpus=2, **spec)
    made["metadata"] |= {"uid": "u1", "namespace": "default"}
    return made


def test_init_containers_come_first_and_only_extended_resources_count() -> None:
    sidecar = container("sidecar", 1) | {"restartPolicy": "Always"}
    limited = container("prepare") | {"resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": "1E0"}}}

    assert kubelet_pod(_stored(initContainers=[limited, sidecar])) == Pod(
        "u1",
        "default",
        "train",
        (
            Container("prepare", {"nvidia.com/gpu": 1}, init=True),
            Container("sidecar", {"nvidia.com/gpu": 1}, init=True, restartable=True),
            Container("main", {"nvidia.com/gpu": 2}),
        ),
    )


def test_running() -> None:
    status = running(_stored(), NOW)

    (main,) = status.pop("containerStatuses")
    assert (main["name"], main["ready"], main["state"]) == ("main", True, {"running": {"startedAt": NOW}})
    assert status == {
        "phase": "Running",
        "startTime": NOW,
        "conditions": [
            {"type": "Initialized", "status": "True", "lastTransitionTime": NOW},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": NOW},
            {"type": "Ready", "status": "True", "lastTransitionTime": NOW},
        ],
    }


@pytest.mark.parametrize(
    ("exit_code", "phase", "reason"),
    [pytest.param(0, "Succeeded", "Completed", id="success"), pytest.param(1, "Failed", "Error", id="failure")],
)
def test_finished(exit_code: int, phase: str, reason: str) -> None:
    status = finished(_stored(), exit_code, NOW)

    (main,) = status["containerStatuses"]
    terminated = main["state"]["terminated"]
    assert (status["phase"], terminated["exitCode"], terminated["reason"]) == (phase, exit_code, reason)
    assert main["ready"] is False


def test_rejected() -> None:
    assert rejected(Rejection("TopologyAffinityError", "Pod was rejected: ...")) == {
        "phase": "Failed",
        "reason": "TopologyAffinityError",
        "message": "Pod was rejected: ...",
    }
