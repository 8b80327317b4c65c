"""The kubelet's Topology Manager: the NUMA nodes from which it takes the resources of a container. Pure.

Each manager of devices, CPUs and memory names the sets of NUMA nodes that have enough free resources (hints). A hint is
preferred if no smaller set has the capacity, whether free or not. The Topology Manager combines one hint of each
manager: preferred if all are the same preferred set, else their intersection. ``best-effort`` takes the best
combination, ``restricted`` rejects a container without a preferred one, ``single-numa-node`` one without a preferred
single node.

Hints that cannot be known (another device plugin's devices, CPUs that other pods may have taken since the report) may
lead to every combination: then all of them are possible. Sets of NUMA nodes are masks by place among the sorted ids.

Source: ``pkg/kubelet/cm/topologymanager/policy*.go``, and ``generateDeviceTopologyHints``, ``generateCPUTopologyHints``
and ``calculateHints`` of the three managers, of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from scheduler_core.allocation.gpu_sets import member_places, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.request.device_request import ContainerStep

MOST_NUMA_NODES = 8  # that are modelled; the kubelet starts with more only by ``max-allowable-numa-nodes``


class NumaPolicy(Enum):
    """The kubelet's ``topologyManagerPolicy``."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


def parse_numa_policy(text: str | None) -> NumaPolicy | None:
    """Return the policy; None for any other text."""
    return next((each for each in NumaPolicy if each.value == text), None)


class NumaAlignment(NamedTuple):
    """A configuration of the Topology Manager."""

    policy: NumaPolicy
    pod_scope: bool = False  # one set of NUMA nodes for all containers of a pod
    closest: bool = False  # ``prefer-closest-numa-nodes``: of equally many nodes any may be the closest
    by_socket: bool = False  # ``align-by-socket``: the sockets are unknown, so the hints for CPUs are


class NumaCapacity(NamedTuple):
    """The resources of a NUMA node, as the CPU Manager and the Memory Manager count them at the kubelet's report."""

    id: int
    cpus: int = 0
    free_cpus: int = 0  # for exclusive use
    memory: int = 0  # bytes
    free_memory: int = 0
    group: tuple[int, ...] = ()  # the NUMA nodes, by id, of which pods hold memory together; (): none of it is held


class KubeletModel(msgspec.Struct, frozen=True, eq=False):
    """The known facts of the kubelet of a node. Compared by identity: it is part of the keys of many caches."""

    alignments: tuple[NumaAlignment, ...]  # the possible configurations
    exclusive_cpus: bool | None = None  # the CPU Manager's policy is static; None: unknown
    pinned_memory: bool | None = None  # the Memory Manager's policy is Static; None: unknown
    numa_nodes: tuple[NumaCapacity, ...] | None = None  # None: unknown, or pods were admitted since the report
    full_cores: bool | None = None  # the CPU Manager's option ``full-pcpus-only``
    cpus_per_core: int | None = None

    @property
    def aligns(self) -> bool:
        """Return whether the Topology Manager may align."""
        return self.alignments != NO_ALIGNMENT

    @property
    def rejects(self) -> bool:
        """Return whether the Topology Manager is known to reject pods that it cannot align."""
        return all(each.policy in _REJECTING for each in self.alignments)

    def admits_cpus(self, steps: tuple[ContainerStep, ...]) -> bool | None:
        """Return whether the CPU Manager gives the containers their exclusive CPUs; None: unknown.

        With ``full-pcpus-only`` it rejects a number that does not fill physical cores, under every policy
        (``SMTAlignmentError``).
        """
        cpus = [each.cpus for each in steps if each.cpus]
        if not self.exclusive_cpus or self.full_cores is False or not cpus:
            return True
        if self.cpus_per_core is not None and not any(each % self.cpus_per_core for each in cpus):
            return True
        return False if self.full_cores and self.cpus_per_core else None

    def steps_of(
        self, plain: tuple[ContainerStep, ...], aligned: tuple[ContainerStep, ...]
    ) -> tuple[ContainerStep, ...]:
        """Return the containers with the resources that take part in the alignment. ``aligned``: with all resources."""
        if not aligned or not self.aligns:
            return plain
        return _aligned_steps(plain, aligned, self.exclusive_cpus is not False, self.pinned_memory is not False)


