"""A gang as the planner sees it: members that ask for the same are of one kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputopo.crd.reservations import Seat
from scheduler_core.cache.kube_scheduler_filters import PodRules
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.cache.owner_pods import Placed, related
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import Pairs, Side, Sides, pairs
from scheduler_core.planner.packing.model import NodeView, Options, Unplaced
from scheduler_core.planner.packing.node_fit import Kind
from scheduler_core.planner.packing.ranks import in_order, natural
from scheduler_core.request.pod_request import PodRequest, Profile, Refused


class Group(NamedTuple):
    """Members of one kind that may go to the same nodes, beside the same pods."""

    kind: Kind
    rules: PodRules | None
    members: tuple[Member, ...]  # in the order in which they get places, where there are not enough
    side: Side = Side()
    closed: frozenset[str] = frozenset()  # nodes of pods that they may not be beside


class Crew(NamedTuple):
    """All members that wait."""

    groups: tuple[Group, ...]  # those with most GPUs first
    others: tuple[Member, ...]  # without GPUs
    minimum: int  # of all these, so many must have a place
    required: str | None  # level, or label's key
    preferred: str | None

    @property
    def wanted(self) -> tuple[int, ...]:
        """Members of each kind."""
        return tuple(len(group.members) for group in self.groups)

    @property
    def apart(self) -> Pairs:
        """Kinds that may not share a node."""
        return pairs([group.side for group in self.groups])


def crew_of(members: Sequence[Member], view: NodeView, options: Options) -> Crew | Unplaced:
    """Who asks for what. Where a member asks for what cannot be understood, nobody has a place."""
    refused = [(each.name, each.request.reason) for each in in_order(members) if isinstance(each.request, Refused)]
    if refused:
        return Unplaced(refused[0][1], tuple(refused))
    sides = Sides(members, options.there)
    kinds: list[tuple[Kind, PodRules | None, Side, list[Member]]] = []
    others = []
    for each in in_order(members):
        assert isinstance(each.request, PodRequest)  # the refused are dealt with
        if not each.request.profile.ask.programs:
            others.append(each)
            continue
        kind = Kind(_profile(each.request, options.placed, view.table), view.policy_of(each.request))
        key = kind, each.rules, sides.of(each)
        known = next((those for *same, those in kinds if tuple(same) == key), None)
        if known is None:
            kinds.append((*key, [each]))
        else:
            known.append(each)
    groups = sorted(
        (Group(kind, rules, tuple(those), side, sides.closed(side)) for kind, rules, side, those in kinds), key=_order
    )
    wants = [each.wanted for each in members]
    return Crew(
        tuple(groups),
        tuple(others),
        _minimum(members, options),
        next((want.required for want in wants if want.required), None),
        next((want.preferred for want in wants if want.preferred), None),
    )


def _minimum(members: Sequence[Member], options: Options) -> int:
    """At least one, and never more than wait: whether all have come is decided before they are planned."""
    said = [each.wanted.minimum or each.wanted.size for each in members]
    least = options.minimum if options.minimum is not None else max((each for each in said if each), default=None)
    missing = len(members) if least is None else least - len(options.placed)
    return max(1, min(len(members), missing))


def _profile(request: PodRequest, placed: Sequence[Seat], table: NodeTable) -> Profile:
    """What it asks, given what its siblings run on already."""
    uids = {seat.uid for seat in placed}
    nodes = {seat.node for seat in placed}
    siblings = [
        Placed(name, pod)
        for name in sorted(name for name in nodes if name is not None and name in table.records)
        for pod in table.records[name].pods
        if pod.uid in uids
    ]
    return related(request, siblings, table)[0].profile


def _order(group: Group) -> tuple[int, tuple[tuple[int, int, str], ...], str]:
    first = group.members[0]
    return -group.kind.profile.devices, natural(first.name), first.uid
