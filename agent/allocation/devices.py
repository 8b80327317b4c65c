"""Device ids of a device plugin -> GPUs. Pure.

What the ids look like is the plugin's business: NVIDIA's writes UUIDs of GPUs and MIG devices (or, with
``deviceIDStrategy: index``, indices), with ``::n`` behind where it shares one GPU among several; the one of GKE writes
``nvidia0``, ``nvidia0/gi1`` and ``nvidia0/vgpu3``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from agent.allocation.wire import Held
from gputopo.crd.nodegpus import Allocation, PodRef
from gputopo.labels import resources
from gputopo.model import Gpu

_REPLICA = re.compile(r"(?P<device>.+)::(?P<replica>\d+)")
_INDEX = re.compile(r"(?P<gpu>\d+)(?::(?P<mig>\d+))?")  # "0", and "0:1" for the second MIG device of GPU 0
_MINOR = re.compile(r"nvidia(?P<minor>\d+)(?:/gi\d+)?(?:/vgpu(?P<replica>\d+))?")


class _Device(NamedTuple):
    gpu: str | None  # None: no GPU that is known here
    mig_device: str | None = None
    replica: int | None = None


def allocations(held: Iterable[Held], gpus: tuple[Gpu, ...]) -> tuple[Allocation, ...]:
    """Who holds which of the GPUs, sorted, so that the same state gives the same value.

    Of the vendor's other resources (network cards, passed-through GPUs) those count whose id names a GPU that is known
    here. A GPU resource whose id names none keeps that id in the place of the UUID: that somebody holds something must
    not be forgotten.
    """
    found: set[Allocation] = set()
    for each in held:
        if not each.resource.startswith(resources.VENDOR):
            continue
        pod = PodRef(each.namespace, each.pod, each.container)
        for name in each.devices:
            device = _device(name, gpus)
            if device.gpu is not None:
                found.add(Allocation(device.gpu, pod, device.replica, device.mig_device))
            elif resources.is_gpu(each.resource):
                found.add(Allocation(name, pod))
    return tuple(sorted(found, key=_order))


def _order(each: Allocation) -> tuple[str, str, int, str, str, str]:
    pod = each.pod
    return (each.gpu, each.mig_device or "", each.replica or 0, pod.namespace, pod.name, pod.container)


def _device(name: str, gpus: tuple[Gpu, ...]) -> _Device:
    replica = None
    if shared := _REPLICA.fullmatch(name):
        name, replica = shared["device"], int(shared["replica"])
    for gpu in gpus:
        if gpu.uuid == name:
            return _Device(gpu.uuid, None, replica)
        if any(mig.uuid == name for mig in gpu.mig_devices):
            return _Device(gpu.uuid, name, replica)
    if by_index := _INDEX.fullmatch(name):
        return _by_index(by_index, gpus)._replace(replica=replica)
    if by_minor := _MINOR.fullmatch(name):
        minor, part = int(by_minor["minor"]), by_minor["replica"]
        uuid = next((gpu.uuid for gpu in gpus if gpu.minor == minor), None)
        return _Device(uuid, None, None if part is None else int(part))
    return _Device(None)


def _by_index(index: re.Match[str], gpus: tuple[Gpu, ...]) -> _Device:
    gpu = next((gpu for gpu in gpus if gpu.index == int(index["gpu"])), None)
    if gpu is None:
        return _Device(None)
    if index["mig"] is None:
        return _Device(gpu.uuid)
    place = int(index["mig"])
    return _Device(gpu.uuid, gpu.mig_devices[place].uuid if place < len(gpu.mig_devices) else None)
