"""Backfill in a term of leadership: which gangs may use held capacity, and when they yield it. No I/O.

Places on held capacity name the gang that it is held for (``spec.backfill`` of their reservation), so that each planner
that leads knows them. As soon as that gang would fit without their pods, the pods are evicted for it: its hold is
replaced by a hold with a preemption, whose protocol does the rest (``commit/eviction.py``). Pods that no deadline ends
are evicted so early that their devices are free when that gang is expected to start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from math import inf
from typing import NamedTuple

from gputopo.crd.reservations import ReservationState
from gputopo.timestamps import parse_timestamp
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.cache.node_record import is_hold
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.disruption import ends_within
from scheduler_core.planner.gang.gang import FINISHED_PHASES
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.capacity_holds import CapacityHolds
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.equal_requests import ignored_holds
from scheduler_core.planner.leader.expected_ends import ExpectedEnds
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.plan_task import BackfillTable, is_batch
from scheduler_core.planner.leader.preemption_search import PreemptionSearchResult
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.backfill import RELEASE_S, backfill_of, hold_start, with_claim, yield_at
from scheduler_core.planner.preemption.cost import gpu_hours
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionPlan, VictimPod
from scheduler_core.policy.limits import BackfillMode

RULE = "backfill"  # in place of a rule of the policy file
EVERY_S = 1.0  # between two searches
MAX_TRIED = 4  # holds whose capacity one plan tries for a gang
PAUSE_FACTOR = 3.0  # after a search, none is started for three times its CPU time


class YieldRequest(NamedTuple):
    """A gang with a hold, and the pods on its capacity that would be evicted for it."""

    waiting: QueuedGang
    units: tuple[EvictionUnit, ...]
    ending: tuple[VictimPod, ...] = ()  # other pods that are expected to end while these terminate


class _LastSearch(NamedTuple):
    generation: int  # of the snapshot
    at: float  # monotonic seconds
    is_ahead: bool = False  # with pods that were expected to end


class Backfills:
    """Backfill in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, queue: GangQueue, holds: CapacityHolds, context: TermContext) -> None:
        self._view, self._queue, self._holds, self._context = view, queue, holds, context
        self._searched: dict[GangName, _LastSearch] = {}
        self._next_search = 0.0  # monotonic seconds

    def tables(self, batches: Iterable[tuple[QueuedGang, ...]]) -> Mapping[GangName, tuple[BackfillTable, ...]]:
        """Return, by gang, the snapshots without one hold each whose capacity the gang may use for a limited time.

        At most ``MAX_TRIED``, the hold with the latest estimate first: its capacity can be used for the longest time.
        """
        policies, view = self._context.policies(), self._view
        holds = self._holds.open_holds()
        if policies.backfill.mode is BackfillMode.OFF or not holds:
            return {}
        now, found = self._context.clock.wall(), dict[GangName, tuple[BackfillTable, ...]]()
        ends = ExpectedEnds(view, policies.preemption, now)
        variant_without = cache(view.variant_without)
        estimates = dict(self._estimates(holds, ends))
        with_estimate = (hold for hold in holds if estimates.get(hold.reservation.key) is not None)
        latest_first = sorted(with_estimate, key=lambda hold: -(estimates[hold.reservation.key] or 0.0))
        for gang in (batch[0].gang for batch in batches if not is_batch(batch)):
            timeout_s = min(gang.bind_timeout_s, policies.limits.max_timeout_s)
            usable: list[BackfillTable] = []
            claim_s = ends.run_of(gang) if policies.backfill.mode is BackfillMode.ESTIMATE else None
            bounded = gang if claim_s is None else with_claim(gang, claim_s)
            for hold in latest_first:
                uid = hold.reservation.key
                if gang.priority > hold.priority or gang.name == hold.gang or len(usable) == MAX_TRIED:
                    continue
                backfill = backfill_of(bounded, hold.gang, estimates[uid], timeout_s, policies.backfill, now)
                if backfill is not None:
                    usable.append(BackfillTable(variant_without(ignored_holds(gang, holds) | {uid}), backfill))
            if usable:
                found[gang.name] = tuple(usable)
        return found

    def next_yield(self, now: float, over: Collection[str] = ()) -> YieldRequest | None:
        """Return the next gang to search for whose hold is used by backfilled pods: the one searched for least lately.

        ``now``: monotonic seconds; ``over``: UIDs of holds whose evictions are over without a start of the gang.
        """
        if now < self._next_search:
            return None
        holds = [
            each for each in self._holds.open_holds() if each.spec.preemption is None or each.reservation.key in over
        ]
        self._searched = {name: each for name, each in self._searched.items() if self._queue.get_queued(name)}
        if not holds:  # then no snapshot is computed
            self._next_search = now + EVERY_S
            return None
        generation, in_progress = self._view.cache.snapshot.generation, None
        backfilled = self._reservations()
        never = _LastSearch(-1, float("-inf"))
        for hold in sorted(holds, key=lambda each: self._searched.get(each.gang, never).at):
            waiting, last = self._queue.get_queued(hold.gang), self._searched.get(hold.gang, never)
            reservations = backfilled.get(hold.gang.title, ())
            if waiting is None or waiting.unfit_state is None or not reservations:
                continue
            ending = self._ending_before(hold, reservations)
            if last.generation == generation and last.is_ahead == bool(ending):
                continue
            in_progress = in_progress or self._view.in_progress()
            units = tuple(self._units(reservations, hold.priority))
            if units and in_progress.is_free(waiting.gang):
                self._searched[hold.gang] = _LastSearch(generation, now, bool(ending))
                return YieldRequest(waiting, units, ending)
        self._next_search = now + EVERY_S
        return None

    def apply_result(self, result: PreemptionSearchResult, now: float) -> CreateReservation | None:
        """Return the hold with evictions to create; None: the gang would not fit without the backfilled pods."""
        self._next_search = now + max(EVERY_S, PAUSE_FACTOR * result.cpu_s)
        waiting = self._queue.get_queued(result.found.gang.name)
        if waiting is None or not self._view.in_progress().is_free(waiting.gang):
            return None
        if isinstance(result.found, PreemptionPlan) and result.create is not None:
            self._context.executor.report_preemption("yield", result.found)
            return result.create
        return None

    def gpus_in_use(self) -> int:
        """Return the number of devices of running pods on capacity that is held for other gangs."""
        holders = {each.gang.title for each in self._holds.open_holds()}
        found = self._reservations() if holders else {}
        seats = (seat for holder in holders for each in found.get(holder, ()) for seat in each.spec.seats)
        members = (self._view.gang_members.get_member(seat.uid) for seat in seats)
        running = [each for each in members if each is not None and each.node is not None and _is_running(each)]
        return sum(number for each in running for _, number in each.devices)

    def _estimates(self, holds: Iterable[CapacityHold], ends: ExpectedEnds) -> Iterator[tuple[str, float | None]]:
        """Yield until when each hold may be used, by its UID. Pods are already evicted for a hold that is left out.

        That is when its gang can start by deadlines of pods, or earlier, as pods say. Backfilled pods count as gone:
        they are evicted once the gang would fit without them.
        """
        table, deadline_of = self._view.cache.snapshot, self._view.deadlines.deadline_of
        is_enforced = self._context.policies().backfill.mode is BackfillMode.DEADLINE
        backfilled = self._reservations()
        for hold in holds:
            if hold.spec.preemption is None:
                own = _seated(backfilled.get(hold.gang.title, ()))
                if is_enforced and hold_start(hold.spec.held, table, deadline_of, own) is None:
                    continue
                yield hold.reservation.key, hold_start(hold.spec.held, table, ends.end_of, own)

    def _ending_before(self, hold: CapacityHold, reservations: Iterable[ReservationUpdate]) -> tuple[VictimPod, ...]:
        """Return the pods on held capacity that end by the time of the hold, if backfilled pods must yield now for it.

        That is so for backfilled pods that no deadline ends in time. What is not enforced for them need not be enforced
        for the others either: there the time of the hold is what the pods say, but not before the time that the
        backfilled gangs were given. Else the owner of a pod could have them evicted by a claim that is not true.
        """
        own, table = _seated(reservations), self._view.cache.snapshot
        records = [record for each in hold.spec.held if (record := table.records.get(each.node))]
        pods = {pod.uid: (record.name, pod) for record in records for pod in record.pods if not is_hold(pod.uid)}
        yielding = [pod for uid, (_, pod) in pods.items() if uid in own]
        end_of = self._view.deadlines.deadline_of
        if any(end_of(pod) is None for pod in yielding):
            end_of = ExpectedEnds(self._view, self._context.policies().preemption, self._context.clock.wall()).end_of
        limit = hold_start(hold.spec.held, table, end_of, own)
        if limit is not None and limit != -inf:
            given = max((_given_until(each) for each in reservations), default=-inf)
            enforced = hold_start(hold.spec.held, table, self._view.deadlines.deadline_of, own)
            limit = max(limit, given if enforced is None else min(given, enforced))
        if limit is None or limit == -inf or not any(self._must_yield(pod, limit) for pod in yielding):
            return ()
        return tuple(
            VictimPod(uid, pod.namespace, pod.name, node, pod.profile.device_request.totals)
            for uid, (node, pod) in pods.items()
            if uid not in own and (at := end_of(pod)) is not None and at <= limit
        )

    def _must_yield(self, pod: Occupant, limit: float) -> bool:
        """Return whether a backfilled pod is evicted now, because no deadline ends it in time."""
        state, deadline = self._view.disruptions.pod(pod.uid), self._view.deadlines.deadline_of(pod)
        if state is None or ends_within(state.grace_s, state.gone_by, self._context.clock.wall()):
            return False
        is_late = deadline is None or deadline + state.grace_s + RELEASE_S > limit
        return is_late and self._context.clock.wall() >= yield_at(limit, state.grace_s)

    def _reservations(self) -> dict[str, list[ReservationUpdate]]:
        """Return the reservations of backfilled gangs, by the gang whose capacity they use."""
        found: dict[str, list[ReservationUpdate]] = {}
        for each in self._view.reservations.values():
            if each.spec.backfill is not None:
                found.setdefault(each.spec.backfill.gang, []).append(each)
        return found

    def _units(self, reservations: Iterable[ReservationUpdate], priority: int) -> Iterator[EvictionUnit]:
        """Yield the backfilled gangs that run, each as a whole. ``priority``: of the hold, the highest of a victim.

        The priority of a gang is the lowest of its members with GPUs, as in the queue.
        """
        for each in reservations:
            found = (self._view.gang_members.get_member(seat.uid) for seat in each.spec.seats)
            members = [one for one in found if one is not None and one.phase not in FINISHED_PHASES]
            pods = [pod for one in members if (pod := self._victim(one)) is not None]
            starting = each.status.state is ReservationState.COMMITTED and any(
                one.node is None and one.devices and not one.is_terminating for one in members
            )
            own = min((one.priority for one in members if one.devices), default=0)
            if pods and not starting and own <= priority:
                name = f"{each.namespace}/{each.spec.gang}"
                yield EvictionUnit(name, tuple(pods), rule=RULE, reason="backfilled", key=name)

    def _victim(self, member: Member) -> VictimPod | None:
        state, now = self._view.disruptions.pod(member.uid), self._context.clock.wall()
        if member.node is None or state is None or ends_within(state.grace_s, state.gone_by, now):
            return None
        run_s = max(0.0, now - (now if state.started is None else state.started))
        hours = gpu_hours(sum(number for _, number in member.devices), run_s)
        of_pod = member.uid, member.namespace, member.name, member.node, member.devices
        return VictimPod(*of_pod, hours, grace_s=state.grace_s)


def _seated(reservations: Iterable[ReservationUpdate]) -> set[str]:
    return {seat.uid for each in reservations for seat in each.spec.seats}


def _given_until(reservation: ReservationUpdate) -> float:
    """Return when the holder was expected to start, as of the beginning of the backfill."""
    backfill = reservation.spec.backfill
    at = None if backfill is None else parse_timestamp(backfill.until)
    return -inf if at is None else at


def _is_running(member: Member) -> bool:
    return not member.is_terminating and member.phase not in FINISHED_PHASES
