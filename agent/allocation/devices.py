"""Maps the device ids of device plugins to GPUs. Pure.

The form of the ids depends on the plugin. NVIDIA's plugin uses UUIDs of GPUs and MIG devices (or indices, with
``deviceIDStrategy: index``), with the suffix ``::n`` for a shared GPU; GKE's plugin uses ``nvidia0``, ``nvidia0/gi1``
and ``nvidia0/vgpu3``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from agent.allocation.wire import HeldDevices
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.labels import resources
from gputopo.model import Gpu

_REPLICA = re.compile(r"(?P<device>.+)::(?P<replica>\d+)")
_INDEX = re.compile(r"(?P<gpu>\d+)(?::(?P<mig>\d+))?")  # "0", and "0:1" for the second MIG device of GPU 0
_MINOR = re.compile(r"nvidia(?P<minor>\d+)(?:/gi\d+)?(?:/vgpu(?P<replica>\d+))?")


class _DeviceGpu(NamedTuple):
    gpu: str | None  # None: not a GPU of this machine
    mig_device: str | None = None
    replica: int | None = None


def allocations_from_devices(held: Iterable[HeldDevices], gpus: tuple[Gpu, ...]) -> tuple[DeviceAllocation, ...]:
    """Return the allocation of each GPU, sorted, so that the same state gives the same value.

    Other resources of the vendor (network cards, passed-through GPUs) count only if the id names a GPU of this machine.
    An unknown id of a GPU resource is kept in place of the UUID, so that the allocation is not lost.
    """
    found: set[DeviceAllocation] = set()
    for each in held:
        if not each.resource.startswith(resources.VENDOR):
            continue
        pod = PodRef(each.namespace, each.pod, each.container)
        for name in each.devices:
            device = _resolve_device(name, gpus)
            if device.gpu is not None:
                found.add(DeviceAllocation(device.gpu, pod, device.replica, device.mig_device))
            elif resources.is_gpu(each.resource):
                found.add(DeviceAllocation(name, pod))
    return tuple(sorted(found, key=_sort_key))


def gpu_of_device(name: str, gpus: tuple[Gpu, ...]) -> str | None:
    """Return the UUID of the GPU that a device of a GPU resource is, or is a part of; None: no GPU of this machine."""
    return _resolve_device(name, gpus).gpu


def replicas_per_gpu(offered: Iterable[tuple[str, str]], gpus: tuple[Gpu, ...]) -> int | None:
    """Return how often the device plugin offers each GPU; None: not shared, not the same for all, or GPUs are missing.

    ``offered``: resource name and id of each healthy device.
    """
    devices = [(name, _resolve_device(device, gpus)) for name, device in offered if resources.is_gpu(name)]
    names = {name for name, _ in devices}
    counts = Counter(each.gpu for _, each in devices if each.replica is not None)
    whole = {gpu.uuid for gpu in gpus if gpu.usable and gpu.mig_enabled is not True}
    if len(names) != 1 or len(devices) != counts.total() or set(counts) != whole or len(set(counts.values())) != 1:
        return None
    number = counts.most_common(1)[0][1]
    return number if number > 1 and all(each.mig_device is None for _, each in devices) else None


def _sort_key(each: DeviceAllocation) -> tuple[str, str, int, str, str, str]:
    pod = each.pod
    return (each.gpu, each.mig_device or "", each.replica or 0, pod.namespace, pod.name, pod.container)


def _resolve_device(name: str, gpus: tuple[Gpu, ...]) -> _DeviceGpu:
    replica = None
    if shared := _REPLICA.fullmatch(name):
        name, replica = shared["device"], int(shared["replica"])
    for gpu in gpus:
        if gpu.uuid == name:
            return _DeviceGpu(gpu.uuid, None, replica)
        if any(mig.uuid == name for mig in gpu.mig_devices):
            return _DeviceGpu(gpu.uuid, name, replica)
    if by_index := _INDEX.fullmatch(name):
        return _resolve_index(by_index, gpus)._replace(replica=replica)
    if by_minor := _MINOR.fullmatch(name):
        minor, part = int(by_minor["minor"]), by_minor["replica"]
        uuid = next((gpu.uuid for gpu in gpus if gpu.minor == minor), None)
        return _DeviceGpu(uuid, None, None if part is None else int(part))
    return _DeviceGpu(None)


def _resolve_index(index: re.Match[str], gpus: tuple[Gpu, ...]) -> _DeviceGpu:
    gpu = next((gpu for gpu in gpus if gpu.index == int(index["gpu"])), None)
    if gpu is None:
        return _DeviceGpu(None)
    if index["mig"] is None:
        return _DeviceGpu(gpu.uuid)
    place = int(index["mig"])
    return _DeviceGpu(gpu.uuid, gpu.mig_devices[place].uuid if place < len(gpu.mig_devices) else None)
