"""The devices that a plan uses, as a capacity hold lists them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gputopo.crd.reservations import HeldCapacity
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.request.pod_request import PodRequest


def holdings_of(plan: GangPlan, members: Sequence[Member], table: ClusterSnapshot) -> tuple[HeldCapacity, ...]:
    """Return the devices to hold: as many as the plan uses, or all of a node where members need particular devices."""
    requests = {each.uid: each.request for each in members}
    taken = Counter[tuple[str, str]]()
    for seat in plan.seats:
        for resource, number in seat.gpus if seat.node is not None else ():
            assert seat.node is not None  # by the condition above
            offered = dict(table.records[seat.node].machine.allocatable)[resource]
            key = seat.node, resource
            taken[key] = min(offered, taken[key] + (offered if _needs_specific_gpus(requests[seat.uid]) else number))
    return tuple(HeldCapacity(node, number, resource) for (node, resource), number in sorted(taken.items()))


def _needs_specific_gpus(request: object) -> bool:
    """Return True if the pod may not be able to use some devices of a node."""
    assert isinstance(request, PodRequest)  # the pod was planned
    constraints = request.profile.constraints
    return request.profile.has_hard_constraints or constraints.model is not None or constraints.min_vram_mib is not None
