"""Decides what is planned next, on which snapshot, and which pods are released without a place. No I/O.

One plan runs at a time. A search for a capacity hold, for one gang at a time, runs beside it: it may take longer than
other gangs should wait.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from scheduler_core.planner.commit.actions import CheckBudgets, CreateReservation, ReleasePod, RequestNodes
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.backfills import Backfills, YieldRequest
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.capacity_holds import CapacityHolds, HoldRequest, nodes_of_other_holds
from scheduler_core.planner.leader.changed_nodes import ChangedNodes, PlanState
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.equal_requests import ignored_holds, sharing_keys
from scheduler_core.planner.leader.eviction_checks import CheckRequest, EvictionChecks
from scheduler_core.planner.leader.forbidden_units import ForbiddenNames
from scheduler_core.planner.leader.hand_over import hand_overs
from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask
from scheduler_core.planner.leader.plan_task import PlanResult, PlanTask, ReservationNames, options_of
from scheduler_core.planner.leader.preemption_search import PreemptionSearch, PreemptionSearchResult
from scheduler_core.planner.leader.preemptions import Preemptions
from scheduler_core.planner.leader.provisioning import NodeRequests
from scheduler_core.planner.leader.queue import QueuedGang, TrialRules, fit_inputs
from scheduler_core.planner.leader.queue_order import QueueOrder
from scheduler_core.planner.leader.shared_searches import SharingRules
from scheduler_core.planner.leader.view import PlannerView, SeenNodes
from scheduler_core.planner.packing.placed_pods import ChangedPods, PlacedMember
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.policy.limits import BackfillMode
from scheduler_core.policy.preemption import PreemptionMode

PLAN_S = 1.0  # for one task
_RETRY_SHARE = 0.5  # of this time for gangs that did not fit before: the rest is for gangs that were never tried
_RETRY_UNPLACED_S = 0.5  # between two plans of gangs that did not fit
# Between two plans that find the reasons of gangs that still do not fit again: longer where this takes long.
REASONS_S, REASONS_SHARE = 5.0, 1 / 200  # of a core
_FULL_PASS_S = 5.0  # between two passes that try all gangs that did not fit, to update their reasons
_BATCH = 256  # single pods in a reservation
_BEYOND_LIMITS_S = 5.0  # between two searches for single pods to release among the gangs beyond the limits: any number


class PlanScheduler:
    """Starts plans and hold searches in one term of leadership. For one thread."""

    def __init__(self, context: TermContext, view: PlannerView, backlog: GangBacklog) -> None:
        self.holds = CapacityHolds(view, backlog.queue, context)
        self.preemptions = Preemptions(view, backlog.queue, self.holds, context)
        self.backfills = Backfills(view, backlog.queue, self.holds, context)
        self.checks = EvictionChecks(view, backlog.queue, self.holds, context)
        self._context, self._view, self._backlog = context, view, backlog
        self._node_requests = NodeRequests(context.config.provisioning_class)
        self._is_planning = False
        self._is_searching_hold = False
        self._not_before = 0.0  # monotonic seconds: for gangs that did not fit
        self._planned_state: Hashable = None
        # What decides whether requests are equal, in the last plan: the policy, and members of other gangs.
        self._plan_inputs: tuple[object, tuple[PlacedMember, ...]] = (None, ())
        self._planned: Mapping[GangName, Gang] = {}  # the gangs of the running plan, as they were when it began
        self._next_beyond_limits = 0.0  # monotonic seconds
        self._next_reasons = 0.0  # monotonic seconds
        self._next_full_pass = 0.0  # monotonic seconds
        self._is_full_pass = False  # the running plan
        self._resume_at: QueueOrder | None = None
        self._seen_nodes: SeenNodes | None = None  # by the last plan
        self._changed_nodes = ChangedNodes()
        self._noted_nodes: SeenNodes | None = None  # by ``_changed_nodes``

    def start_next_plan(self, now: float) -> None:
        """Start the next plan and the next hold search, unless a plan is not listed yet."""
        if self._view.observations.created:
            return
        executor = self._context.executor
        if not self._is_searching_hold and (to_check := self.checks.next_check()) is not None:
            self._is_searching_hold = True
            executor.start_preemption_search(self._check(to_check, now))
        elif (
            not self._is_searching_hold
            and (to_yield := self.backfills.next_yield(now, self.preemptions.over)) is not None
        ):
            self._is_searching_hold = True
            executor.start_preemption_search(self._yield_search(to_yield, now))
        elif not self._is_searching_hold and (request := self._next_hold_request(now)) is not None:
            self._is_searching_hold = True
            executor.start_hold_search(self._hold_task(request, now))
        elif not self._is_searching_hold and (waiting := self.preemptions.next_gang(now)) is not None:
            self._is_searching_hold = True
            executor.start_preemption_search(self._shared_search(waiting, now))
        if self._is_planning:
            return
        if now < self._not_before and not self._backlog.queue.has_untried(now):
            executor.schedule_round(self._not_before - now)
            return
        sharing_key, is_full_pass = self._sharing_keys(now), now >= self._next_full_pass
        if batches := self._batches(now, sharing_key, every=is_full_pass):
            self._is_planning, self._planned_state = True, self._view.plan_state(now)
            self._is_full_pass = is_full_pass
            self._planned = {each.gang.name: each.gang for batch in batches for each in batch}
            executor.start_plan(self._plan_task(batches, now, sharing_key))

    def apply_plan(self, result: PlanResult, now: float) -> None:
        """Record which gangs were placed, and which were not. A gang that changed since then is tried again."""
        self._is_planning, self._resume_at = False, result.resume_at
        if self._is_full_pass and result.resume_at is None:  # else the next plan continues it
            self._next_full_pass = now + (_RETRY_UNPLACED_S if result.created else _FULL_PASS_S)
        self._next_reasons = max(self._next_reasons, now + result.reasons_s / REASONS_SHARE)
        for name, unplaced in result.unplaced.items():
            waiting = self._backlog.queue.get_queued(name)
            if waiting is not None and fit_inputs(waiting.gang) == fit_inputs(self._planned[name]):
                self._backlog.mark_unplaced(name, unplaced, self._planned_state, result.request_ids.get(name))
        for name in result.gangs:
            self._backlog.unplaced.pop(name, None)
        if not result.created:
            self._not_before = now + _RETRY_UNPLACED_S

    def apply_hold_result(self, result: HoldResult, now: float) -> CreateReservation | None:
        """Return the hold to create."""
        self._is_searching_hold = False
        return self.holds.apply_result(result, now)

    def apply_preemption_result(
        self, result: PreemptionSearchResult, now: float
    ) -> CreateReservation | CheckBudgets | None:
        """Return the hold with evictions to create, or the check of a dry run."""
        self._is_searching_hold = False
        if result.is_check:
            self.checks.apply_result(result.no_eviction, result.seats, now, result.changed)
            if result.no_eviction is not None:
                self.preemptions.allow_search_again(result.found.gang, now)
            return None
        if result.is_yield:
            return self.backfills.apply_result(result, now)
        return self.preemptions.apply_result(result, now)

    def due_node_requests(self, now: float) -> Iterator[RequestNodes]:
        """Yield the requests for nodes for gangs that do not fit. ``now``: monotonic seconds."""
        if self._context.config.provisioning_class is not None and self._backlog.queue.has_queued(lambda _: True):
            is_free = self._view.in_progress().is_free
            yield from self._node_requests.due_requests(self._backlog.queue.ordered(), is_free, now)

    def due_hand_overs(self) -> Iterator[ReleasePod]:
        """Yield the pods whose rules only kube-scheduler can follow, to be released to it."""
        queue = self._backlog.queue
        if not queue.has_hand_over_candidates:
            return
        in_progress = self._view.in_progress()
        yield from (release for gang, release in hand_overs(queue.ordered()) if in_progress.is_free(gang))

    def due_releases(self, now: float) -> Iterator[ReleasePod]:
        """Yield the pods that waited too long, to be released to ordinary scheduling. ``now``: monotonic seconds."""
        config, queue = self._context.config, self._backlog.queue
        limits = [each for each in (config.gate_timeout_s, config.release_after_s) if each is not None]
        if not limits or not queue.has_waited_since(now - min(limits)):
            return
        in_progress, beneficiaries = self._view.in_progress(), self.preemptions.beneficiaries
        waiting_gangs: Iterable[QueuedGang] = queue.ordered()
        if now >= self._next_beyond_limits:
            self._next_beyond_limits = now + _BEYOND_LIMITS_S
            waiting_gangs = chain(waiting_gangs, queue.beyond_limits())
        for waiting in waiting_gangs:
            gang, is_single = waiting.gang, is_single_pod_gang(waiting.gang.name)
            limit = config.gate_timeout_s if is_single else config.release_after_s
            # A single pod is released whatever it waits for; a gang only if it was planned and fits nowhere.
            is_due = limit is not None and now - waiting.newest_seen_at >= limit
            if not is_due or not (is_single or waiting.unfit_state is not None):
                continue
            if gang.name in beneficiaries or not in_progress.is_free(gang):
                continue
            unplaced = self._backlog.unplaced.get(gang.name)
            reason = f"no place within {limit:g} s" if unplaced is None else f"{unplaced.reason}, for {limit:g} s"
            policy = "gate-timeout" if is_single else "unplaceable"
            yield from (ReleasePod(member, reason, policy) for member in gang.ready)

    def _batches(
        self, now: float, sharing_key: Callable[[Gang], frozenset[str] | None], *, every: bool
    ) -> tuple[tuple[QueuedGang, ...], ...]:
        """Return what to plan now. If no gang is queued, no node state is computed."""
        queue, in_progress = self._backlog.queue, self._view.in_progress()
        if not queue.has_queued(in_progress.is_free):
            return ()
        limits = self._context.policies().limits

        def is_wanted(gang: Gang) -> bool:
            if gang.unplanned or not in_progress.is_free(gang):
                return False
            return in_progress.limit_reached(gang.name.namespace, limits) is None

        self._drop_outdated_results()
        holders = {each.gang for each in self.holds.open_holds()}
        state = self._view.plan_state(now)
        rules = TrialRules(_BATCH, holders, is_wanted, sharing_key, self._may_fit(state), every)
        found = tuple(queue.batches(now, state, rules))
        if not found and (due := queue.next_due_at(now)) is not None:
            self._context.executor.schedule_round(max(0.0, due - now))
        return found

    def _may_fit(self, state: PlanState) -> Callable[[QueuedGang], bool]:
        """Return a function that returns whether a gang that did not fit may fit in this state."""
        nodes, self._noted_nodes = self._view.node_view(self._context.policies(), self._noted_nodes)
        self._changed_nodes.update(nodes)
        return partial(self._changed_nodes.may_fit, state=state)

    def _drop_outdated_results(self) -> None:
        """Drop the results of gangs that may fit now, or whose requests may differ, for other reasons than nodes."""
        before, queue = self._plan_inputs, self._backlog.queue
        policy_for, placed = inputs = self._context.policies().policy_for, self._view.placed_members()
        if inputs == before:
            return
        self._plan_inputs = inputs
        if policy_for != before[0]:
            queue.drop_results()
        else:
            changed = ChangedPods(before[1], placed)
            queue.drop_results(lambda gang: changed.may_affect(gang.ready))

    def _sharing_keys(self, now: float) -> Callable[[Gang], frozenset[str] | None]:
        may_backfill = self._context.policies().backfill.mode is not BackfillMode.OFF
        return sharing_keys(self.holds.open_holds(), self._backlog.avoiding_gangs(now), may_backfill=may_backfill)

    def _next_hold_request(self, now: float) -> HoldRequest | None:
        def has_given_up(namespace: str) -> bool:
            return self.preemptions.has_given_up(namespace, now)

        return self.holds.next_request(now, self.preemptions.holds_in_a_unit, has_given_up)

    def _hold_task(self, request: HoldRequest, now: float) -> HoldTask:
        gang = request.waiting.gang
        options = options_of(gang, self._view.reservation_index.seats((gang.name,)), self._context.config.levels)
        return HoldTask(
            gang=gang,
            held=() if request.hold is None else request.hold.held,
            held_since=None if request.hold is None else request.hold.held_since,
            view=self._view.node_view(self._context.policies())[0],
            nodes=request.nodes,
            ends=request.ends,
            late_nodes=request.late_nodes,
            options=options._replace(
                avoid=self._backlog.avoided_nodes(gang.name, now), placed_members=self._view.placed_members()
            ),
            names=self._new_names(),
            now=self._context.clock.wall(),
            policy=self._context.policies().node_policy,
        )

    def _yield_search(self, request: YieldRequest, now: float) -> PreemptionSearch:
        return self._preemption_search(request.waiting, now)._replace(
            yields=request.units, ending=request.ending, forbidden=ForbiddenNames()
        )

    def _check(self, request: CheckRequest, now: float) -> PreemptionSearch:
        search, planned = self._preemption_search(request.waiting, now), request.planned
        keys = {each.key or each.unit for each in planned.left}  # evicted for this hold: no cool-down counts
        policy = self._context.policies().preemption
        inputs = search.units._replace(
            policy=policy,
            most_own_pods=None,
            evicted={key: each for key, each in search.units.evicted.items() if key not in keys},
            ending_s=policy.max_grace_s,  # pods that were evicted for this hold count as gone
        )
        return search._replace(units=inputs, planned=planned)

    def _shared_search(self, waiting: QueuedGang, now: float) -> PreemptionSearch:
        """Return a search whose result may also count for other gangs."""
        search, has_anti_affinity = self._preemption_search(waiting, now), self._view.gang_members.has_anti_affinity
        if has_anti_affinity and self._plan_inputs != (search.view.policy_of, search.options.placed_members):
            return search  # the next plan finds out again which requests are equal
        holders = {each.gang for each in self.holds.open_holds()}
        rules = SharingRules(holders | self._backlog.avoiding_gangs(now), has_anti_affinity)
        return search._replace(equal_gangs=self.preemptions.dry_runs.equal_gangs(waiting, rules, now))

    def _preemption_search(self, waiting: QueuedGang, now: float) -> PreemptionSearch:
        gang, view, policies = waiting.gang, self._view, self._context.policies()
        holds = self.holds.open_holds()
        nodes = view.node_view(policies)[0]
        if ignored := ignored_holds(gang, holds):
            nodes = nodes._replace(table=view.cache.snapshot_without(ignored), changes=None)
        if others := nodes_of_other_holds(gang, holds):
            known = {name: each for name, each in nodes.rules.items() if name not in others}
            nodes = nodes._replace(rules=known, changes=None)
        options = options_of(gang, view.reservation_index.seats((gang.name,)), self._context.config.levels)
        preemption, most_own_pods = policies.preemption, None
        if preemption.mode is PreemptionMode.EVICT:  # units of more pods would be over the limit
            namespace = gang.name.namespace
            left = self.preemptions.evictions_left(now, beneficiary=namespace)
            preemption = preemption._replace(max_evictions_per_hour=left)
            most_own_pods = self.preemptions.evictions_left(now, namespace)
        return PreemptionSearch(
            units=UnitInputs(
                beneficiary=gang,
                table=nodes.table,
                gangs=tuple(each for each in view.gang_members.all_gangs() if each.placed),
                disruptions=view.disruptions.copy(),
                deadlines=view.deadlines.copy(),
                policy=preemption,
                now=self._context.clock.wall(),
                evicted=self.preemptions.evicted(),
                near_end_since=self.preemptions.near_end_since,
                most_own_pods=most_own_pods,
                starting=frozenset(
                    seat.uid for each in view.cache.reservations.active.values() for seat in each.reservation.spec.seats
                ),
            ),
            view=nodes,
            options=options._replace(
                avoid=self._backlog.avoided_nodes(gang.name, now) | self.preemptions.forbidden.nodes(now),
                placed_members=view.placed_members(),
            ),
            policy=policies.node_policy,
            names=self._new_names(),
            forbidden=self.preemptions.forbidden.names(now),
            held_since=next((each.spec.held_since for each in holds if each.gang == gang.name), None),
        )

    def _plan_task(
        self,
        batches: tuple[tuple[QueuedGang, ...], ...],
        now: float,
        sharing_key: Callable[[Gang], frozenset[str] | None],
    ) -> PlanTask:
        monotonic = self._context.clock.monotonic
        finds_reasons_again = self._is_full_pass and now >= self._next_reasons
        if finds_reasons_again:
            self._next_reasons = now + REASONS_S
        nodes, self._seen_nodes = self._view.node_view(self._context.policies(), self._seen_nodes)
        return PlanTask(
            batches=batches,
            view=nodes,
            tables_without_holds=self.holds.tables_without_holds(batches),
            seats=self._view.reservation_index.seats(each.gang.name for batch in batches for each in batch),
            avoid=self._backlog.all_avoided_nodes((each.gang.name for batch in batches for each in batch), now),
            levels=self._context.config.levels,
            names=self._new_names(),
            is_out_of_time=lambda: monotonic() > now + PLAN_S,
            placed_members=self._plan_inputs[1],
            is_retry_time_over=lambda: monotonic() > now + _RETRY_SHARE * PLAN_S,
            resume_at=self._resume_at,
            finds_reasons_again=finds_reasons_again,
            backfills=self.backfills.tables(batches),
            unshared=frozenset(each.gang.name for batch in batches for each in batch if sharing_key(each.gang) is None),
        )

    def _new_names(self) -> ReservationNames:
        return ReservationNames(self._context.config.namespace, lambda: secrets.token_hex(3))
