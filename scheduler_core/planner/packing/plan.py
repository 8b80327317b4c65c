"""Plan a gang on one snapshot: all members or none. Pure: equal members, nodes and options give equal plans.

Criteria, in this order: required shapes hold whatever the kubelets choose; most members; GPUs of one product; the
narrowest domain that holds all of them; the domain with most placed siblings; fewest nodes; the sum of the members'
scores (``evaluation/score.py``: the worst possible ring, fragmentation, ...); the domain with the least free capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputopo.crd.reservations import PlannedMember
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.bandwidth import bottleneck, expected_gpus, slowest_gbps
from scheduler_core.planner.packing.diagnosis import diagnosis_summary, missing_by_member
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import (
    DEFAULT_OPTIONS,
    GangPlan,
    NodeView,
    PlanOptions,
    Unplaced,
)
from scheduler_core.planner.packing.node_classes import NodeClasses
from scheduler_core.planner.packing.nodes import UsedNode, choose_nodes
from scheduler_core.planner.packing.ranks import RankedMember, Slot, assign_ranks
from scheduler_core.planner.packing.search import Search, SearchMemory
from scheduler_core.planner.packing.topology_domains import shared_domain


def plan_gang(members: Sequence[Member], view: NodeView, options: PlanOptions = DEFAULT_OPTIONS) -> GangPlan | Unplaced:
    """Return the node of each member, or why they do not fit. ``members``: the members to place, all of one gang."""
    groups = group_members(members, view, options)
    if isinstance(groups, Unplaced):
        return groups
    return plan_groups(groups, view, options, NodeClasses(view))


def plan_groups(
    gang: MemberGroups,
    view: NodeView,
    options: PlanOptions,
    nodes: NodeClasses,
    memory: SearchMemory | None = None,
) -> GangPlan | Unplaced:
    """Return the result of ``plan_gang``. ``nodes``: of this view. ``memory``: of an equal gang."""
    search = Search(gang, view, options, nodes, memory)
    found = search.best_result()
    placed = found.packing.members + len(gang.without_gpus)
    if placed < gang.minimum:
        missing = missing_by_member(gang, found.packing, search, view, options)
        return Unplaced(diagnosis_summary(placed, gang), missing, placed, search.budget.taken)
    used = choose_nodes(found.packing, () if found.domain is None else found.domain.leaves)
    return plan_on_nodes(gang, used, view, options)._replace(steps=search.budget.taken, exact=found.exact)


def plan_on_nodes(gang: MemberGroups, used: Sequence[UsedNode], view: NodeView, options: PlanOptions) -> GangPlan:
    """Return the plan that uses these nodes."""
    return GangPlan(_seats(gang, used, view, options), _domain(gang, used, view, options), _gbps(gang, used, view))


def _seats(
    gang: MemberGroups, used: Sequence[UsedNode], view: NodeView, options: PlanOptions
) -> tuple[PlannedMember, ...]:
    slots = [
        Slot(each.node.name, kind, each.node.path)
        for each in used
        for kind, number in enumerate(each.load)
        for _ in range(number)
    ]
    placed = [sum(each.load[at] for each in used) for at in range(len(gang.groups))]
    kinds = [group.members[:number] for group, number in zip(gang.groups, placed, strict=True)]
    ranks = frozenset(seat.rank for seat in options.placed if seat.rank is not None)
    used_by_name = {each.node.name: each for each in used}
    seats = [_seat(each, used_by_name[each.slot.node], gang, view) for each in assign_ranks(kinds, slots, ranks)]
    return (*seats, *(PlannedMember(each.uid, each.name, rank=each.gang_request.rank) for each in gang.without_gpus))


def _seat(found: RankedMember, used: UsedNode, gang: MemberGroups, view: NodeView) -> PlannedMember:
    request = gang.groups[found.slot.kind].kind.profile.device_request
    alone = sum(used.load) == 1
    return PlannedMember(
        uid=found.member.uid,
        name=found.member.name,
        node=found.slot.node,
        gpus=request.totals,
        expected=expected_gpus(view.table.states[used.node.name], request) if alone else (),
        rank=found.rank,
    )


def _domain(gang: MemberGroups, used: Sequence[UsedNode], view: NodeView, options: PlanOptions) -> str | None:
    """Return the narrowest common domain of all members, with placed siblings."""
    own = [level for level in (gang.required, gang.preferred) if level is not None and level not in options.levels]
    nodes = {each.node.name for each in used} | {seat.node for seat in options.placed}
    labels = [view.rules[name].metadata.labels or {} for name in nodes if name is not None and name in view.rules]
    return shared_domain(labels, (*own, *options.levels), options.levels)


def _gbps(gang: MemberGroups, used: Sequence[UsedNode], view: NodeView) -> float | None:
    loads = {(view.table.states[each.node.name], each.load) for each in used}
    requests = [group.kind.profile.device_request for group in gang.groups]
    return slowest_gbps(
        [
            bottleneck(state, [request for request, number in zip(requests, load, strict=True) for _ in range(number)])
            for state, load in loads
        ]
    )
