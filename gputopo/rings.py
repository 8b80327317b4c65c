"""Ring bandwidth of a set of GPUs: the slowest hop of the best ring through all of them. Pure.

NCCL's collectives run over rings: each GPU sends to the next, and the slowest hop bounds the bandwidth. So the value of
a set is the best possible slowest hop of a cycle through all of its GPUs (a bottleneck Hamiltonian cycle). For two GPUs
that is the hop between them. Rates are GB/s of the link, both directions together, as everywhere in gputopo.

Machines of the same shape share a ``Rings`` and its cached results.

    gputopo.model.ModelError    a GPU does not exist, or is lost
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations

import msgspec

from gputopo.identity import SameObjects
from gputopo.model import Gpu, Health, ModelError, NodeTopology, PcieDistance
from gputopo.paths import PathKind, nvlink_edges, pcie_gbps

MAX_EXACT_GPUS = 16  # GPUs; for larger sets a lower bound, which is exact if a fabric connects all pairs equally
Reach = Sequence[int]  # for each GPU, by position: the bit set of the GPUs that it reaches
_NEARNESS = {distance: len(PcieDistance) - place for place, distance in enumerate(PcieDistance)}


class Ring(msgspec.Struct, frozen=True, rename="camel"):
    """The slowest hop of the best ring through a set of GPUs."""

    kind: PathKind  # NVLINK or NVSWITCH; PCIE; UNKNOWN if the NVLinks are unknown
    gbps: float | None  # None: unknown. Over PCIe: of the slower GPU's link, although the path may be slower
    lanes: int | None  # NVLinks
    distance: PcieDistance | None  # over PCIe

    @property
    def sort_key(self) -> tuple[bool, float, int, int, float]:
        """Return the sort key: NVLink (by rate) before PCIe (by distance, then rate). Unknown is worst."""
        if self.kind in (PathKind.NVLINK, PathKind.NVSWITCH):
            return True, self.gbps or 0.0, self.lanes or 0, 0, 0.0
        return False, 0.0, 0, _NEARNESS[self.distance] if self.distance else 0, self.gbps or 0.0


class Rings:
    """The rings of a machine shape. Results are cached."""

    def __init__(self, indices: Sequence[int], hops: Sequence[Ring]) -> None:
        """``hops``: of all pairs of GPUs, in the order of ``itertools.combinations``."""
        self._place = {index: place for place, index in enumerate(indices)}
        best_first = sorted(set(hops), key=lambda hop: hop.sort_key, reverse=True)
        pairs = list(combinations(range(len(indices)), 2))
        # For each threshold: the bit sets of GPUs that each GPU reaches by a hop at least that good.
        self._levels = [(hop, _reach(len(indices), pairs, hops, hop)) for hop in best_first]
        self._cached_ring_through = lru_cache(maxsize=1 << MAX_EXACT_GPUS)(self._ring_through)
        self._cached_ring_of_size = lru_cache(maxsize=1 << MAX_EXACT_GPUS)(self._ring_of_size)

    def ring_through(self, gpus: Iterable[int]) -> Ring | None:
        """Return the best ring through exactly these GPUs (indices); None for fewer than two."""
        members = self._mask(gpus)
        return None if members.bit_count() < 2 else self._cached_ring_through(members)

    def best_ring(self, size: int, among: Iterable[int] | None = None) -> Ring | None:
        """Return the best ring of any ``size`` of these GPUs (default: all); None for size 1, or too few GPUs."""
        members = (1 << len(self._place)) - 1 if among is None else self._mask(among)
        return None if size < 2 or members.bit_count() < size else self._cached_ring_of_size(members, size)

    def _mask(self, gpus: Iterable[int]) -> int:
        mask = 0
        for index in gpus:
            if index not in self._place:
                raise ModelError(
                    f"GPU {index} does not exist or is lost; usable: {', '.join(map(str, self._place)) or 'none'}"
                )
            mask |= 1 << self._place[index]
        return mask

    def _ring_through(self, members: int) -> Ring:
        return self._first(lambda reach: _has_hamiltonian_cycle(reach, members))

    def _ring_of_size(self, members: int, size: int) -> Ring:
        return self._first(lambda reach: _has_cycle(reach, members, size))

    def _first(self, holds: Callable[[Reach], bool]) -> Ring:
        """Return the best threshold at which ``holds`` is true. It is always true at the worst one: not tested."""
        worst = len(self._levels) - 1
        return self._levels[bisect_left(self._levels, True, hi=worst, key=lambda level: holds(level[1]))][0]


def rings_of(topology: NodeTopology) -> Rings:
    """Return the rings of a machine's usable GPUs."""
    gpus = tuple([(gpu.index, gpu.usable, gpu.mig_enabled) for gpu in topology.gpus])
    parts = topology.nvlink, topology.pcie, *[gpu.pcie for gpu in topology.gpus]
    return _rings_of_parts(gpus, SameObjects(parts))


@lru_cache(maxsize=256)
def _rings_of_parts(gpus: tuple[tuple[int, bool, bool | None], ...], parts: SameObjects) -> Rings:
    """``gpus``: index, usable, MIG mode. ``parts``: NVLinks, PCIe distances, and the PCIe link of each GPU."""
    nvlink, distances, *links = parts.objects
    machine = NodeTopology(
        gpus=tuple(
            Gpu(index=index, health=Health.OK if usable else Health.LOST, mig_enabled=mig, pcie=link)
            for (index, usable, mig), link in zip(gpus, links, strict=True)
        ),
        nvlink=nvlink,
        pcie=distances,
    )
    return _shared(tuple(gpu.index for gpu in machine.usable), tuple(_hops(machine)))


