"""The shape of a machine: everything about its GPUs that placement needs, as tables. Pure.

Thousands of nodes have a dozen shapes. There is one ``MachineShape`` for each, compared by identity, which caches
computed results. It does not contain names that differ from node to node (UUIDs, bus ids).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from functools import cached_property, lru_cache
from itertools import combinations, product

import msgspec

from gputopo.identity import SameObjects
from gputopo.labels.values import gfd_value
from gputopo.model import (
    Degradation,
    Gpu,
    Health,
    Interconnect,
    MigDevice,
    Nic,
    NodeTopology,
    Nvlink,
    Pcie,
    PcieDistance,
    TopologySummary,
)
from gputopo.paths import PathKind
from gputopo.rings import Ring, rings_of
from scheduler_core.allocation.gpu_sets import member_places, union
from scheduler_core.allocation.symmetry import Symmetry

_NEARNESS = {distance: 1 - 0.2 * place for place, distance in enumerate(PcieDistance)}  # PIX 1.0 ... SYS 0.2
_GPU_WORD = re.compile(r"gpu(\d+)")
# The points of go-gpuallocator for the PCIe distance of a pair of GPUs, and for each NVLink between them
# (``gpuallocator/besteffort_policy.go``, ``calculateGPUPairScore``). The 60 points of dual-GPU cards are missing: NVML
# does not distinguish them from PIX.
_PAIR_POINTS = {distance: 50 - 10 * place for place, distance in enumerate(PcieDistance)}
_POINTS_PER_NVLINK = 100
_MOST_NVLINKS = 18
_MOST_UNEVEN = 4  # pairs whose ends disagree; beyond them the points are unknown
PairPoints = tuple[tuple[int, ...], ...]
MigFacts = tuple[str | None, int | None]  # profile and memory
# Index, product, memory, NUMA node, PCIe, MIG mode, MIG devices, health (None: OK, which costs less to hash).
GpuFacts = tuple[int, str | None, int | None, int | None, Pcie, bool | None, tuple[MigFacts, ...], Health | None]
Distances = tuple[tuple[PcieDistance | None, ...], ...]


class MachineShape:
    """The shape of a machine. Sets of GPUs are masks by place (``gpu_sets``)."""

    def __init__(self, topology: NodeTopology) -> None:
        gpus = topology.gpus
        self.topology = topology
        self.summary = topology.summary
        self.gpus = gpus
        self._place = {gpu.index: place for place, gpu in enumerate(gpus)}
        # GPUs that are allocated whole: neither lost nor partitioned by MIG.
        self.whole = _mask(place for place, gpu in enumerate(gpus) if gpu.usable and gpu.mig_enabled is not True)
        self.partitioned = _mask(place for place, gpu in enumerate(gpus) if gpu.usable and gpu.mig_enabled is True)
        products = {gpu.product for gpu in gpus if gpu.usable}
        self.product = products.pop() if len(products) == 1 else None  # of all usable GPUs; None: unknown, or several
        self.islands = self._islands()
        self.numa = tuple(gpu.numa_node for gpu in gpus)
        self.numa_gpus = self._numa_gpus()
        known = union(self.numa_gpus.values())
        self.has_partial_numa = known not in (0, self.whole)  # the NUMA node of some GPUs only is known
        self.points = _points(topology)
        self.one_sided_links = self._one_sided_links()
        self.nic_nearness = _nic_nearness(topology)
        self.degraded = self._degraded()
        self._rings = rings_of(topology)
        self._ring_of = lru_cache(maxsize=1 << 16)(self._ring)
        self._numa_nodes_of = lru_cache(maxsize=1 << 16)(self._numa_nodes)
        self._gpus_near_nics = lru_cache(maxsize=1 << 10)(self._near_nics)

    def ring(self, mask: int) -> Ring | None:
        """Return the best ring through a set of usable GPUs; None for fewer than two."""
        return self._ring_of(mask)

    def is_one_island(self, mask: int) -> bool | None:
        """Return True if the set lies within one island, as a single GPU always does; None if islands are unknown."""
        if mask.bit_count() < 2:
            return True
        if self.islands is None:
            return None if self.summary is None else self.summary.in_one_island(mask.bit_count())
        return any(mask & island == mask for island in self.islands)

    def count_numa_nodes(self, mask: int) -> int | None:
        """Return the number of NUMA nodes of the set; None if the node of one of its GPUs is unknown."""
        return self._numa_nodes_of(mask)

    def is_on_one_numa_node(self, mask: int) -> bool | None:
        """Return whether the set is on one NUMA node; None if the node of one of its GPUs is unknown."""
        count = self.count_numa_nodes(mask)
        if count is None:
            return None if self.summary is None else self.summary.on_one_numa_node(mask.bit_count())
        return count == 1

    def indices(self, mask: int) -> tuple[int, ...]:
        """Return the GPUs of a set by their index on the node."""
        return tuple(self.gpus[place].index for place in member_places(mask))

    def on_numa(self, node: int, mask: int) -> int:
        """Return the GPUs of the set on this NUMA node."""
        return _mask(place for place in member_places(mask) if self.numa[place] == node)

    def max_pcie_distance(self, mask: int) -> PcieDistance | None:
        """Return the PCIe distance of the farthest pair of a set of GPUs; None if a distance is unknown."""
        pairs = combinations(member_places(mask), 2)
        distances = [self.topology.pcie[one][other] if self.topology.pcie else None for one, other in pairs]
        return None if None in distances else max(filter(None, distances), key=list(PcieDistance).index)

    def gpus_near_nics(self, busy_nics: int = 0, pending_nics: int = 0) -> int | None:
        """Return the GPUs with a NIC on their NUMA node; None if the NICs are unknown.

        ``busy_nics``: NICs that do not count, by their place in ``topology.nics``. ``pending_nics``: the number of
        further NICs that pods have or will get; any of them.
        """
        return self._gpus_near_nics(busy_nics, pending_nics)

    @cached_property
    def symmetry(self) -> Symmetry:
        """The exchanges of GPUs that change nothing where neither indices nor the ids of NUMA nodes matter."""
        return self._symmetry(numa_ids=False)

    @cached_property
    def symmetry_on_numa_nodes(self) -> Symmetry:
        """The exchanges of GPUs that leave each GPU on its NUMA node."""
        return self._symmetry(numa_ids=True)

    def _symmetry(self, *, numa_ids: bool) -> Symmetry:
        near_nics = self.gpus_near_nics() or 0
        named = self.numa if numa_ids else tuple(node is None for node in self.numa)

        def label(place: int) -> Hashable:
            sets = tuple(mask >> place & 1 for mask in (self.whole, self.partitioned, self.degraded, near_nics))
            near = None if self.nic_nearness is None else self.nic_nearness[place]
            return msgspec.structs.replace(self.gpus[place], index=0, numa_node=None), sets, near, named[place]

        def pair(one: int, other: int) -> Hashable:
            both, pcie = 1 << one | 1 << other, self.topology.pcie
            if pcie and pcie[one][other] != pcie[other][one]:
                return one + other, abs(one - other)  # exchanged with none
            return (
                None if self.points is None else tuple(view[one][other] for view in self.points),
                self._rings.ring_through((self.gpus[one].index, self.gpus[other].index))
                if self._is_usable(both)
                else None,
                pcie[one][other] if pcie else None,
                self.numa[one] == self.numa[other],
                self.is_one_island(both),
                both in self.one_sided_links,
            )

        return Symmetry([label(place) for place in range(len(self.gpus))], pair)

    def _is_usable(self, mask: int) -> bool:
        return all(self.gpus[place].usable for place in member_places(mask))

    def _near_nics(self, busy_nics: int, pending_nics: int) -> int | None:
        if not self.topology.nics and self.topology.nvlink is None:
            return None
        nics = [nic for place, nic in enumerate(self.topology.nics) if not busy_nics >> place & 1]
        return _mask(
            place
            for place in range(len(self.gpus))
            if sum(nic.distances[place] not in (None, PcieDistance.SYS) for nic in nics) > pending_nics
        )

    def _numa_gpus(self) -> dict[int, int]:
        """Return the whole GPUs on each NUMA node."""
        found: dict[int, int] = {}
        for place in member_places(self.whole):
            if (node := self.numa[place]) is not None:
                found[node] = found.get(node, 0) | 1 << place
        return found

    def _numa_nodes(self, mask: int) -> int | None:
        nodes = {self.numa[place] for place in member_places(mask)}
        return None if None in nodes else len(nodes)

    def _ring(self, mask: int) -> Ring | None:
        found = self._rings.ring_through(self.gpus[place].index for place in member_places(mask))
        return (
            found if found is None or self.summary is None else _ring_by_summary(self.summary, mask.bit_count(), found)
        )

    def _islands(self) -> tuple[int, ...] | None:
        if self.topology.islands is None:
            return None
        return tuple(_mask(self._place[index] for index in island.gpus) for island in self.topology.islands)

    def _one_sided_links(self) -> tuple[int, ...]:
        """Return the pairs of whole GPUs of which only one reports the links between them."""
        links = () if self.topology.nvlink is None else self.topology.nvlink.links
        pairs = [_mask((self._place[link.a], self._place[link.b])) for link in links if link.one_sided]
        return tuple(pair for pair in pairs if pair & self.whole == pair)

    def _degraded(self) -> int:
        """Return the GPUs that degradations name; all GPUs for a degradation that names none."""
        mask = 0
        for each in self.topology.degraded:
            named = [self._place[int(word)] for word in _GPU_WORD.findall(each.what) if int(word) in self._place]
            mask |= _mask(named) if named else (1 << len(self.gpus)) - 1
        return mask


def shape_of(topology: NodeTopology, *, without_links: bool = False) -> MachineShape:
    """Return the ``MachineShape`` that all machines share that differ in names only.

    ``without_links``: only of properties that do not change while nothing observes the node.
    """
    return _shape_of_same(SameObjects((topology,)), without_links)


def places_by_uuid(topology: NodeTopology | None) -> dict[str, int]:
    """Return the place of each GPU that has a UUID. A shape itself has no UUIDs: many machines share it."""
    gpus = () if topology is None else topology.gpus
    return {gpu.uuid: place for place, gpu in enumerate(gpus) if gpu.uuid is not None}


@lru_cache(maxsize=1 << 15)
def _shape_of_same(same: SameObjects, without_links: bool) -> MachineShape:
    (topology,) = same.objects
    topology = _without_links(topology) if without_links else topology
    gpus = tuple(
        [
            (
                gpu.index,
                gpu.product,
                gpu.memory_mib,
                gpu.numa_node,
                gpu.pcie,
                gpu.mig_enabled,
                tuple([(each.profile, each.memory_mib) for each in gpu.mig_devices]) if gpu.mig_devices else (),
                None if gpu.health is Health.OK else gpu.health,
            )
            for gpu in topology.gpus
        ]
    )
    parts = topology.nvlink, topology.pcie, topology.nics, topology.degraded, topology.summary
    return _shape_of_parts(gpus, SameObjects(parts))


@lru_cache(maxsize=1024)
def _shape_of_parts(gpus: tuple[GpuFacts, ...], parts: SameObjects) -> MachineShape:
    return _shape_of_facts(gpus, *parts.objects)


@lru_cache(maxsize=1024)
def _shape_of_facts(
    gpus: tuple[GpuFacts, ...],
    nvlink: Nvlink | None,
    pcie: Distances,
    nics: tuple[Nic, ...],
    degraded: tuple[Degradation, ...],
    summary: TopologySummary | None,
) -> MachineShape:
    """Return the shape of machines with these facts. To compare them costs less than to make the nameless topology."""
    return _interned(
        NodeTopology(
            gpus=tuple(_nameless(facts) for facts in gpus),
            nvlink=nvlink,
            pcie=pcie,
            nics=tuple(
                msgspec.structs.replace(nic, name="", bus_id=None, numa_node=None, rate_gbps=None) for nic in nics
            ),
            degraded=tuple(Degradation(each.what, "") for each in degraded),
            summary=summary,
        )
    )


def _without_links(topology: NodeTopology) -> NodeTopology:
    """Return the properties of the GPUs without links, distances and NUMA nodes."""
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
def _interned(topology: NodeTopology) -> MachineShape:
    return MachineShape(topology)


def _nameless(facts: GpuFacts) -> Gpu:
    index, name, memory_mib, numa_node, pcie, mig_enabled, mig_devices, health = facts
    return Gpu(
        index=index,
        product=None if name is None else gfd_value(name),
        memory_mib=memory_mib,
        numa_node=numa_node,
        pcie=msgspec.structs.replace(pcie, generation=None, width=None),
        mig_enabled=mig_enabled,
        mig_devices=tuple(MigDevice(profile, None, memory) for profile, memory in mig_devices),
        health=health or Health.OK,
    )


def _ring_by_summary(summary: TopologySummary, size: int, found: Ring) -> Ring:
    """Return the ring through any ``size`` GPUs of a machine known by its labels; ``found``, where they differ."""
    interconnect = summary.ring_interconnect(size)
    if interconnect is None:
        return found
    if interconnect in (Interconnect.PCIE, Interconnect.NONE):
        return Ring(PathKind.PCIE, None, None, found.distance)
    return Ring(PathKind(interconnect.value), summary.island_gbps, None, None)


def _points(topology: NodeTopology) -> tuple[PairPoints, ...] | None:
    """Return the device plugin's points for each pair; None if its view of the machine is unknown.

    The plugin does not see NVSwitches: only links between two GPUs count. It reads the links of a pair at the GPU that
    the kubelet offers first. Where the ends of a link disagree, each has its own points: one table for each possible
    combination.
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
    place_of = {gpu.index: place for place, gpu in enumerate(topology.gpus)}
    uneven = [link for link in topology.nvlink.links if link.lanes and link.short]
    if len(uneven) > _MOST_UNEVEN:
        return None
    tables = []
    for greater in product((False, True), repeat=len(uneven)):
        table = [list(row) for row in points]
        reads_more = {link for link, more in zip(uneven, greater, strict=True) if more}
        for link in topology.nvlink.links:
            one, other = place_of[link.a], place_of[link.b]
            lanes = (link.expected_lanes or 0) if link in reads_more else link.lanes
            table[one][other] += _POINTS_PER_NVLINK * min(lanes, _MOST_NVLINKS)
            table[other][one] = table[one][other]
        tables.append(tuple(map(tuple, table)))
    return tuple(dict.fromkeys(tables))


def _nic_nearness(topology: NodeTopology) -> tuple[float, ...] | None:
    """Return the proximity of each GPU's nearest NIC: 1.0 (one PCIe switch) to 0.2 (other socket); None without NIC."""
    if not topology.nics:
        return None
    return tuple(
        max(0.0 if (distance := nic.distances[place]) is None else _NEARNESS[distance] for nic in topology.nics)
        for place in range(len(topology.gpus))
    )


def _mask(members: Iterable[int]) -> int:
    return union(1 << place for place in members)
