"""Plans from the queue to reservations, on one snapshot. Pure: it runs on a thread beside the event loop.

A task plans until a gang is placed: the next plan must see its devices as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from time import thread_time
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import Backfill, HeldCapacity, PlannedMember, Preemption, ReservationSpec
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.planner.leader.queue_order import QueueOrder
from scheduler_core.planner.packing.gang_planner import GangPlanner
from scheduler_core.planner.packing.model import Levels, NodeView, PlanOptions, RequestId, TableVariant, Unplaced
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.planner.packing.singles import SinglePodPlacer
from scheduler_core.request.pod import SINGLE_PODS_PREFIX

_NAME_LENGTH = 200  # characters of a gang's name in the name of its reservation
_NOWHERE = "no member fits at once"  # the reason of any gang of one


class ReservationNames(NamedTuple):
    """Parts of names of reservations."""

    namespace: str  # of reservations of single pods: the planner's own
    suffix: Callable[[], str]


class BackfillTable(NamedTuple):
    """A snapshot on which capacity that is held for another gang is free, and the condition of its use."""

    variant: TableVariant
    backfill: Backfill


class PlanTask(NamedTuple):
    """Gangs and single pods to plan, and the snapshot to plan on."""

    batches: tuple[tuple[QueuedGang, ...], ...]  # in order
    view: NodeView
    # By the first gang of a batch: the snapshot without its own hold and holds of lower priorities.
    tables_without_holds: Mapping[GangName, TableVariant]
    seats: Mapping[str, PlannedMember]  # of pods that were placed before, by UID
    avoid: Mapping[GangName, AbstractSet[str]]  # nodes
    levels: Levels
    names: ReservationNames
    is_out_of_time: Callable[[], bool]
    placed_members: tuple[PlacedMember, ...] = ()
    is_retry_time_over: Callable[[], bool] = lambda: False  # for gangs that did not fit before
    resume_at: QueueOrder | None = None  # of the last result
    finds_reasons_again: bool = False  # of gangs that still do not fit, where nodes have changed
    backfills: Mapping[GangName, tuple[BackfillTable, ...]] = {}  # for gangs that fit nowhere else
    unshared: AbstractSet[GangName] = frozenset()  # gangs whose results count for no other: see ``equal_requests``


class PlanMemory:
    """Results of a plan that the next plan reuses, to save time. For one thread."""

    def __init__(self) -> None:
        self.singles = SinglePodPlacer()
        self.gangs = GangPlanner()
        self.backfills = GangPlanner()  # on snapshots without the holds of other gangs

    def see_view(self, view: NodeView) -> None:
        """Go on to another view: each planner compares the changed nodes when it plans next."""
        self.singles.see_view(view)
        self.gangs.see_view(view)
        self.backfills.see_view(view)


class PlanResult(NamedTuple):
    """Result of a task."""

    created: tuple[CreateReservation, ...] = ()
    gangs: tuple[GangName, ...] = ()  # with a place in these reservations
    unplaced: Mapping[GangName, Unplaced] = {}
    request_ids: Mapping[GangName, RequestId] = {}  # of gangs in ``unplaced``: the same one for equal requests
    exact: bool = False
    steps: int = 0
    resume_at: QueueOrder | None = None  # the first gang that did not fit before and was not tried for lack of time
    reasons_s: float = 0.0  # CPU time to find reasons again


def run_plan(task: PlanTask, memory: PlanMemory | None = None) -> PlanResult:
    """Plan the batches in order until one is placed. ``memory``: of earlier tasks.

    If none is placed, plan again with the avoided nodes: such a node is better than no place.
    """
    memory = memory or PlanMemory()
    memory.see_view(task.view)
    found = _plan_batches(task, memory)
    if (
        found.created
        or task.is_out_of_time()
        or not any(task.avoid.get(each.gang.name) for batch in task.batches for each in batch)
    ):
        return found
    again = _plan_batches(task._replace(avoid={}), memory)
    return again if again.created else found


def _plan_batches(task: PlanTask, memory: PlanMemory) -> PlanResult:
    """Plan gangs that did not fit before for a part of the time, from where the last task stopped."""
    unplaced, request_ids = dict[GangName, Unplaced](), dict[GangName, RequestId]()
    steps, resume_at = 0, None
    # Gangs that did not fit before and come before that place in the queue are tried last.
    batches = sorted(task.batches, key=lambda each: _is_retry(each) and each[0].order < (task.resume_at or ()))
    for batch in batches:
        is_retry, is_first = _is_retry(batch), batch is batches[0]
        if not is_first and (task.is_out_of_time() or (is_retry and task.is_retry_time_over())):
            resume_at = resume_at or (batch[0].order if is_retry else None)
            continue
        if is_batch(batch):
            found = _plan_single_pods(task, batch, memory.singles)
        else:
            found = _plan_gang(task, batch[0], memory.gangs, diagnose=False)
            if not found.created and batch[0].gang.name in task.backfills:
                found = _plan_backfill(task, batch[0], memory.backfills, found)
        unplaced |= found.unplaced
        request_ids |= found.request_ids
        steps += found.steps
        if found.created:
            return found._replace(unplaced=unplaced, request_ids=request_ids, steps=steps, resume_at=resume_at)
    waiting = [batch[0] for batch in task.batches if not is_batch(batch) and batch[0].gang.name in unplaced]
    for each in waiting:
        if not unplaced[each.gang.name].missing and not task.is_out_of_time():
            unplaced |= _plan_gang(task, each, memory.gangs, diagnose=True).unplaced
    began = thread_time()
    if task.finds_reasons_again:
        unplaced |= _find_single_reasons_again(task, memory.singles)  # first: gangs may take all the time
        unplaced |= _find_reasons_again(task, waiting, memory.gangs)
    return PlanResult(
        unplaced=unplaced, request_ids=request_ids, steps=steps, resume_at=resume_at, reasons_s=thread_time() - began
    )


def _find_reasons_again(
    task: PlanTask, waiting: Sequence[QueuedGang], planner: GangPlanner
) -> dict[GangName, Unplaced]:
    """Return new results of gangs whose reasons may be out of date, the oldest first: at least one of them."""
    changes = {each.gang.name: planner.changes_since_diagnosis(each.gang.name) for each in waiting}
    outdated = sorted(filter(lambda each: changes[each.gang.name], waiting), key=lambda each: -changes[each.gang.name])
    found: dict[GangName, Unplaced] = {}
    for each in outdated:
        if task.is_out_of_time() or (found and task.is_retry_time_over()):
            break
        found |= _plan_gang(task, each, planner, diagnose=True, again=True).unplaced
    return found


def _find_single_reasons_again(task: PlanTask, placer: SinglePodPlacer) -> dict[GangName, Unplaced]:
    """Return new results of single pods whose reasons may be out of date, while there is time for retries."""
    found, in_time = dict[GangName, Unplaced](), task._replace(is_out_of_time=task.is_retry_time_over)
    for batch in filter(is_batch, task.batches):
        found |= _plan_single_pods(in_time, batch, placer, again=True).unplaced
    return found


def _is_retry(batch: Sequence[QueuedGang]) -> bool:
    return all(each.unfit_state is not None for each in batch)


def is_batch(batch: Sequence[QueuedGang]) -> bool:
    """Return True if the batch consists of single pods."""
    return len(batch) > 1 or is_single_pod_gang(batch[0].gang.name)


def options_of(gang: Gang, seats: Mapping[str, PlannedMember], levels: Levels) -> PlanOptions:
    """Return the plan options of a gang that do not depend on the snapshot."""
    return PlanOptions(
        placed=placed_seats(gang, seats),
        minimum=None if gang.required_members is None else max(1, gang.required_members - len(gang.succeeded)),
        levels=levels,
    )


def _plan_backfill(task: PlanTask, waiting: QueuedGang, planner: GangPlanner, unplaced: PlanResult) -> PlanResult:
    """Return the places of a gang on capacity that is held for another gang; ``unplaced`` if there are none."""
    steps = unplaced.steps
    for table, backfill in task.backfills[waiting.gang.name]:
        on_held = task._replace(tables_without_holds={waiting.gang.name: table})
        found = _plan_gang(on_held, waiting, planner, diagnose=False)
        steps += found.steps
        if found.created:
            (create,) = found.created
            create = msgspec.structs.replace(create, spec=msgspec.structs.replace(create.spec, backfill=backfill))
            return found._replace(created=(create,), unplaced={}, steps=steps)
        if task.is_out_of_time():
            break
    return unplaced._replace(steps=steps)


def _plan_gang(
    task: PlanTask, waiting: QueuedGang, planner: GangPlanner, *, diagnose: bool, again: bool = False
) -> PlanResult:
    gang = waiting.gang
    options = options_of(gang, task.seats, task.levels)._replace(
        avoid=frozenset(task.avoid.get(gang.name, ())),
        out_of_time=task.is_out_of_time,
        placed_members=task.placed_members,
    )
    view = task.view.with_table(task.tables_without_holds.get(gang.name))
    found = planner.plan_gang(gang.ready, view, options, diagnose=diagnose, again=again)
    if isinstance(found, Unplaced):
        request_id = None if gang.name in task.unshared else planner.request_id(gang.name, view.ignored_holds)
        request_ids = {} if request_id is None else {gang.name: request_id}
        return PlanResult(unplaced={gang.name: found}, request_ids=request_ids, steps=found.steps)
    attempt = waiting.rollbacks + 1
    spec = ReservationSpec(gang.name.name, found.seats, (), gang.bind_timeout_s, found.domain, found.gbps, attempt)
    created = CreateReservation(gang.name.namespace, reservation_name(gang.name.name, task.names), spec)
    return PlanResult((created,), (gang.name,), exact=found.exact, steps=found.steps)


def reservation_name(gang: str, names: ReservationNames) -> str:
    """Return a new name for a reservation of this gang."""
    return f"{gang[:_NAME_LENGTH]}-{names.suffix()}"


def create_hold(
    gang: Gang,
    held: tuple[HeldCapacity, ...],
    names: ReservationNames,
    since: str,
    preemption: Preemption | None = None,
) -> CreateReservation:
    """Return the write of a capacity hold. ``since``: when the gang got its first hold, RFC 3339."""
    name = reservation_name(gang.ready[0].name if is_single_pod_gang(gang.name) else gang.name.name, names)
    spec = ReservationSpec(gang.name.name, held=held, priority=gang.priority, held_since=since, preemption=preemption)
    return CreateReservation(gang.name.namespace, name, spec)


def placed_seats(gang: Gang, seats: Mapping[str, PlannedMember]) -> tuple[PlannedMember, ...]:
    """Return the places of the placed members, with their ranks."""
    return tuple(
        PlannedMember(
            each.uid, each.name, each.node, each.devices, rank=known.rank if known else each.gang_request.rank
        )
        for each in gang.placed
        if each.node is not None
        for known in (seats.get(each.uid),)
    )


def _plan_single_pods(
    task: PlanTask, batch: Sequence[QueuedGang], placer: SinglePodPlacer, *, again: bool = False
) -> PlanResult:
    members = {each.gang.ready[0].uid: each.gang for each in batch}
    avoid = frozenset[str]().union(*(task.avoid.get(each.gang.name, ()) for each in batch))
    options = PlanOptions(
        avoid=avoid, levels=task.levels, out_of_time=task.is_out_of_time, placed_members=task.placed_members
    )
    view = task.view.with_table(task.tables_without_holds.get(batch[0].gang.name))
    found = placer.place_pods([each.gang.ready[0] for each in batch], view, options, again=again)
    missing = ((members[uid], reason) for uid, reason in found.missing)
    unplaced = {gang.name: Unplaced(_NOWHERE, ((gang.ready[0].name, reason),)) for gang, reason in missing}
    names = ((members[uid].name, request_id) for uid, request_id in found.request_ids.items())
    request_ids = {name: request_id for name, request_id in names if name not in task.unshared}
    if not found.seats:
        return PlanResult(unplaced=unplaced, request_ids=request_ids)
    gangs = [members[seat.uid] for seat in found.seats]
    timeout = max(each.bind_timeout_s for each in gangs)
    name = f"{SINGLE_PODS_PREFIX}{task.names.suffix()}"
    created = CreateReservation(task.names.namespace, name, ReservationSpec("", found.seats, timeout_s=timeout))
    return PlanResult((created,), tuple(each.name for each in gangs), unplaced, request_ids)
