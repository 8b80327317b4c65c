"""The hard constraints on the shape of a set of GPUs, checked against the worst set that may be allocated. Pure.

Each rule returns None where its constraint holds for every set, or where the pod has no such constraint. Where a fact
is not known, it returns ``UNKNOWN_TOPOLOGY`` rather than a guess.
"""

from __future__ import annotations

from collections.abc import Callable

from gputopo.labels.reasons import Reason
from gputopo.model import Interconnect, PcieDistance
from gputopo.paths import PathKind
from scheduler_core.allocation.gpu_sets import Sets, SomeSet, single_bits
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.evaluation.possible_gpus import candidate_sets, possible_rings
from scheduler_core.request.pod_request import Constraints, Strength

ShapeRule = Callable[[Constraints, MachineShape, Sets], Reason | None]
_BY_DISTANCE = {distance: place for place, distance in enumerate(PcieDistance)}  # nearest first
SHAPE_REASONS = frozenset(
    {Reason.ISLAND, Reason.INTERCONNECT, Reason.BANDWIDTH, Reason.NUMA, Reason.PCIE_DISTANCE, Reason.NIC}
)  # that a known set may violate


def island(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require all GPUs in one NVLink island."""
    if constraints.island is not Strength.REQUIRED:
        return None
    return _worst_reason(_in_one_island(shape, sets), Reason.ISLAND)


def interconnect(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require the requested interconnect for every hop of the ring through the GPUs."""
    if constraints.interconnect is None:
        return None
    good = (
        {PathKind.NVSWITCH}
        if constraints.interconnect is Interconnect.NVSWITCH
        else {PathKind.NVSWITCH, PathKind.NVLINK}
    )
    kinds = {ring.kind for ring in possible_rings(shape, sets)}
    return _worst_reason([None if kind is PathKind.UNKNOWN else kind in good for kind in kinds], Reason.INTERCONNECT)


def parallel(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require each tensor-parallel group in one island. Groups are consecutive by index, as programs number GPUs."""
    degree = constraints.parallel
    if degree is None:
        return None
    if isinstance(sets, SomeSet) and shape.summary is not None:
        return _worst_reason([shape.summary.in_one_island(degree)], Reason.ISLAND)
    if isinstance(sets, SomeSet):  # the groups cannot be known
        return _worst_reason([shape.is_one_island(sets.among)], Reason.ISLAND)
    groups = {group for mask in sets.masks for group in _groups(mask, degree)}
    return _worst_reason([shape.is_one_island(group) for group in groups], Reason.ISLAND)


def bandwidth(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require a ring over NVLink that is at least as fast as requested."""
    least = constraints.min_gbps
    if least is None:
        return None
    satisfied = []
    for ring in possible_rings(shape, sets):
        known = ring.kind is not PathKind.UNKNOWN and (ring.kind is PathKind.PCIE or ring.gbps is not None)
        satisfied.append(ring.kind is not PathKind.PCIE and (ring.gbps or 0.0) >= least if known else None)
    return _worst_reason(satisfied, Reason.BANDWIDTH)


def numa(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require all GPUs on one NUMA node."""
    if constraints.numa is not Strength.REQUIRED:
        return None
    several = [mask for mask in candidate_sets(sets) if mask.bit_count() > 1]
    if isinstance(sets, SomeSet) and shape.summary is not None and shape.count_numa_nodes(sets.among) is None:
        return _worst_reason([shape.summary.on_one_numa_node(sets.size)], Reason.NUMA)
    return _worst_reason([shape.is_on_one_numa_node(mask) for mask in several], Reason.NUMA)


def pcie_distance(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Require that no two GPUs are farther apart on PCIe than requested."""
    limit = constraints.max_pcie_distance
    if limit is None:
        return None
    found = [shape.max_pcie_distance(mask) for mask in candidate_sets(sets) if mask.bit_count() > 1]
    near = [None if each is None else _BY_DISTANCE[each] <= _BY_DISTANCE[limit] for each in found]
    return _worst_reason(near, Reason.PCIE_DISTANCE)


def nic(
    constraints: Constraints, shape: MachineShape, sets: Sets, busy_nics: int = 0, pending_nics: int = 0
) -> Reason | None:
    """Require a NIC on the NUMA node of each GPU.

    ``busy_nics``: held by pods, by place in ``topology.nics``. ``pending_nics``: how many more pods have or will get.
    """
    if constraints.nic is not Strength.REQUIRED:
        return None
    near = shape.gpus_near_nics(busy_nics, pending_nics)
    return _worst_reason([None if near is None else mask & ~near == 0 for mask in candidate_sets(sets)], Reason.NIC)


SHAPE_RULES: tuple[ShapeRule, ...] = (island, interconnect, parallel, bandwidth, numa, pcie_distance, nic)


def first_violation(constraints: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Return the reason of the first constraint that some set violates, or may violate."""
    return next((reason for rule in SHAPE_RULES if (reason := rule(constraints, shape, sets)) is not None), None)


def _in_one_island(shape: MachineShape, sets: Sets) -> list[bool | None]:
    """Return whether each set lies in one island. Of GPUs that labels describe, only the number in a set matters."""
    if isinstance(sets, SomeSet) and shape.summary is not None and shape.islands is None:
        return [shape.summary.in_one_island(sets.size)]
    if shape.islands is not None and shape.is_one_island(sets.among):  # as on machines with NVSwitches
        return [True]
    return [shape.is_one_island(mask) for mask in candidate_sets(sets)]


def _groups(mask: int, degree: int) -> list[int]:
    members = single_bits(mask)
    return [sum(members[at : at + degree]) for at in range(0, len(members), degree)]


def _worst_reason(satisfied: list[bool | None], otherwise: Reason) -> Reason | None:
    """Return the reason if a set violates the constraint, else ``UNKNOWN_TOPOLOGY`` if a set is unknown."""
    if False in satisfied:
        return otherwise
    return Reason.UNKNOWN_TOPOLOGY if None in satisfied else None
