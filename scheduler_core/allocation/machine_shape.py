"""The shape of a machine: everything about its GPUs that placement asks for, as tables. Pure.

Thousands of nodes are of a dozen shapes. A ``Shape`` is made once per shape, is compared by identity, and remembers
what has been worked out about it; names that differ from node to node (UUIDs, bus ids) are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from gputopo.labels.values import gfd_value
from gputopo.model import Degradation, Gpu, MigDevice, NodeTopology, PcieDistance
from gputopo.rings import Ring, rings_of
from scheduler_core.allocation.gpu_sets import member_places, union

_NEARNESS = {distance: 1 - 0.2 * place for place, distance in enumerate(PcieDistance)}  # PIX 1.0 ... SYS 0.2
_GPU_WORD = re.compile(r"gpu(\d+)")
# What go-gpuallocator gives a pair of GPUs for what lies between them, and for each NVLink that joins the two
# (``gpuallocator/besteffort_policy.go``, ``calculateGPUPairScore``). 60 for one board is a dual-GPU card's, which NVML
# and so our model cannot tell from PIX.
_PAIR_POINTS = {distance: 50 - 10 * place for place, distance in enumerate(PcieDistance)}
_POINTS_PER_NVLINK = 100
_MOST_NVLINKS = 18


class MachineShape:
    """One shape of machine. Sets of GPUs are masks by place (``sets``)."""

    def __init__(self, topology: NodeTopology) -> None:
        gpus = topology.gpus
        self.topology = topology
        self.gpus = gpus
        self._place = {gpu.index: place for place, gpu in enumerate(gpus)}
        # GPUs that are handed out whole: neither lost nor cut into MIG devices.
        self.whole = _mask(place for place, gpu in enumerate(gpus) if gpu.usable and gpu.mig_enabled is not True)
        self.partitioned = _mask(place for place, gpu in enumerate(gpus) if gpu.usable and gpu.mig_enabled is True)
        self.islands = self._islands()
        self.numa = tuple(gpu.numa_node for gpu in gpus)
        self.points = _points(topology)
        self.nic_nearness = _nic_nearness(topology)
        self.degraded = self._degraded()
        self._rings = rings_of(topology)
        self._ring_of = lru_cache(maxsize=1 << 16)(self._ring)
        self._numa_nodes_of = lru_cache(maxsize=1 << 16)(self._numa_nodes)

    def ring(self, mask: int) -> Ring | None:
        """The best ring through a set of usable GPUs; None for fewer than two."""
        return self._ring_of(mask)

    def is_one_island(self, mask: int) -> bool | None:
        """Whether the set lies within one island, as a set of one always does; None where nobody can tell."""
        if mask.bit_count() < 2:
            return True
        if self.islands is None:
            return None
        return any(mask & island == mask for island in self.islands)

    def count_numa_nodes(self, mask: int) -> int | None:
        """On how many NUMA nodes the set is; None where one of its GPUs does not say."""
        return self._numa_nodes_of(mask)

    def on_numa(self, node: int, mask: int) -> int:
        """Those of the set on that NUMA node."""
        return _mask(place for place in member_places(mask) if self.numa[place] == node)

    def _numa_nodes(self, mask: int) -> int | None:
        nodes = {self.numa[place] for place in member_places(mask)}
        return None if None in nodes else len(nodes)

    def _ring(self, mask: int) -> Ring | None:
        return self._rings.ring_through(self.gpus[place].index for place in member_places(mask))

    def _islands(self) -> tuple[int, ...] | None:
        if self.topology.islands is None:
            return None
        return tuple(_mask(self._place[index] for index in island.gpus) for island in self.topology.islands)

    def _degraded(self) -> int:
        """GPUs that a degradation speaks of; all where it names none."""
        mask = 0
        for each in self.topology.degraded:
            named = [self._place[int(word)] for word in _GPU_WORD.findall(each.what) if int(word) in self._place]
            mask |= _mask(named) if named else (1 << len(self.gpus)) - 1
        return mask


def shape_of(topology: NodeTopology, *, without_links: bool = False) -> MachineShape:
    """The one ``Shape`` of all machines that differ in names only. ``stale``: of what does not change unseen."""
    return _shape_of_same(_Same(topology), without_links)


class _Same:
    """A topology, compared by identity: to hash one costs more than all else that an event does."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology

    def __hash__(self) -> int:
        return id(self.topology)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.topology is other.topology


@lru_cache(maxsize=1 << 15)
def _shape_of_same(same: _Same, without_links: bool) -> MachineShape:
    topology = _without_links(same.topology) if without_links else same.topology
    return _shared(
        NodeTopology(
            gpus=tuple(_nameless(gpu) for gpu in topology.gpus),
            nvlink=topology.nvlink,
            pcie=topology.pcie,
            nics=tuple(
                msgspec.structs.replace(nic, name="", bus_id=None, numa_node=None, rate_gbps=None)
                for nic in topology.nics
            ),
            degraded=tuple(Degradation(each.what, "") for each in topology.degraded),
        )
    )


def _without_links(topology: NodeTopology) -> NodeTopology:
    """What does not change while nobody looks."""
    return NodeTopology(
        gpus=tuple(
            Gpu(
                index=gpu.index,
                product=gpu.product,
                memory_mib=gpu.memory_mib,
                mig_enabled=gpu.mig_enabled,
                mig_devices=gpu.mig_devices,
                health=gpu.health,
            )
            for gpu in topology.gpus
        )
    )


@lru_cache(maxsize=1024)
def _shared(topology: NodeTopology) -> MachineShape:
    return MachineShape(topology)


def _nameless(gpu: Gpu) -> Gpu:
    return Gpu(
        index=gpu.index,
        product=None if gpu.product is None else gfd_value(gpu.product),
        memory_mib=gpu.memory_mib,
        numa_node=gpu.numa_node,
        pcie=msgspec.structs.replace(gpu.pcie, generation=None, width=None),
        mig_enabled=gpu.mig_enabled,
        mig_devices=tuple(MigDevice(each.profile, None, each.memory_mib) for each in gpu.mig_devices),
        health=gpu.health,
    )


def _points(topology: NodeTopology) -> tuple[tuple[int, ...], ...] | None:
    """The device plugin's points for each pair; None where we do not know what it sees.

    NVSwitches it does not see: only links whose far end is a GPU count.
    """
    size = len(topology.gpus)
    if topology.nvlink is None or not topology.pcie:
        return None
    points = [[0] * size for _ in range(size)]
    for one in range(size):
        for other in range(one):
            distance = topology.pcie[one][other]
            if distance is None:
                return None
            points[one][other] = points[other][one] = _PAIR_POINTS[distance]
    place = {gpu.index: at for at, gpu in enumerate(topology.gpus)}
    for link in topology.nvlink.links:
        one, other = place[link.a], place[link.b]
        points[one][other] += _POINTS_PER_NVLINK * min(link.lanes, _MOST_NVLINKS)
        points[other][one] = points[one][other]
    return tuple(map(tuple, points))


def _nic_nearness(topology: NodeTopology) -> tuple[float, ...] | None:
    """How near each GPU's nearest NIC is, 1.0 (one PCIe switch) to 0.2 (across the sockets); None without NICs."""
    if not topology.nics:
        return None
    return tuple(
        max(0.0 if (distance := nic.distances[place]) is None else _NEARNESS[distance] for nic in topology.nics)
        for place in range(len(topology.gpus))
    )


def _mask(members: Iterable[int]) -> int:
    return union(1 << place for place in members)