_REJECTING = {NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE}
NO_ALIGNMENT = (NumaAlignment(NumaPolicy.NONE),)
NO_TOPOLOGY_MANAGER = KubeletModel(NO_ALIGNMENT)


def possible_alignments(
    policy: NumaPolicy | None,
    *,
    pod_scope: bool | None = None,
    closest: bool | None = None,
    by_socket: bool | None = None,
) -> tuple[NumaAlignment, ...]:
    """Return the configurations that are possible with these facts; None: unknown.

    What ``restricted`` and ``single-numa-node`` admit, ``best-effort`` allocates in the same way. The option
    ``align-by-socket`` counts as off, its default, where it is unknown: if it counted as possible, no rejection for
    lack of exclusive CPUs could be predicted there. A kubelet with ``single-numa-node`` does not start with that option
    (``ValidateStaticPolicyOptions``).
    """
    if policy is NumaPolicy.NONE:
        return NO_ALIGNMENT
    scopes = (False, True) if pod_scope is None else (pod_scope,)
    modelled = policy or NumaPolicy.BEST_EFFORT
    sockets = by_socket is True and modelled is not NumaPolicy.SINGLE_NUMA_NODE
    found = tuple(NumaAlignment(modelled, scope, closest is not False, sockets) for scope in scopes)
    return found if policy else NO_ALIGNMENT + found


UNKNOWN_KUBELET = KubeletModel(possible_alignments(None))
Hints = tuple[tuple[int, bool], ...]  # masks of NUMA nodes, and whether each is preferred


class AlignmentRequest(NamedTuple):
    """The resources that a container, or a whole pod, requests at once, and the state of the node."""

    step: ContainerStep
    free: int  # GPUs
    reusable: int  # GPUs of init containers of the pod
    numa_nodes: tuple[NumaCapacity, ...] | None


@lru_cache(maxsize=1 << 12)
def numa_ids(shape: MachineShape, numa_nodes: tuple[NumaCapacity, ...] | None) -> tuple[int, ...]:
    """Return the NUMA nodes that take part, ascending."""
    return tuple(sorted({*shape.numa_gpus, *(each.id for each in numa_nodes or ())}))


def aligned_gpus(
    shape: MachineShape, alignment: NumaAlignment, request: AlignmentRequest
) -> tuple[tuple[int, tuple[NumaCapacity, ...] | None], ...]:
    """Return the possible results: the GPUs on the NUMA nodes, and what is left of their CPUs and memory.

    (): the kubelet rejects the pod. None as the rest: unknown.
    """
    ids = numa_ids(shape, request.numa_nodes)
    hints, known = _all_hints(shape, ids, request, by_socket=alignment.by_socket)
    everything = (1 << len(ids)) - 1
    masks = _merge(alignment, hints, everything)
    if not known:
        masks = _any_merge(alignment, hints, everything)
    if request.step.memory and request.numa_nodes is not None and not alignment.pod_scope:
        masks = [mask for mask in masks if _can_hold(request.numa_nodes, ids, mask, request.step.memory)]
    return tuple({(_gpus_on(shape, ids, mask), _rest(request, ids, mask, known=known)): None for mask in masks})


def _all_hints(
    shape: MachineShape, ids: tuple[int, ...], request: AlignmentRequest, *, by_socket: bool
) -> tuple[list[Hints], bool]:
    """Return the hints of the managers that take part, and whether these are all."""
    step, nodes = request.step, request.numa_nodes
    hints, known = [], not step.others
    if step.devices and shape.numa_gpus:
        hints.append(_gpu_hints(shape, ids, request))
    if step.cpus or step.memory:
        if nodes is None:
            known = False
        else:
            place = {node: at for at, node in enumerate(ids)}
            if step.cpus and by_socket and sum(each.cpus > 0 for each in nodes) > 1:
                known = False
            elif step.cpus:
                hints.append(_cpu_hints(nodes, place, step.cpus))
            if step.memory:
                hints.append(_memory_hints(nodes, place, step.memory))
    return hints, known


