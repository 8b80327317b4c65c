"""Maps the device ids of network device plugins to the NICs of this machine.

The SR-IOV network device plugin and host-device plugins use PCI addresses, of a whole card or of a virtual function of
it; AWS's EFA plugin uses RDMA names. The RDMA shared device plugin numbers its devices, since every pod gets all cards:
these name no NIC and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.allocation.wire import HeldDevices
from gputopo.crd.nodegpus import NicAllocation, PodRef
from gputopo.model import Nic

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_physical_functions(held: Iterable[HeldDevices], sysfs: Path = Path("/sys")) -> dict[str, str]:
    """Return the PCI address of the card of each virtual function among the devices, by the function's address."""
    found = {}
    for address in {device.lower() for each in held for device in each.devices}:
        if _PCI_ADDRESS.fullmatch(address):
            try:
                found[address] = (sysfs / "bus/pci/devices" / address / "physfn").readlink().name
            except OSError:  # a whole card, or a device that is gone
                continue
    return found


def nic_allocations(
    held: Iterable[HeldDevices], nics: Iterable[Nic], physical_functions: Mapping[str, str]
) -> tuple[NicAllocation, ...]:
    """Return the NICs that pods hold, sorted. ``physical_functions``: as ``read_physical_functions`` returns it."""
    by_id = {each.name: each.name for each in nics} | {each.bus_id: each.name for each in nics if each.bus_id}
    found = set()
    for each in held:
        pod = PodRef(each.namespace, each.pod, each.container)
        for device in each.devices:
            physical = physical_functions.get(device.lower())
            name = by_id.get(physical or device) or by_id.get(device.lower())
            if name is not None:
                found.add(NicAllocation(name, pod, None if physical is None else device))
    return tuple(
        sorted(
            found, key=lambda it: (it.nic, it.virtual_function or "", it.pod.namespace, it.pod.name, it.pod.container)
        )
    )
