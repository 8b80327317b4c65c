"""Required wishes about the shape of a set of GPUs, judged by the worst set that may come out. Pure.

Each rule answers None where its wish holds for every set, or where there is no such wish. Where a fact is not known the
answer is ``UNKNOWN_TOPOLOGY``: less knowledge, never wrong knowledge.
"""

from __future__ import annotations

from collections.abc import Callable

from gputopo.labels.reasons import Reason
from gputopo.model import Interconnect
from gputopo.paths import PathKind
from scheduler_core.allocation.gpu_sets import Sets, SomeSet, single_bits
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.evaluation.possible_gpus import candidate_sets, possible_rings
from scheduler_core.request.pod_request import Constraints, Strength

ShapeRule = Callable[[Constraints, MachineShape, Sets], Reason | None]
SHAPE_REASONS = frozenset({Reason.ISLAND, Reason.INTERCONNECT, Reason.BANDWIDTH, Reason.NUMA})  # what a set may break


def island(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """All GPUs in one NVLink island."""
    if wishes.island is not Strength.REQUIRED:
        return None
    return _worst_reason([shape.is_one_island(mask) for mask in candidate_sets(sets)], Reason.ISLAND)


def interconnect(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """No hop of the ring through the GPUs over less than what is asked."""
    if wishes.interconnect is None:
        return None
    good = {PathKind.NVSWITCH} if wishes.interconnect is Interconnect.NVSWITCH else {PathKind.NVSWITCH, PathKind.NVLINK}
    kinds = {ring.kind for ring in possible_rings(shape, sets)}
    return _worst_reason([None if kind is PathKind.UNKNOWN else kind in good for kind in kinds], Reason.INTERCONNECT)


def parallel(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """Each tensor-parallel group in one island: its members are neighbours by index, as programs count GPUs."""
    degree = wishes.parallel
    if degree is None:
        return None
    if isinstance(sets, SomeSet):  # nobody can say who will be neighbours
        return _worst_reason([shape.is_one_island(sets.among)], Reason.ISLAND)
    groups = {group for mask in sets.masks for group in _groups(mask, degree)}
    return _worst_reason([shape.is_one_island(group) for group in groups], Reason.ISLAND)


def bandwidth(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """The ring through the GPUs is over NVLink and at least as fast as asked."""
    least = wishes.min_gbps
    if least is None:
        return None
    held = []
    for ring in possible_rings(shape, sets):
        known = ring.kind is not PathKind.UNKNOWN and (ring.kind is PathKind.PCIE or ring.gbps is not None)
        held.append(ring.kind is not PathKind.PCIE and (ring.gbps or 0.0) >= least if known else None)
    return _worst_reason(held, Reason.BANDWIDTH)


def numa(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """All GPUs on one NUMA node."""
    if wishes.numa is not Strength.REQUIRED:
        return None
    counts = [shape.count_numa_nodes(mask) for mask in candidate_sets(sets) if mask.bit_count() > 1]
    return _worst_reason([None if count is None else count == 1 for count in counts], Reason.NUMA)


SHAPE_RULES: tuple[ShapeRule, ...] = (island, interconnect, parallel, bandwidth, numa)


def first_violation(wishes: Constraints, shape: MachineShape, sets: Sets) -> Reason | None:
    """The first required wish that some set breaks, or that nobody can vouch for."""
    return next((reason for rule in SHAPE_RULES if (reason := rule(wishes, shape, sets)) is not None), None)


def _groups(mask: int, degree: int) -> list[int]:
    members = single_bits(mask)
    return [sum(members[at : at + degree]) for at in range(0, len(members), degree)]


def _worst_reason(held: list[bool | None], otherwise: Reason) -> Reason | None:
    """What is known to break outweighs what is not known."""
    if False in held:
        return otherwise
    return Reason.UNKNOWN_TOPOLOGY if None in held else None
