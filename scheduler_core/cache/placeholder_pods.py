"""Whom a kubelet's word names: pods by namespace and name, for the kubelet does not tell UIDs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.request.device_request import WHOLE, ContainerStep, DeviceRequest
from scheduler_core.request.pod_request import PodProfile

FullName = tuple[str, str]  # namespace, name


def full_name(pod: Occupant) -> FullName:
    """By which the kubelet names the pod."""
    return pod.namespace, pod.name


def gpu_holders(gpus: NodeGpus | None) -> dict[FullName, Counter[str]]:
    """The pods that hold whole GPUs, and how many each container does."""
    found: dict[FullName, Counter[str]] = {}
    for each in (gpus and gpus.allocations) or ():
        if each.mig_device is None and each.replica is None:
            found.setdefault((each.pod.namespace, each.pod.name), Counter())[each.pod.container] += 1
    return found


def placeholder_pod(name: FullName, devices: Counter[str]) -> Occupant:
    """A pod of which nothing is known but the whole GPUs of its containers."""
    steps = tuple(ContainerStep(number) for number in devices.values())
    return Occupant(placeholder_uid(name), *name, PodProfile(DeviceRequest(((WHOLE, steps),))))


def unknown_pod(uid: str, namespace: str, name: str, devices: Iterable[tuple[str, int]]) -> Occupant:
    """A pod of which nothing is known but how many devices of which resource it has."""
    return Occupant(
        uid,
        namespace,
        name,
        PodProfile(DeviceRequest(tuple((resource, (ContainerStep(count),)) for resource, count in devices))),
    )


def placeholder_uid(name: FullName) -> str:
    """Stands for the UID of a pod that only a kubelet has named. No UID has a slash."""
    return "/".join(name)
