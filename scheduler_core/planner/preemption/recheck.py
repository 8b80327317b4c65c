"""Proves a planned preemption again: the cluster may have changed since the search. Pure.

The evictions of a preemption may take minutes, for example while a PodDisruptionBudget refuses one. Meanwhile a node
may be drained, a GPU lost, a member of the gang deleted, or a victim become protected. So the planner proves again that
the gang fits without the pods that are left, and that the policy still allows each unit of which no pod is evicted yet.
"""

from __future__ import annotations

from typing import NamedTuple

from gputopo.crd.reservations import PlannedEviction, PlannedMember
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.planner.preemption.model import PreemptionTask, VictimPod
from scheduler_core.planner.preemption.proof import FitProof
from scheduler_core.planner.preemption.units import find_units

NO_LONGER_FITS = "the gang would not fit any more, even without the pods that are left"


class PlannedPods(NamedTuple):
    """The evictions of a capacity hold that are left."""

    hold: str  # UID of the hold
    nodes: tuple[str, ...]  # that the hold names
    left: tuple[PlannedEviction, ...]  # pods that exist
    untouched: frozenset[str]  # names of units of which no pod is evicted, terminates or is gone
    # Namespaces whose pods changed their gangs during another preemption: that stops no eviction any more.
    tolerated: frozenset[str] = frozenset()


class EvictionProof(NamedTuple):
    """The result of a proof."""

    why_not: str | None  # why no further unit may be evicted, for people; None: the evictions that are left are proved
    seats: tuple[PlannedMember, ...] = ()  # of the gang, without the pods that are left
    changed: str | None = None  # the namespace whose pods have changed their gang: the only reason


def prove_evictions(planned: PlannedPods, task: PreemptionTask, inputs: UnitInputs) -> EvictionProof:
    """Prove the evictions that are left, or return why no further unit may be evicted."""
    if (protected := _protected_unit(planned, inputs)) is not None:
        return protected
    victims = [VictimPod(each.uid, each.namespace, each.name, each.node) for each in planned.left]
    there = [name for name in planned.nodes if name in task.view.rules]
    plan = FitProof(task).confirm(there, victims)
    return EvictionProof(NO_LONGER_FITS) if plan is None else EvictionProof(None, plan.seats)


def _protected_unit(planned: PlannedPods, inputs: UnitInputs) -> EvictionProof | None:
    """Return which untouched unit the policy protects by now, or which gang has changed since it was chosen."""
    known = find_units(inputs)
    units = {pod.uid: unit for unit in known.units for pod in unit.pods}
    for name, uids in _uids_by_unit(planned).items():
        if (why := known.protected.get(name)) is not None and not uids <= units.keys():
            return EvictionProof(f"{name} is protected by now: {why.value}")
        namespace = name.partition("/")[0]
        if namespace in planned.tolerated:
            continue
        changed = EvictionProof(f"the pods of {name} have changed", changed=namespace)
        if not uids <= units.keys():
            return changed
        # Several units may have one name: a gang, and a pod that is named like it.
        for unit in {units[uid].pods[0].uid: units[uid] for uid in uids}.values():
            pods = {pod.uid for pod in unit.pods if pod.devices}
            needed = {pod.uid for pod in unit.pods if not pod.is_spare}
            if not pods <= uids and (len(pods & uids) > unit.spare or needed & uids):
                return changed
    return None


def _uids_by_unit(planned: PlannedPods) -> dict[str, set[str]]:
    """Return the pods with GPUs of untouched units: the others may not be watched."""
    found: dict[str, set[str]] = {}
    for each in planned.left:
        if each.gpus and each.unit in planned.untouched:
            found.setdefault(each.unit, set()).add(each.uid)
    return found
