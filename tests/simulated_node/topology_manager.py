"""The kubelet's Topology Manager, CPU Manager and Memory Manager, as the kubelet's source states their rules.

Written from ``pkg/kubelet/cm/topologymanager/policy*.go``, ``cpumanager/policy_static.go`` and
``memorymanager/policy_static.go`` of Kubernetes 1.37, statement by statement, and not from gputopo's prediction, which
is compared with it. NUMA nodes are masks by id, as there. Which CPUs the CPU Manager takes of several NUMA nodes is
drawn at random: the kubelet prefers whole sockets and cores. No init container here has exclusive memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import combinations, product
from random import Random
from typing import NamedTuple


class NumaPolicy(Enum):
    """The kubelet's ``topologyManagerPolicy``."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Hint(NamedTuple):
    """A ``TopologyHint``."""

    mask: int | None
    preferred: bool


class Numa(NamedTuple):
    """One NUMA node of a machine."""

    id: int
    cpus: int = 0
    reserved_cpus: int = 0
    memory: int = 0
    distances: tuple[int, ...] = ()  # to each NUMA node, by id


class TopologyConfig(NamedTuple):
    """The kubelet's configuration, and the NUMA nodes of the machine."""

    policy: NumaPolicy = NumaPolicy.NONE
    pod_scope: bool = False
    prefer_closest: bool = False
    nodes: tuple[Numa, ...] = ()
    static_cpus: bool = False
    static_memory: bool = False


NO_PREFERENCE = (Hint(None, True),)
IMPOSSIBLE = (Hint(None, False),)


def masks_of(nodes: Iterable[int]) -> Iterator[int]:
    """``IterateBitMasks``: all masks of these nodes but the empty one, the narrowest first."""
    listed = sorted(nodes)
    for count in range(1, len(listed) + 1):
        for chosen in combinations(listed, count):
            yield sum(1 << node for node in chosen)


def mark_preferred(masks: Sequence[int], fewest: int) -> tuple[Hint, ...]:
    """The hints of one resource; () becomes one that says that nothing is possible."""
    return tuple(Hint(mask, mask.bit_count() == fewest) for mask in masks) or IMPOSSIBLE


class TopologyManager:
    """Merges the hints of all resources."""

    def __init__(self, config: TopologyConfig) -> None:
        self._config = config
        self._everything = sum(1 << node.id for node in config.nodes)
        self._distances = {node.id: node.distances for node in config.nodes}

    def merge(self, hints: Sequence[Sequence[Hint]]) -> tuple[Hint, bool]:
        """The NUMA nodes of a container or pod, and whether it is admitted."""
        policy = self._config.policy
        if policy is NumaPolicy.NONE:
            return Hint(None, False), True
        if policy is NumaPolicy.SINGLE_NUMA_NODE:
            hints = [[each for each in one if each.preferred and _is_single(each.mask)] for one in hints]
        narrowest = max(
            (min(each.mask.bit_count() for each in one if each.mask is not None) for one in hints if _has_mask(one)),
            default=0,
        )
        best: Hint | None = None
        for permutation in product(*hints):
            best = self._better(best, self._merged(permutation), narrowest)
        if best is None:
            best = Hint(self._everything, False)
        admitted = policy is NumaPolicy.BEST_EFFORT or best.preferred
        if policy is NumaPolicy.SINGLE_NUMA_NODE and best.mask == self._everything:
            best = Hint(None, best.preferred)
        return best, admitted

    def _merged(self, permutation: Sequence[Hint]) -> Hint:
        masks = [each.mask for each in permutation if each.mask is not None]
        merged = self._everything
        for mask in masks:
            merged &= mask
        return Hint(merged, all(each.preferred for each in permutation) and len(set(masks)) <= 1)

    def _better(self, current: Hint | None, candidate: Hint, narrowest: int) -> Hint | None:
        if not candidate.mask:
            return current
        if current is None:
            return candidate
        if current.preferred != candidate.preferred:
            return candidate if candidate.preferred else current
        if current.preferred:
            return self._fitter(current, candidate)
        assert current.mask is not None
        now, then = current.mask.bit_count(), candidate.mask.bit_count()
        if now > narrowest:
            return self._fitter(current, candidate)
        if now == narrowest:
            return self._fitter(current, candidate) if then == narrowest else current
        if then > narrowest:
            return current
        if then == narrowest or then > now:
            return candidate
        return current if then < now else self._fitter(current, candidate)

    def _fitter(self, current: Hint, candidate: Hint) -> Hint:
        assert current.mask is not None
        assert candidate.mask is not None
        one, other = current.mask, candidate.mask
        if one == other:
            return current
        key = (one.bit_count(), one) < (other.bit_count(), other)
        closest = self._config.prefer_closest and self._config.policy is not NumaPolicy.SINGLE_NUMA_NODE
        if closest and one.bit_count() == other.bit_count():
            key = (self._average(one), one) < (self._average(other), other)
        return current if key else candidate

    def _average(self, mask: int) -> float:
        ids = [node for node in self._distances if mask >> node & 1]
        return sum(self._distances[one][other] for one in ids for other in ids) / len(ids) ** 2


