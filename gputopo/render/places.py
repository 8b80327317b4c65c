"""Devices grouped by NUMA node and PCIe switch, for trees and drawings.

The groups are derived from distances and affinities, because most sources do not report switches.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gputopo.model import Gpu, Nic, NodeTopology, NumaNode, PcieDistance

if TYPE_CHECKING:
    from collections.abc import Iterable

_ONE_SWITCH = (PcieDistance.PIX, PcieDistance.PXB)
_ONE_NODE = (PcieDistance.PHB, PcieDistance.NODE)


class DeviceGroup(msgspec.Struct, frozen=True):
    """Devices that reach each other without the CPU; or a single device."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]

    @property
    def switched(self) -> bool:
        """Return whether several devices share a PCIe switch."""
        return len(self.gpus) + len(self.nics) > 1


class NumaPlace(msgspec.Struct, frozen=True):
    """A NUMA node with its devices."""

    numa: str | None  # "0"; the affinity as printed ("0-1") if it is not a single node; None: unknown
    node: NumaNode | None  # facts about that node
    groups: tuple[DeviceGroup, ...]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return its GPUs by index."""
        found = [gpu for group in self.groups for gpu in group.gpus]
        return tuple(sorted(found, key=lambda gpu: gpu.index))


def numa_places(topology: NodeTopology) -> tuple[NumaPlace, ...]:
    """Return the NUMA nodes with devices, in the order of their ids, the unknown node last."""
    homes = {gpu.index: _home(gpu) for gpu in topology.gpus}
    gpus: dict[str | None, list[Gpu]] = {}
    nics: dict[str | None, list[Nic]] = {}
    for gpu in topology.gpus:
        gpus.setdefault(homes[gpu.index], []).append(gpu)
    for nic in topology.nics:
        nics.setdefault(_nic_home(topology, nic, homes), []).append(nic)
    nodes = {str(node.id): node for node in topology.numa_nodes}
    return tuple(
        NumaPlace(
            home, None if home is None else nodes.get(home), _groups(topology, gpus.get(home, []), nics.get(home, []))
        )
        for home in sorted({*gpus, *nics}, key=_by_id)
    )


def deviceless(topology: NodeTopology) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes with CPUs, but without GPU and NIC; () if the node of any device is unknown."""
    found = numa_places(topology)
    if any(place.node is None for place in found):
        return ()
    taken = {place.numa for place in found}
    return tuple(node for node in topology.numa_nodes if node.cpus != "" and str(node.id) not in taken)


def _by_id(home: str | None) -> tuple[int, int, str]:
    """Return the sort key: node ids by number, then other affinities by text, then unknown."""
    if home is None:
        return 2, 0, ""
    return (0, int(home), "") if re.fullmatch(r"[0-9]+", home) else (1, 0, home)


def _home(gpu: Gpu) -> str | None:
    return str(gpu.numa_node) if gpu.numa_node is not None else gpu.numa_affinity or None


def _nic_home(topology: NodeTopology, nic: Nic, homes: dict[int, str | None]) -> str | None:
    """Return the NUMA node of a NIC: that of GPUs behind the same switch, its own, or that of GPUs of the same host."""
    near = dict(zip([gpu.index for gpu in topology.gpus], nic.distances, strict=True))
    behind = [homes[index] for index, distance in near.items() if distance in _ONE_SWITCH]
    beside = [homes[index] for index, distance in near.items() if distance in _ONE_NODE]
    own = None if nic.numa_node is None else str(nic.numa_node)
    return next((home for home in (*behind, own, *beside) if home is not None), None)


def same_bridge(topology: NodeTopology, group: DeviceGroup) -> tuple[DeviceGroup, ...]:
    """Return the parts of a group that share a PCIe bridge (PIX); between the parts are several bridges (PXB)."""
    return _groups(topology, group.gpus, group.nics, (PcieDistance.PIX,))


def _groups(
    topology: NodeTopology, gpus: Iterable[Gpu], nics: Iterable[Nic], near: tuple[PcieDistance, ...] = _ONE_SWITCH
) -> tuple[DeviceGroup, ...]:
    """Return the connected components of near devices: components with GPUs first, by their first GPU."""
    position = {gpu.index: place for place, gpu in enumerate(topology.gpus)}
    members: list[tuple[list[Gpu], list[Nic]]] = []
    for gpu in gpus:
        _join(members, [any(topology.distance(gpu.index, far.index) in near for far in each[0]) for each in members])
        members[-1][0].append(gpu)
    for nic in nics:
        _join(members, [any(nic.distances[position[far.index]] in near for far in each[0]) for each in members])
        members[-1][1].append(nic)
    found = [DeviceGroup(tuple(sorted(some, key=lambda gpu: gpu.index)), tuple(others)) for some, others in members]
    return tuple(sorted(found, key=lambda group: (0, group.gpus[0].index) if group.gpus else (1, 0)))


def _join(members: list[tuple[list[Gpu], list[Nic]]], near: list[bool]) -> None:
    """Merge the near groups into a group at the end; add an empty group if none is near."""
    merged = [each for each, is_near in zip(members, near, strict=True) if is_near]
    members[:] = [each for each, is_near in zip(members, near, strict=True) if not is_near]
    members.append(([gpu for each in merged for gpu in each[0]], [nic for each in merged for nic in each[1]]))
