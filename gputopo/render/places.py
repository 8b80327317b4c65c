"""Where devices sit: NUMA nodes, the PCIe switches below them, the GPUs and NICs behind those.

Trees and drawings share this grouping. It is made from distances and affinities, because most sources name no switch.
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
    """Devices that reach each other without the CPU; or a device on its own."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]

    @property
    def switched(self) -> bool:
        """Whether there must be a PCIe switch: two devices share one."""
        return len(self.gpus) + len(self.nics) > 1


class NumaPlace(msgspec.Struct, frozen=True):
    """A NUMA node with the devices near it."""

    numa: str | None  # "0"; the affinity as printed ("0-1") where that is not one node; None: unknown
    node: NumaNode | None  # what is known of that node
    groups: tuple[DeviceGroup, ...]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Its GPUs by index."""
        found = [gpu for group in self.groups for gpu in group.gpus]
        return tuple(sorted(found, key=lambda gpu: gpu.index))


def numa_places(topology: NodeTopology) -> tuple[NumaPlace, ...]:
    """The NUMA nodes that have devices, in order of id, the unknown one last."""
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
    """The NUMA nodes that have CPUs but no GPU and no NIC; none as long as a device may sit anywhere."""
    found = numa_places(topology)
    if any(place.node is None for place in found):
        return ()
    taken = {place.numa for place in found}
    return tuple(node for node in topology.numa_nodes if node.cpus != "" and str(node.id) not in taken)


def _by_id(home: str | None) -> tuple[int, int, str]:
    """Node ids by number, then other affinities by text, then the unknown."""
    if home is None:
        return 2, 0, ""
    return (0, int(home), "") if re.fullmatch(r"[0-9]+", home) else (1, 0, home)


def _home(gpu: Gpu) -> str | None:
    return str(gpu.numa_node) if gpu.numa_node is not None else gpu.numa_affinity or None


def _nic_home(topology: NodeTopology, nic: Nic, homes: dict[int, str | None]) -> str | None:
    """Behind the same switch is at the same NUMA node; a host bridge is in one node too (the legend of topo -m)."""
    near = dict(zip([gpu.index for gpu in topology.gpus], nic.distances, strict=True))
    behind = [homes[index] for index, distance in near.items() if distance in _ONE_SWITCH]
    beside = [homes[index] for index, distance in near.items() if distance in _ONE_NODE]
    own = None if nic.numa_node is None else str(nic.numa_node)
    return next((home for home in (*behind, own, *beside) if home is not None), None)


def same_bridge(topology: NodeTopology, group: DeviceGroup) -> tuple[DeviceGroup, ...]:
    """The parts of a group that share one PCIe bridge (PIX); between the parts there are several (PXB)."""
    return _groups(topology, group.gpus, group.nics, (PcieDistance.PIX,))


def _groups(
    topology: NodeTopology, gpus: Iterable[Gpu], nics: Iterable[Nic], near: tuple[PcieDistance, ...] = _ONE_SWITCH
) -> tuple[DeviceGroup, ...]:
    """Components of "near each other", those with GPUs first by their first GPU."""
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
    """Merge those that are near into one, put last; an empty one where none is."""
    merged = [each for each, is_near in zip(members, near, strict=True) if is_near]
    members[:] = [each for each, is_near in zip(members, near, strict=True) if not is_near]
    members.append(([gpu for each in merged for gpu in each[0]], [nic for each in merged for nic in each[1]]))
