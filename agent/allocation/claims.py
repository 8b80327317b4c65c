"""The part of each GPU's memory that containers hold by their devices. Pure.

A whole GPU claims all of its memory, a MIG device its own memory, and a share of a GPU the same part as every other
share. What containers really use is reported by NVML.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from agent.allocation.devices import gpu_of_device
from gputopo.crd.nodegpus import DeviceAllocation
from gputopo.labels import resources
from gputopo.model import Gpu


def claimed_percents(
    allocations: Iterable[DeviceAllocation] | None, gpus: tuple[Gpu, ...], offered: Iterable[tuple[str, str]]
) -> dict[str, int]:
    """Return the claimed percent of the memory of each GPU, by UUID; GPUs of which it is not known are left out.

    ``offered``: resource and device id of every device that the kubelet may allocate. It says how many shares a GPU
    has.
    """
    if allocations is None:
        return {}
    held: defaultdict[str, set[tuple[str | None, int | None]]] = defaultdict(set)
    for each in allocations:
        held[each.gpu].add((each.mig_device, each.replica))
    shares = _shares(offered, gpus)
    found = {gpu.uuid: _claimed(gpu, held[gpu.uuid], shares[gpu.uuid]) for gpu in gpus if gpu.uuid is not None}
    return {uuid: percent for uuid, percent in found.items() if percent is not None}


def _shares(offered: Iterable[tuple[str, str]], gpus: tuple[Gpu, ...]) -> Counter[str]:
    """Return the number of devices that each GPU is offered as."""
    uuids = (gpu_of_device(device, gpus) for resource, device in offered if resources.is_gpu(resource))
    return Counter(uuid for uuid in uuids if uuid is not None)


def _claimed(gpu: Gpu, held: set[tuple[str | None, int | None]], shares: int) -> int | None:
    """Return the percent that these devices, each ``(MIG device, share)``, claim of a GPU; None: unknown."""
    total = 0.0
    memory = {device.uuid: device.memory_mib for device in gpu.mig_devices}
    for mig_device, replica in held:
        if mig_device is not None or gpu.mig_enabled:
            size = memory.get(mig_device)
            if not size or not gpu.memory_mib or replica is not None:
                return None
            total += 100 * size / gpu.memory_mib
        elif replica is None:
            return 100
        elif not shares:
            return None
        else:
            total += 100 / shares
    return min(100, round(total))
