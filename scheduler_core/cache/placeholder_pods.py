"""Pods of which only a name and devices are known: PodResources reports and reservations name them so. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.request.device_request import WHOLE, ContainerStep, DeviceRequest
from scheduler_core.request.pod_request import PodProfile

FullName = tuple[str, str]  # namespace, name


def full_name(pod: Occupant) -> FullName:
    """Return the namespace and name of the pod: the kubelet reports pods by these."""
    return pod.namespace, pod.name


def gpu_holders(gpus: NodeGpus | None) -> dict[FullName, Counter[str]]:
    """Return the pods that hold whole GPUs, with the number held by each container."""
    found: dict[FullName, Counter[str]] = {}
    for each in (gpus and gpus.allocations) or ():
        if each.mig_device is None and each.replica is None:
            found.setdefault((each.pod.namespace, each.pod.name), Counter())[each.pod.container] += 1
    return found


def placeholder_pod(name: FullName, devices: Counter[str]) -> Occupant:
    """Return a placeholder for a pod of which only the whole GPUs of its containers are known."""
    steps = tuple(ContainerStep(number) for number in devices.values())
    return Occupant(placeholder_uid(name), *name, PodProfile(DeviceRequest(((WHOLE, steps),))))


def unknown_pod(uid: str, namespace: str, name: str, devices: Iterable[tuple[str, int]]) -> Occupant:
    """Return a placeholder for a pod of which only the number of devices of each resource is known."""
    steps = tuple((resource, (ContainerStep(count),)) for resource, count in devices)
    return Occupant(uid, namespace, name, PodProfile(DeviceRequest(steps)))


def placeholder_uid(name: FullName) -> str:
    """Return the UID of the placeholder for a pod that only a kubelet has named. UIDs of pods contain no slash."""
    return "/".join(name)


def unnamed_placeholders(assumed: Iterable[Occupant], gpus: NodeGpus) -> list[str]:
    """Return the UIDs of placeholders for pods that a report does not name any more: they have ended."""
    names = {name for each in assumed if each.uid == placeholder_uid(name := full_name(each))}
    return [placeholder_uid(name) for name in names - gpu_holders(gpus).keys()] if names else []  # most often none
