"""Search of the cheapest pods to evict so that a gang fits. Pure.

Units (gangs and single pods) are removed in order of cost until the planner places the gang; then each unit that can
be spared is put back, the most expensive first. Only a set that the planner itself has proved is a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputopo.render.wording import counted_noun
from scheduler_core.planner.packing.holdings import holdings_of
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.planner.preemption.model import (
    EvictionUnit,
    NoPreemption,
    PreemptionPlan,
    PreemptionTask,
    VictimPod,
)
from scheduler_core.planner.preemption.proof import FitProof

FITS_ALREADY = "the gang fits without evictions"
NO_UNITS = "the policy allows no running pod to be evicted for the gang"
NEVER_FITS = "the gang does not fit, even without all pods that may be evicted for it"


def search_preemption(task: PreemptionTask) -> PreemptionPlan | NoPreemption:
    """Return the cheapest units found that make the gang fit, or why none is evicted."""
    proof = FitProof(task)
    nodes = tuple(task.view.table.records)
    if not task.units:
        return NoPreemption(task.gang, NO_UNITS)
    if proof.plan_on(nodes, ()) is not None:
        return NoPreemption(task.gang, FITS_ALREADY, proof.plans)
    found = _first_fit(sorted(task.units, key=_order), nodes, proof)
    kept = None if found is None else _without_spare_units(*found, nodes, proof)
    final = None if kept is None else proof.plan_on_all(_pods(kept))
    if kept is None or final is None:
        reason = f"gave up after {counted_noun(proof.plans, 'plan')}" if proof.is_over else NEVER_FITS
        return NoPreemption(task.gang, reason, proof.plans, proof.is_over)
    held = holdings_of(final[0], task.gang.ready, final[1])
    return PreemptionPlan(task.gang, tuple(kept), held, proof.plans, proof.is_over)


def _order(unit: EvictionUnit) -> tuple[float, int, str]:
    return unit.price * unit.gpu_hours, len(unit.pods), unit.name


def _pods(units: Iterable[EvictionUnit]) -> list[VictimPod]:
    return [pod for unit in units for pod in unit.pods]


def _first_fit(
    units: Sequence[EvictionUnit], nodes: Sequence[str], proof: FitProof
) -> tuple[list[EvictionUnit], GangPlan] | None:
    """Return the shortest run of the first units that makes the gang fit, by doubling and bisecting its length."""
    low, high = 1, 1
    while (plan := proof.plan_on(nodes, _pods(units[:high]))) is None:
        if high == len(units) or proof.is_over:
            return None
        low, high = high + 1, min(2 * high, len(units))
    best = high, plan
    while low < high:
        middle = (low + high) // 2
        found = proof.plan_on(nodes, _pods(units[:middle]))
        low, high = (middle + 1, high) if found is None else (low, middle)
        best = best if found is None else (middle, found)
    return list(units[: best[0]]), best[1]


def _without_spare_units(
    units: Sequence[EvictionUnit], plan: GangPlan, nodes: Sequence[str], proof: FitProof
) -> list[EvictionUnit]:
    """Return the units that are needed: units on nodes that the plan does not use are not, then one after the other."""
    kept = _on_used_nodes(units, plan)
    for unit in sorted(kept, key=_order, reverse=True):
        if unit not in kept:
            continue
        fewer = [each for each in kept if each is not unit]
        found = proof.plan_on(nodes, _pods(fewer)) if fewer else None
        if found is not None:
            kept = _on_used_nodes(fewer, found)
    return kept


def _on_used_nodes(units: Iterable[EvictionUnit], plan: GangPlan) -> list[EvictionUnit]:
    used = {seat.node for seat in plan.seats}
    return [unit for unit in units if any(pod.node in used for pod in unit.pods)]
