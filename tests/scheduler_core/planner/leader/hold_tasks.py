"""Tasks of hold searches."""

from __future__ import annotations

from typing import Any

from gputopo.crd.reservations import PlannedMember
from scheduler_core.cache.events import Batch
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from scheduler_core.planner.leader.hold_candidates import PodEnds
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import ReservationNames
from scheduler_core.planner.packing.model import PlanOptions
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import GANG, RACK, view

H100 = MACHINES["hgx_h100"]()


BUSY = {name: record(name, H100, pods=[occupant(f"on-{name}", 8)], held={f"on-{name}": range(8)}) for name in "abc"}


def task(members: list[Member], *records: NodeRecord, placed: tuple[Member, ...] = (), **changed: Any) -> HoldTask:
    """Return a task on these nodes; earlier nodes are free earlier."""
    racks = {each.name: {RACK: "r1" if each.name in "ab" else "r2"} for each in records}
    seats = tuple(PlannedMember(each.uid, each.name, each.node) for each in placed)
    ends = PodDeadlines()
    pods = [(pod.uid, float(at)) for at, each in enumerate(records) for pod in each.pods]
    ends.apply_pod_deadlines(Batch(PodDeadline, tuple(PodDeadline(*each) for each in pods)))
    plain = HoldTask(
        Gang(GANG, GangPhase.QUEUED, "", ready=tuple(members), placed=placed, size=len(members) + len(placed)),
        (),
        view(*records, labels=racks),
        tuple(each.name for each in records),
        PodEnds(ends, Disruptions()),
        PlanOptions(placed=seats),
        ReservationNames("gputopo", lambda: "abc"),
        NOW,
        Policy(),
        lambda: False,
    )
    return plain._replace(**changed)
