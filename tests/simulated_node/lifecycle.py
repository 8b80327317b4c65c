"""The fields of a pod that a kubelet reads, and the status that it writes. Pure."""

from __future__ import annotations

from typing import Any

from kubernetes.utils.quantity import parse_quantity

from tests.api_objects import Object
from tests.simulated_node.kubelet import Container, Pod, Rejection

FINISHED = frozenset({"Succeeded", "Failed"})
KILLED = 137  # exit code of a container that SIGKILL ended
LATE = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}


def kubelet_pod(pod: Object) -> Pod:
    """Return the part of a pod that the device manager needs."""
    metadata, spec = pod["metadata"], pod["spec"]
    containers = [_container(each, init=True) for each in spec.get("initContainers", ())]
    containers += [_container(each, init=False) for each in spec["containers"]]
    return Pod(metadata["uid"], metadata["namespace"], metadata["name"], tuple(containers))


def running(pod: Object, now: str) -> Object:
    """The status of a pod whose containers run."""
    statuses = [_container_status(each, {"running": {"startedAt": now}}) for each in pod["spec"]["containers"]]
    return {"phase": "Running", "startTime": now, "conditions": _conditions("True", now), "containerStatuses": statuses}


def finished(pod: Object, exit_code: int, now: str) -> Object:
    """The status of a pod whose containers ended."""
    ended = {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "finishedAt": now,
        "startedAt": now,
    }
    statuses = [_container_status(each, {"terminated": ended}) for each in pod["spec"]["containers"]]
    phase = "Failed" if exit_code else "Succeeded"
    return {"phase": phase, "conditions": _conditions("False", now), "containerStatuses": statuses}


def rejected(rejection: Rejection) -> Object:
    """The status of a pod that its node did not admit."""
    return {"phase": "Failed", "reason": rejection.reason, "message": rejection.message}


def _container(container: Object, *, init: bool) -> Container:
    """An extended resource's limit is its request. Only device plugins' resources matter, so all names are kept."""
    limits = container.get("resources", {}).get("limits", {})
    devices = {name: int(parse_quantity(count)) for name, count in limits.items() if "/" in name}
    return Container(container["name"], devices, init, init and container.get("restartPolicy") == "Always")


def _conditions(ready: str, now: str) -> list[dict[str, Any]]:
    states = {"Initialized": "True", "ContainersReady": ready, "Ready": ready}
    return [{"type": name, "status": status, "lastTransitionTime": now} for name, status in states.items()]


def _container_status(container: Object, state: Object) -> Object:
    is_running = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "restartCount": 0,
        "ready": is_running,
        "started": is_running,
        "state": state,
    }