class CpuManager:
    """The static policy: whole CPUs for containers of Guaranteed pods."""

    def __init__(self, config: TopologyConfig, random: Random) -> None:
        self.random = random
        self._all = {(node.id, number) for node in config.nodes for number in range(node.cpus)}
        reserved = {(node.id, number) for node in config.nodes for number in range(node.reserved_cpus)}
        self.free = self._all - reserved
        self._nodes = [node.id for node in config.nodes if node.cpus]

    def hints(self, wanted: int, reusable: set[tuple[int, int]]) -> tuple[Hint, ...]:
        """``generateCPUTopologyHints``."""
        fewest, found = len(self._nodes), []
        for mask in masks_of(self._nodes):
            if len(_on(mask, self._all)) >= wanted:
                fewest = min(fewest, mask.bit_count())
            if _on(mask, reusable) != reusable:
                continue
            if len(reusable) + len(_on(mask, self.free)) >= wanted:
                found.append(mask)
        return mark_preferred(found, fewest)

    def allocate(self, wanted: int, mask: int | None, reusable: set[tuple[int, int]]) -> set[tuple[int, int]] | None:
        """``allocateCPUs``: aligned CPUs first; None if there are too few."""
        usable = self.free | reusable
        if len(usable) < wanted:
            return None
        aligned = _on(mask, usable) if mask is not None else set()
        taken = set(self.random.sample(sorted(aligned), min(wanted, len(aligned))))
        taken |= set(self.random.sample(sorted(usable - taken), wanted - len(taken)))
        self.free -= taken
        return taken


class MemoryManager:
    """The Static policy: memory of NUMA nodes for containers of Guaranteed pods."""

    def __init__(self, config: TopologyConfig) -> None:
        self._allocatable = {node.id: node.memory for node in config.nodes}
        self.blocks: list[tuple[int, int]] = []  # mask of NUMA nodes, size

    def free(self) -> dict[int, int]:
        """Each block takes from its NUMA nodes in order (``updateMachineState``)."""
        free = dict(self._allocatable)
        for mask, size in self.blocks:
            left = size
            for node in sorted(free):
                if mask >> node & 1:
                    taken = min(left, free[node])
                    free[node] -= taken
                    left -= taken
        return free

    def group(self, node: int) -> int:
        """``Cells`` of a NUMA node with assignments; 0 without."""
        return next((mask for mask, _ in self.blocks if mask >> node & 1), 0)

    def hints(self, wanted: int) -> tuple[Hint, ...]:
        """``calculateHints``."""
        fewest, found, free = len(self._allocatable), [], self.free()
        for mask in masks_of(self._allocatable):
            nodes = [node for node in self._allocatable if mask >> node & 1]
            if sum(self._allocatable[node] for node in nodes) < wanted:
                continue
            fewest = min(fewest, len(nodes))
            if self._violates(mask, nodes):
                continue
            if sum(free[node] for node in nodes) >= wanted:
                found.append(mask)
        return mark_preferred(found, fewest)

    def allocate(self, wanted: int, hint: Hint) -> bool:
        """``Allocate``: from the NUMA nodes of the hint, extended if they have too little; False: rejected."""
        free, mask = self.free(), hint.mask
        if mask is None or sum(free[node] for node in free if mask >> node & 1) < wanted:
            within = mask or 0
            fitting = [each for each in self.hints(wanted) if each.mask is not None and each.mask & within == within]
            if not fitting:
                return False
            best = min(fitting, key=lambda each: (not each.preferred, (each.mask or 0).bit_count(), each.mask or 0))
            if hint.preferred and not best.preferred:
                return False
            mask = best.mask or 0
        if self._violates(mask, [node for node in free if mask >> node & 1]):
            return False
        self.blocks.append((mask, wanted))
        return True

    def _violates(self, mask: int, nodes: list[int]) -> bool:
        groups = {group for node in nodes if (group := self.group(node))}
        if len(nodes) == 1:
            return any(group.bit_count() > 1 for group in groups)
        return any(group != mask for group in groups)


def _is_single(mask: int | None) -> bool:
    return mask is None or mask.bit_count() == 1


def _has_mask(hints: Sequence[Hint]) -> bool:
    return any(each.mask is not None for each in hints)


def _on(mask: int, cpus: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return {cpu for cpu in cpus if mask >> cpu[0] & 1}