def _gpu_hints(shape: MachineShape, ids: tuple[int, ...], request: AlignmentRequest) -> Hints:
    """Return the sets of NUMA nodes with enough free GPUs that contain all reusable GPUs."""
    size, nodes = request.step.devices, _gpus_of_masks(shape, ids)
    reused = request.reusable & nodes[-1][1]
    fewest = min((mask.bit_count() for mask, gpus in nodes if gpus.bit_count() >= size), default=len(shape.numa_gpus))
    return tuple(
        (mask, mask.bit_count() == fewest)
        for mask, gpus in nodes
        if not reused & ~gpus and (reused | request.free & gpus).bit_count() >= size
    )


@lru_cache(maxsize=1 << 10)
def _gpus_of_masks(shape: MachineShape, ids: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the masks of the NUMA nodes with GPUs, the widest last, and the GPUs on them."""
    places = [at for at, node in enumerate(ids) if node in shape.numa_gpus]
    return tuple((mask, _gpus_on(shape, ids, mask)) for mask in _subsets(places))


def _cpu_hints(nodes: tuple[NumaCapacity, ...], place: dict[int, int], cpus: int) -> Hints:
    counts = {place[each.id]: each for each in nodes if each.cpus}

    def enough(count: Callable[[NumaCapacity], int]) -> Callable[[int], bool]:
        return lambda mask: sum(count(counts[at]) for at in member_places(mask)) >= cpus

    return _hints(list(counts), enough(lambda node: node.cpus), enough(lambda node: node.free_cpus))


def _memory_hints(nodes: tuple[NumaCapacity, ...], place: dict[int, int], memory: int) -> Hints:
    """Return the Memory Manager's hints: containers hold memory of single NUMA nodes or of one group, never both."""
    tables = {place[each.id]: each for each in nodes}
    groups = {at: union(1 << place[node] for node in each.group if node in place) for at, each in tables.items()}

    def fits(mask: int) -> bool:
        held = {groups[at] for at in member_places(mask) if groups[at]}
        single = mask.bit_count() == 1
        if any(group.bit_count() > 1 if single else group != mask for group in held):
            return False
        return sum(tables[at].free_memory for at in member_places(mask)) >= memory

    return _hints(list(tables), lambda mask: sum(tables[at].memory for at in member_places(mask)) >= memory, fits)


def _can_hold(nodes: tuple[NumaCapacity, ...], ids: tuple[int, ...], mask: int, memory: int) -> bool:
    """Return whether the Memory Manager finds the memory on these NUMA nodes, or on more (``Allocate``)."""
    place = {node: at for at, node in enumerate(ids)}
    found = [each for each, _ in _memory_hints(nodes, place, memory)]
    free = sum(each.free_memory for each in nodes if mask >> place[each.id] & 1)
    return mask in found if free >= memory else any(each & mask == mask for each in found)


def _hints(places: list[int], has_capacity: Callable[[int], bool], fits: Callable[[int], bool]) -> Hints:
    masks = _subsets(places)
    fewest = min((mask.bit_count() for mask in masks if has_capacity(mask)), default=len(places))
    return tuple((mask, mask.bit_count() == fewest) for mask in masks if fits(mask))


def _merge(alignment: NumaAlignment, hints: list[Hints], everything: int) -> list[int]:
    """Return the best combination of the hints; several where the distances decide; none: the pod is rejected."""
    single = alignment.policy is NumaPolicy.SINGLE_NUMA_NODE
    preferred = [{mask for mask, best in each if best and (not single or mask.bit_count() == 1)} for each in hints]
    same = set.intersection({everything} if not hints else preferred[0], *preferred[1:])
    if same:
        return _best(alignment, same)
    if alignment.policy in _REJECTING:
        return []
    narrowest = [min(mask.bit_count() for mask, _ in each) for each in hints if each]
    merged = {everything}
    for each in hints:
        merged = {one & other for one in merged for other, _ in each} if each else merged
    merged.discard(0)
    return _best(alignment, merged, max(narrowest, default=0)) if merged else [everything]


def _best(alignment: NumaAlignment, masks: set[int], count: int = 0) -> list[int]:
    """Return the masks of as many nodes as ``count``; else of the most below; else of the fewest."""
    sizes = {mask.bit_count() for mask in masks}
    size = max((each for each in sizes if each <= count), default=min(sizes))
    found = sorted(mask for mask in masks if mask.bit_count() == size)
    return found if alignment.closest and size > 1 else found[:1]


def _any_merge(alignment: NumaAlignment, hints: list[Hints], everything: int) -> list[int]:
    """Return all combinations that further, unknown hints may lead to."""
    if alignment.policy is NumaPolicy.BEST_EFFORT:
        return _subsets(list(member_places(everything)))
    single = alignment.policy is NumaPolicy.SINGLE_NUMA_NODE
    preferred = [{mask for mask, best in each if best and (not single or mask.bit_count() == 1)} for each in hints]
    return sorted(set.intersection(*preferred)) if preferred else [everything]


def _rest(
    request: AlignmentRequest, ids: tuple[int, ...], mask: int, *, known: bool
) -> tuple[NumaCapacity, ...] | None:
    """Return what is left of CPUs and memory. Known only where the container got them from one NUMA node."""
    step, nodes = request.step, request.numa_nodes
    if nodes is None or not (step.cpus or step.memory):
        return nodes
    chosen = next((each for each in nodes if 1 << ids.index(each.id) == mask), None)
    if not known or chosen is None or not step.holds_until_end:
        return None
    if chosen.free_cpus < step.cpus or chosen.free_memory < step.memory:
        return None
    left = chosen._replace(
        free_cpus=chosen.free_cpus - step.cpus,
        free_memory=chosen.free_memory - step.memory,
        group=(chosen.id,) if step.memory else chosen.group,
    )
    return tuple(left if each is chosen else each for each in nodes)


@lru_cache(maxsize=1 << 12)
def _gpus_on(shape: MachineShape, ids: tuple[int, ...], mask: int) -> int:
    return union(shape.numa_gpus.get(ids[at], 0) for at in member_places(mask))


def _subsets(places: Iterable[int]) -> list[int]:
    """Return all masks of these places but the empty one."""
    masks = [0]
    for at in places:
        masks += [mask | 1 << at for mask in masks]
    return masks[1:]


@lru_cache(maxsize=1 << 12)
def _aligned_steps(
    plain: tuple[ContainerStep, ...], aligned: tuple[ContainerStep, ...], cpus: bool, memory: bool
) -> tuple[ContainerStep, ...]:
    """Return the steps without what takes no part; the plain steps where nothing but GPUs does."""
    found = tuple(each._replace(cpus=each.cpus if cpus else 0, memory=each.memory if memory else 0) for each in aligned)
    taking_part = tuple(each for each in found if each.devices or each.cpus or each.memory)
    return (
        plain if all(each == ContainerStep(each.devices, each.holds_until_end) for each in taking_part) else taking_part
    )


def pod_steps(steps: Iterable[ContainerStep]) -> ContainerStep:
    """Return what the containers of a pod request at the time when they request the most (``PodLimits``)."""
    return ContainerStep(
        devices=_most_at_once((each.devices, each.holds_until_end) for each in steps),
        cpus=_most_at_once((each.cpus, each.holds_until_end) for each in steps),
        memory=_most_at_once((each.memory, each.holds_until_end) for each in steps),
        others=any(each.others for each in steps),
    )


def _most_at_once(counts: Iterable[tuple[int, bool]]) -> int:
    staying = most = 0
    for count, stays in counts:
        staying += count if stays else 0
        most = max(most, staying if stays else staying + count)
    return most