@lru_cache(maxsize=256)
def _shared(indices: tuple[int, ...], hops: tuple[Ring, ...]) -> Rings:
    return Rings(indices, hops)


def _hops(topology: NodeTopology) -> Iterator[Ring]:
    """Yield the hop of each pair of usable GPUs: NVLink if it exists, else PCIe."""
    joined = {} if topology.nvlink is None else nvlink_edges(topology, topology.nvlink)
    place = {gpu.index: place for place, gpu in enumerate(topology.gpus)}
    for one, other in combinations(topology.usable, 2):
        edge = joined.get((one.index, other.index))
        if edge is not None:
            yield Ring(edge.kind, edge.gbps, edge.lanes, None)
        else:
            distance = topology.pcie[place[one.index]][place[other.index]] if topology.pcie else None
            if topology.nvlink is None:
                yield Ring(PathKind.UNKNOWN, None, None, distance)
            else:
                yield Ring(PathKind.PCIE, _slower(one, other), None, distance)


def _slower(one: Gpu, other: Gpu) -> float | None:
    rates = (pcie_gbps(one), pcie_gbps(other))
    return None if None in rates else min(rate for rate in rates if rate is not None)


def _reach(size: int, pairs: list[tuple[int, int]], hops: Sequence[Ring], threshold: Ring) -> tuple[int, ...]:
    reach = [0] * size
    for (one, other), hop in zip(pairs, hops, strict=True):
        if hop.sort_key >= threshold.sort_key:
            reach[one] |= 1 << other
            reach[other] |= 1 << one
    return tuple(reach)


def _bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits in a mask."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _has_hamiltonian_cycle(reach: Reach, members: int) -> bool:
    """Return whether a cycle visits each member once."""
    places = list(_bits(members))
    if len(places) == 2:
        return bool(reach[places[0]] & 1 << places[1])
    if any((reach[place] & members).bit_count() < 2 for place in places):
        return False
    if next(_components(reach, members)) != members:  # cheap, and the usual case of members on several boards
        return False
    if _closure_is_complete(reach, members):
        return True
    return len(places) <= MAX_EXACT_GPUS and _cycle_of(reach, members, len(places))


def _closure_is_complete(reach: Reach, members: int) -> bool:
    """Return whether the closure of the graph is complete; then it has a Hamiltonian cycle (Bondy and Chvatal, 1976).

    An edge between two vertices whose degrees sum to n or more does not change whether such a cycle exists. This
    cheaply decides every dense graph; False decides nothing.
    """
    near = {place: reach[place] & members for place in _bits(members)}
    grown = True
    while grown:
        grown = False
        for one, other in combinations(near, 2):
            apart = not near[one] & 1 << other
            if apart and near[one].bit_count() + near[other].bit_count() >= len(near):
                near[one] |= 1 << other
                near[other] |= 1 << one
                grown = True
    return all(neighbours.bit_count() == len(near) - 1 for neighbours in near.values())


def _cycle_of(reach: Reach, members: int, size: int) -> bool:
    """Return whether a cycle visits ``size`` of the members once each (Held and Karp, 1962, on bit sets).

    ``ends[visited]`` is the set of ends of paths that start at the lowest position of ``visited`` and visit exactly it.
    """
    places = list(_bits(members))
    near = [sum(1 << at for at, far in enumerate(places) if reach[place] & 1 << far) for place in places]
    ends = [0] * (1 << len(places))
    for place in range(len(places)):
        ends[1 << place] = 1 << place
    for visited in range(1, len(ends)):
        if not ends[visited]:
            continue
        first = visited & -visited
        if visited.bit_count() == size:
            if ends[visited] & near[first.bit_length() - 1]:
                return True
            continue
        for place in _bits((len(ends) - 1) & ~(visited | (first - 1))):
            if near[place] & ends[visited]:
                ends[visited | 1 << place] |= 1 << place
    return False


def _has_cycle(reach: Reach, members: int, size: int) -> bool:
    """Return whether any ``size`` of the members form a ring."""
    if size == 2:
        return any(reach[place] & members for place in _bits(members))
    return any(
        _component_has_cycle(reach, part, size) for part in _components(reach, members) if part.bit_count() >= size
    )


def _component_has_cycle(reach: Reach, part: int, size: int) -> bool:
    """Return the same for a connected component."""
    count = part.bit_count()
    if all((reach[place] & part).bit_count() == count - 1 for place in _bits(part)):
        return True  # a complete graph
    if size == count:
        return _has_hamiltonian_cycle(reach, part)
    if count <= MAX_EXACT_GPUS:
        return _cycle_of(reach, part, size)
    by_degree = sorted(_bits(part), key=lambda place: -(reach[place] & part).bit_count())[:size]
    return _has_hamiltonian_cycle(reach, sum(1 << place for place in by_degree))


def _components(reach: Reach, members: int) -> Iterator[int]:
    """Yield the connected components."""
    while members:
        part, frontier = 0, members & -members
        while frontier:
            part |= frontier
            frontier = members & ~part & _union(reach, frontier)
        yield part
        members &= ~part


def _union(reach: Reach, places: int) -> int:
    union = 0
    for place in _bits(places):
        union |= reach[place]
    return union
