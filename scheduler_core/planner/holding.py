"""Room for a gang that does not fit: where it will once the pods that are there now have ended. Pure; beside the loop.

What is held is as many GPUs of each node as the gang will take there, not the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gputopo.labels.reservations import Holding, ReservationSpec
from scheduler_core.gangs.hold import Ending, room
from scheduler_core.gangs.plan import plan
from scheduler_core.gangs.planning import NodeView, Options, Plan
from scheduler_core.gangs.queue import Waiting
from scheduler_core.gangs.writes import CreateReservation
from scheduler_core.nodes import NodeRecord, with_records
from scheduler_core.planner.placing import Names, reservation_name
from scheduler_core.policy import Policy

_STEPS = 2_000  # of one search: there are many


class HoldJob(NamedTuple):
    """For whom room is to be held, and what there is."""

    waiting: Waiting
    view: NodeView  # without what is held for others
    endings: tuple[Ending, ...]  # of nodes on which nothing is held yet
    options: Options
    names: Names
    now: float  # seconds since 1970
    policy: Policy  # what the states of nodes follow from


class Held(NamedTuple):
    """What is to be held."""

    create: CreateReservation
    estimate: float | None  # when that will be free, in seconds since 1970; None: nobody can say


def holding(job: HoldJob) -> Held | None:
    """None: it fits nowhere, whoever ends."""
    names = [each.node for each in job.endings]
    records = [_emptied(job.view.table.records[name]) for name in names]
    view = job.view._replace(table=with_records(job.view.table, records, job.now, job.policy))

    def planned(nodes: Sequence[str]) -> Plan | None:
        rules = {name: view.rules[name] for name in nodes}
        found = plan(job.waiting.gang.ready, view._replace(rules=rules), job.options._replace(steps=_STEPS))
        return found if isinstance(found, Plan) else None

    found = room(job.endings, lambda nodes: planned(nodes) is not None)
    chosen = None if found is None else planned(found.nodes)
    if found is None or chosen is None:
        return None
    taken: Counter[str] = Counter()
    for seat in chosen.seats:
        if seat.node is not None:
            taken[seat.node] += sum(number for _, number in seat.gpus)
    gang = job.waiting.gang.name
    spec = ReservationSpec(gang.name, held=tuple(Holding(*each) for each in sorted(taken.items())))
    create = CreateReservation(gang.namespace, reservation_name(gang.name, job.names), spec)
    return Held(create, None if found.estimate is None else max(found.estimate, job.now))


def _emptied(record: NodeRecord) -> NodeRecord:
    """As if nobody was there."""
    gpus = None if record.gpus is None else msgspec.structs.replace(record.gpus, allocations=())
    return msgspec.structs.replace(record, gpus=gpus, pods=(), departed=(), reserved=())
