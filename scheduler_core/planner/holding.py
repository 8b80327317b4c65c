"""Room for a gang that does not fit: where it will once the pods that are there now have ended. Pure; beside the loop.

What is held is as many GPUs of each node as the gang will take there; all of a node's where it matters which they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from gputopo.labels.reservations import Holding, ReservationSpec
from scheduler_core.asks import WHOLE
from scheduler_core.gangs.gang import Gang
from scheduler_core.gangs.hold import Ending, room
from scheduler_core.gangs.plan import plan
from scheduler_core.gangs.planning import NodeView, Options, Plan
from scheduler_core.gangs.writes import CreateReservation
from scheduler_core.holders import full_name, stranger
from scheduler_core.nodes import NodeRecord, with_pod, with_records
from scheduler_core.planner.placing import Names, reservation_name
from scheduler_core.policy import Policy
from scheduler_core.request import PodRequest

_STEPS = 2_000  # of one search: there are many


class HoldJob(NamedTuple):
    """For whom room is to be held, and what there is."""

    gang: Gang
    held: Mapping[str, int]  # node -> GPUs that are held for it already; {}: none
    view: NodeView
    endings: tuple[Ending, ...]  # of nodes that may be held for it, and of those that are
    options: Options
    names: Names
    now: float  # seconds since 1970
    policy: Policy  # what the states of nodes follow from
    over: Callable[[], bool]  # whether the time has run out: more may be held then than is needed


class Held(NamedTuple):
    """What came of it."""

    gang: Gang
    create: CreateReservation | None = None  # what is to be held
    enough: bool = False  # what is held already is


def holding(job: HoldJob) -> Held:
    """Neither: it fits nowhere, whoever ends."""
    gang = job.gang
    if job.held and _is_enough(job):
        return Held(gang, enough=True)
    view = _emptied(job, [each.node for each in job.endings])
    found = room(job.endings, lambda nodes: not job.over() and _planned(job, view, nodes) is not None)
    held = () if found is None else _holdings(job, view, found.nodes)
    if not held:
        return Held(gang, enough=bool(job.held) and job.over())  # where nobody knows better it is left as it is
    name = reservation_name(gang.name.name, job.names)
    return Held(gang, CreateReservation(gang.name.namespace, name, ReservationSpec(gang.name.name, held=held)))


def _is_enough(job: HoldJob) -> bool:
    """Whether it would fit into what is held alone."""
    nodes = [name for name in job.held if name in job.view.table.records]
    view = _emptied(job, nodes)
    records = [_narrowed(view.table.records[name], job.held[name]) for name in nodes]
    view = view._replace(table=with_records(view.table, records, job.now, job.policy))
    return _planned(job, view, nodes) is not None


def _narrowed(record: NodeRecord, gpus: int) -> NodeRecord:
    """As if others had all but so many of its free GPUs."""
    others = _offered(record) - sum(pod.profile.gpus for pod in record.pods) - gpus
    return with_pod(record, stranger(("", record.name), Counter({"": others}))) if others > 0 else record


def _holdings(job: HoldJob, view: NodeView, nodes: Sequence[str]) -> tuple[Holding, ...]:
    """What it would take of those nodes; (): it does not fit there, or holds no whole GPU."""
    found = _planned(job, view, nodes)
    asked = {each.uid: each.request for each in job.gang.ready}
    taken = Counter[str]()
    for seat in () if found is None else found.seats:
        if seat.node is not None:
            offered = _offered(view.table.records[seat.node])
            gpus = dict(seat.gpus).get(WHOLE, 0)  # only whole ones can be held
            taken[seat.node] += offered if gpus and _choosy(asked[seat.uid]) else gpus
            taken[seat.node] = min(taken[seat.node], offered)
    return tuple(Holding(*each) for each in sorted(taken.items()) if each[1])


def _planned(job: HoldJob, view: NodeView, nodes: Sequence[str]) -> Plan | None:
    avoid = job.options.avoid | (view.rules.keys() - set(nodes))
    found = plan(job.gang.ready, view, job.options._replace(avoid=avoid, steps=_STEPS, out_of_time=job.over))
    return found if isinstance(found, Plan) else None


def _offered(record: NodeRecord) -> int:
    return dict(record.machine.allocatable).get(WHOLE, 0)


def _choosy(request: object) -> bool:
    """Whether not any of a node's GPUs will do."""
    assert isinstance(request, PodRequest)  # it was planned
    wishes = request.profile.wishes
    return request.profile.must_hold or wishes.model is not None or wishes.min_vram_mib is not None


def _emptied(job: HoldJob, nodes: Iterable[str]) -> NodeView:
    """As if nobody was on those but the gang's own."""
    own = {each.uid for each in job.gang.placed}
    records = [_without_others(job.view.table.records[name], own) for name in nodes]
    return job.view._replace(table=with_records(job.view.table, records, job.now, job.policy))


def _without_others(record: NodeRecord, own: AbstractSet[str]) -> NodeRecord:
    pods, word = tuple(pod for pod in record.pods if pod.uid in own), record.gpus
    if word is not None and word.allocations is not None:
        names = set(map(full_name, pods))
        left = tuple(each for each in word.allocations if (each.pod.namespace, each.pod.name) in names)
        word = msgspec.structs.replace(word, allocations=left)
    return msgspec.structs.replace(record, gpus=word, pods=pods, departed=(), reserved=())
