"""From the queue to reservations: what is planned next, on one snapshot. Pure; it runs beside the loop that owns all.

One task plans until something is placed: the next one must see that as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from gputopo.crd.reservations import ReservationSpec, Seat
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.conventions import is_alone
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.queue import Waiting
from scheduler_core.planner.packing.anti_affinity import There
from scheduler_core.planner.packing.model import Levels, NodeView, Options, Unplaced
from scheduler_core.planner.packing.plan import plan
from scheduler_core.planner.packing.singles import Placer

TIMEOUT_S = 30.0  # from letting go to all bound, where a gang says nothing
_NAME = 200  # characters of a gang's name in that of its reservation
_NOWHERE = "no member fits at once"  # as of any gang of one


class Names(NamedTuple):
    """What the names of reservations are made of."""

    namespace: str  # of batches of single pods: the planner's own
    suffix: Callable[[], str]


class Task(NamedTuple):
    """What is to be planned, and on what."""

    batches: tuple[tuple[Waiting, ...], ...]  # in order
    view: NodeView
    unheld: Mapping[
        GangName, NodeTable
    ]  # by the first of a batch: tables without what is held for it, or for lower priorities
    seats: Mapping[str, Seat]  # of pods that were placed before, by UID
    avoid: Mapping[GangName, AbstractSet[str]]  # nodes
    levels: Levels
    names: Names
    over: Callable[[], bool]  # whether the time for a plan has run out
    there: tuple[There, ...] = ()  # pods that have places


class Placing(NamedTuple):
    """What came of it."""

    created: tuple[CreateReservation, ...] = ()
    gangs: tuple[GangName, ...] = ()  # that these are for
    unplaced: Mapping[GangName, Unplaced] = {}
    exact: bool = False
    steps: int = 0


def placing(task: Task, placer: Placer | None = None) -> Placing:
    """Plan in order, up to the first that finds its place. ``placer``: what it remembers of earlier jobs saves time.

    Where nobody does, nodes that were reached in vain are better than none: tries grow rarer, and others came first.
    """
    placer = placer or Placer()
    found = _placing(task, placer)
    if (
        found.created
        or task.over()
        or not any(task.avoid.get(each.gang.name) for batch in task.batches for each in batch)
    ):
        return found
    again = _placing(task._replace(avoid={}), placer)
    return again if again.created else found


def _placing(task: Task, placer: Placer) -> Placing:
    unplaced: dict[GangName, Unplaced] = {}
    steps = 0
    for batch in task.batches:
        found = _singles(task, batch, placer) if is_batch(batch) else _gang(task, batch[0])
        unplaced |= found.unplaced
        steps += found.steps
        if found.created:
            return found._replace(unplaced=unplaced, steps=steps)
        if task.over():
            break
    return Placing(unplaced=unplaced, steps=steps)


def is_batch(batch: Sequence[Waiting]) -> bool:
    """Whether these are single pods, not a gang."""
    return len(batch) > 1 or is_alone(batch[0].gang.name)


def options_of(gang: Gang, seats: Mapping[str, Seat], levels: Levels) -> Options:
    """How a gang is planned, wherever."""
    return Options(
        placed=siblings(gang, seats),
        minimum=None if gang.need is None else max(1, gang.need - len(gang.succeeded)),
        levels=levels,
    )


def _gang(task: Task, waiting: Waiting) -> Placing:
    gang = waiting.gang
    options = options_of(gang, task.seats, task.levels)._replace(
        avoid=frozenset(task.avoid.get(gang.name, ())), out_of_time=task.over, there=task.there
    )
    view = task.view._replace(table=task.unheld.get(gang.name, task.view.table))
    found = plan(gang.ready, view, options)
    if isinstance(found, Unplaced):
        return Placing(unplaced={gang.name: found}, steps=found.tried)
    timeout = TIMEOUT_S if gang.timeout_s is None else gang.timeout_s
    spec = ReservationSpec(gang.name.name, found.seats, (), timeout, found.domain, found.gbps, waiting.rollbacks + 1)
    created = CreateReservation(gang.name.namespace, reservation_name(gang.name.name, task.names), spec)
    return Placing((created,), (gang.name,), exact=found.exact, steps=found.tried)


def reservation_name(gang: str, names: Names) -> str:
    """A new one."""
    return f"{gang[:_NAME]}-{names.suffix()}"


def siblings(gang: Gang, seats: Mapping[str, Seat]) -> tuple[Seat, ...]:
    """The places of those that have theirs, and their ranks."""
    return tuple(
        Seat(each.uid, each.name, each.node, each.devices, rank=known.rank if known else each.wanted.rank)
        for each in gang.placed
        if each.node is not None
        for known in (seats.get(each.uid),)
    )


def _singles(task: Task, batch: Sequence[Waiting], placer: Placer) -> Placing:
    members = {each.gang.ready[0].uid: each.gang for each in batch}
    avoid = frozenset[str]().union(*(task.avoid.get(each.gang.name, ()) for each in batch))
    options = Options(avoid=avoid, levels=task.levels, out_of_time=task.over, there=task.there)
    view = task.view._replace(table=task.unheld.get(batch[0].gang.name, task.view.table))
    found = placer.place([each.gang.ready[0] for each in batch], view, options)
    nowhere = ((members[uid], why) for uid, why in found.missing)
    unplaced = {gang.name: Unplaced(_NOWHERE, ((gang.ready[0].name, why),)) for gang, why in nowhere}
    if not found.seats:
        return Placing(unplaced=unplaced)
    gangs = [members[seat.uid] for seat in found.seats]
    timeout = max(TIMEOUT_S if each.timeout_s is None else each.timeout_s for each in gangs)
    created = CreateReservation(
        task.names.namespace, f"pods-{task.names.suffix()}", ReservationSpec("", found.seats, timeout_s=timeout)
    )
    return Placing((created,), tuple(each.name for each in gangs), unplaced)
