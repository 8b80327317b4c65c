"""All members of a gang on one snapshot, or none. Pure: the same members, nodes and options give the same plan.

What counts, in this order: what is required holds, whatever the kubelets choose; as many members as may be; the
narrowest domain that holds them all; the domain that most siblings are in already; the fewest nodes; the sum of the
members' scores (``scores``: the worst ring that may come out, what it leaves of each node, ...); the domain with the
least room to spare.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputopo.crd.reservations import Seat
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.bandwidth import bottleneck, expected_gpus, slowest_gbps
from scheduler_core.planner.packing.diagnosis import diagnosis_summary, missing_by_member
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import (
    DEFAULT_OPTIONS,
    LEVELS,
    GangPlan,
    Levels,
    NodeView,
    PlanOptions,
    Unplaced,
)
from scheduler_core.planner.packing.nodes import UsedNode, choose_nodes
from scheduler_core.planner.packing.ranks import RankedMember, Slot, assign_ranks
from scheduler_core.planner.packing.search import Search
from scheduler_core.planner.packing.topology_domains import shared_domain

__all__ = ["LEVELS", "GangPlan", "Levels", "NodeView", "PlanOptions", "Unplaced", "plan_gang"]


def plan_gang(members: Sequence[Member], view: NodeView, options: PlanOptions = DEFAULT_OPTIONS) -> GangPlan | Unplaced:
    """Where each member goes; ``members``: those that wait, all of one gang."""
    crew = group_members(members, view, options)
    if isinstance(crew, Unplaced):
        return crew
    search = Search(crew, view, options)
    found = search.best_result()
    placed = found.packing.members + len(crew.without_gpus)
    if placed < crew.minimum:
        lacking = missing_by_member(crew, found.packing, search, view, options)
        return Unplaced(diagnosis_summary(placed, crew), lacking, placed, search.budget.taken)
    taken = choose_nodes(found.packing, found.sites)
    return GangPlan(
        _seats(crew, taken, view, options),
        _domain(crew, taken, view, options),
        _gbps(crew, taken, view),
        search.budget.taken,
        found.exact,
    )


def _seats(crew: MemberGroups, taken: Sequence[UsedNode], view: NodeView, options: PlanOptions) -> tuple[Seat, ...]:
    chairs = [
        Slot(each.site.name, kind, each.site.path)
        for each in taken
        for kind, number in enumerate(each.load)
        for _ in range(number)
    ]
    placed = [sum(each.load[at] for each in taken) for at in range(len(crew.groups))]
    kinds = [group.members[:number] for group, number in zip(crew.groups, placed, strict=True)]
    ranks = frozenset(seat.rank for seat in options.placed if seat.rank is not None)
    on = {each.site.name: each for each in taken}
    seats = [_seat(each, on[each.slot.node], crew, view) for each in assign_ranks(kinds, chairs, ranks)]
    return (*seats, *(Seat(each.uid, each.name, rank=each.gang_request.rank) for each in crew.without_gpus))


def _seat(found: RankedMember, taken: UsedNode, crew: MemberGroups, view: NodeView) -> Seat:
    ask = crew.groups[found.slot.kind].kind.profile.device_request
    alone = sum(taken.load) == 1
    return Seat(
        uid=found.member.uid,
        name=found.member.name,
        node=found.slot.node,
        gpus=ask.totals,
        expected=expected_gpus(view.table.states[taken.site.name], ask) if alone else (),
        rank=found.rank,
    )


def _domain(crew: MemberGroups, taken: Sequence[UsedNode], view: NodeView, options: PlanOptions) -> str | None:
    """Of all members, those that are there already among them."""
    own = [level for level in (crew.required, crew.preferred) if level is not None and level not in options.levels]
    nodes = {each.site.name for each in taken} | {seat.node for seat in options.placed}
    labels = [view.rules[name].metadata.labels or {} for name in nodes if name is not None and name in view.rules]
    return shared_domain(labels, (*own, *options.levels), options.levels)


def _gbps(crew: MemberGroups, taken: Sequence[UsedNode], view: NodeView) -> float | None:
    lots = {(view.table.states[each.site.name], each.load) for each in taken}
    asks = [group.kind.profile.device_request for group in crew.groups]
    return slowest_gbps(
        [
            bottleneck(state, [ask for ask, number in zip(asks, load, strict=True) for _ in range(number)])
            for state, load in lots
        ]
    )
