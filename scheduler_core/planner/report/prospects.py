"""Find where a gang would be placed now, or what would have to change, by trial plans of the planner's own code. Pure.

A trial is a whole plan, so trials are few: without the reservations of others, one after the other; then without the
pods of whole nodes, in the order of the fewest GPUs or the earliest end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gputopo.crd.reservations import ReservationSpec
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_candidates import HoldCandidate, PodEnds, find_hold_nodes, node_deadlines
from scheduler_core.planner.leader.plan_task import PlanTask, ReservationNames, run_plan
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import Levels, NodeView, Unplaced
from scheduler_core.policy.profiles import Policies

TRIALS = 24  # of each kind


class PlanRules(NamedTuple):
    """The policies and topology levels of plans, and the time limit of trials."""

    policies: Policies
    levels: Levels
    over: Callable[[], bool]  # whether the time for trials has run out


class GangProspects(NamedTuple):
    """The result for a gang."""

    fits: ReservationSpec | None = None  # its placement now
    unplaced: Unplaced | None = None  # why it does not fit
    kept: tuple[ActiveReservation, ...] = ()  # reservations of others, without any one of which it would fit
    together: bool = False  # it would fit only without all of them
    never: Unplaced | None = None  # why it does not fit even if all other pods end; None: it does, or unknown
    eviction: HoldCandidate | None = None  # nodes whose pods would have to end


def find_prospects(view: PlannerView, gang: Gang, rules: PlanRules, now: float) -> GangProspects:
    """Return where the ``ready`` members of the gang would go. ``now``: seconds since 1970."""
    own, others = _counting(view, gang)
    trial = _Trial(view, gang, rules)
    table = view.cache.snapshot_without(own)
    found = trial.plan(table)
    if isinstance(found, ReservationSpec):
        return GangProspects(found)
    kept = _in_the_way(trial, others, lambda uids: view.cache.snapshot_without({*own, *uids}))
    if kept:
        return GangProspects(None, found, kept)
    if others and trial.fits(view.cache.snapshot_without({*own, *others})):
        return GangProspects(None, found, tuple(others.values()), together=True)
    never = _never(trial, view.cache.snapshot_without({*own, *others}), now)
    if never is not None:
        return GangProspects(None, found, never=never)
    return GangProspects(None, found, eviction=_eviction(trial, table, now))


def evictable_pods(table: ClusterSnapshot, name: str, besides: Iterable[str]) -> list[Occupant]:
    """Return the pods of a node that could end: no reserved places, and not ``besides``."""
    record = table.records[name]
    return [each for each in record.pods if each.uid not in record.reserved and each.uid not in set(besides)]


class _Trial(NamedTuple):
    view: PlannerView
    gang: Gang
    rules: PlanRules

    def plan(self, table: ClusterSnapshot, *, without_others: bool = False) -> ReservationSpec | Unplaced:
        """Return the plan that the planner would make; or would, if all pods without GPUs ended."""
        others = {} if without_others else self.view.loads.by_node
        task = PlanTask(
            ((QueuedGang(self.gang, self.gang.newest),),),
            NodeView(table, self.view.rules, self.rules.policies.policy_for, others=others),
            {},
            self.view.reservation_index.seats((self.gang.name,)),
            {},
            self.rules.levels,
            ReservationNames(self.gang.name.namespace, lambda: ""),
            self.rules.over,
            self.view.placed_members(),
        )
        found = run_plan(task)
        return found.created[0].spec if found.created else found.unplaced[self.gang.name]

    def fits(self, table: ClusterSnapshot) -> bool:
        """Return whether the gang fits; False when the time is over."""
        return not self.rules.over() and isinstance(self.plan(table), ReservationSpec)


def _counting(view: PlannerView, gang: Gang) -> tuple[set[str], Mapping[str, ActiveReservation]]:
    """Return the reservations of the gang, and those of others that reserve GPUs, by name."""
    counting = view.cache.reservations.active
    own = {
        uid for uid, each in counting.items() if (each.entry.namespace, each.reservation.spec.gang) == tuple(gang.name)
    }
    by_name = sorted(counting.items(), key=lambda each: (each[1].entry.namespace, each[1].entry.name))
    return own, {uid: each for uid, each in by_name if uid not in own and each.nodes}


def _in_the_way(
    trial: _Trial, others: Mapping[str, ActiveReservation], without: Callable[[Iterable[str]], ClusterSnapshot]
) -> tuple[ActiveReservation, ...]:
    """Return the reservations of others without any one of which the gang would fit."""
    return tuple(each for uid, each in list(others.items())[:TRIALS] if trial.fits(without([uid])))


# Nodes with such a reason may fit once their agents report, their hardware is repaired, or their network is known.
_UNCERTAIN = (Reason.UNKNOWN_TOPOLOGY, Reason.UNKNOWN_NODE, Reason.DEGRADED, Reason.ADMISSION)


def _never(trial: _Trial, table: ClusterSnapshot, now: float) -> Unplaced | None:
    """Return why the gang would not fit these nodes if all other pods ended; None: it would, or it is not certain."""
    if any(each.blocked for each in trial.gang.ready):
        return None
    own = {each.uid for each in trial.gang.placed}
    emptied = [
        after_evictions(record, evictable_pods(table, name, own))
        for name, record in table.records.items()
        if any(pod.uid not in own for pod in record.pods)
    ]
    found = trial.plan(with_records(table, emptied, now, trial.rules.policies.node_policy), without_others=True)
    if isinstance(found, ReservationSpec) or trial.rules.over():
        return None
    return None if {reason for _, reason in found.missing} & set(_UNCERTAIN) else found


def _eviction(trial: _Trial, table: ClusterSnapshot, now: float) -> HoldCandidate | None:
    """Return nodes that are enough if all their pods end; a node without allocated GPUs does not count."""
    view, policy = trial.view, trial.rules.policies.node_policy
    own = {each.uid for each in trial.gang.placed}

    def fits(names: Sequence[str]) -> Sequence[str] | None:
        emptied = [after_evictions(table.records[name], there[name]) for name in names]
        return names if trial.fits(with_records(table, emptied, now, policy)) else None

    there = {name: evictable_pods(table, name, own) for name in table.records}
    of = [each for each in node_deadlines(there, PodEnds(view.deadlines, Disruptions())) if each.gpus]
    if not of or fits([each.node for each in of]) is None:  # trials are expensive
        return None
    return find_hold_nodes(of, fits, tries=TRIALS)
