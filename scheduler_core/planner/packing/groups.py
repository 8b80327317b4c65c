"""A gang as the planner sees it: members that ask for the same are of one kind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputopo.crd.reservations import Seat
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.owner_pods import PlacedPod, for_owner
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import (
    AntiAffinities,
    AntiAffinity,
    ConflictingPairs,
    conflicting_pairs,
)
from scheduler_core.planner.packing.model import NodeView, PlanOptions, Unplaced
from scheduler_core.planner.packing.node_fit import MemberKind
from scheduler_core.planner.packing.ranks import natural_key, sort_by_rank
from scheduler_core.request.pod_request import InvalidRequest, PodProfile, PodRequest


class MemberGroup(NamedTuple):
    """Members of one kind that may go to the same nodes, beside the same pods."""

    kind: MemberKind
    rules: SchedulingRules | None
    members: tuple[Member, ...]  # in the order in which they get places, where there are not enough
    anti_affinity: AntiAffinity = AntiAffinity()
    excluded_nodes: frozenset[str] = frozenset()  # nodes of pods that they may not be beside


class MemberGroups(NamedTuple):
    """All members that wait."""

    groups: tuple[MemberGroup, ...]  # those with most GPUs first
    without_gpus: tuple[Member, ...]  # without GPUs
    minimum: int  # of all these, so many must have a place
    required: str | None  # level, or label's key
    preferred: str | None

    @property
    def wanted(self) -> tuple[int, ...]:
        """Members of each kind."""
        return tuple(len(group.members) for group in self.groups)

    @property
    def conflicting_kinds(self) -> ConflictingPairs:
        """Kinds that may not share a node."""
        return conflicting_pairs([group.anti_affinity for group in self.groups])


def group_members(members: Sequence[Member], view: NodeView, options: PlanOptions) -> MemberGroups | Unplaced:
    """Who asks for what. Where a member asks for what cannot be understood, nobody has a place."""
    refused = [
        (each.name, each.request.reason) for each in sort_by_rank(members) if isinstance(each.request, InvalidRequest)
    ]
    if refused:
        return Unplaced(refused[0][1], tuple(refused))
    sides = AntiAffinities(members, options.placed_members)
    kinds: list[tuple[MemberKind, SchedulingRules | None, AntiAffinity, list[Member]]] = []
    others = []
    for each in sort_by_rank(members):
        assert isinstance(each.request, PodRequest)  # the refused are dealt with
        if not each.request.profile.device_request.steps_by_resource:
            others.append(each)
            continue
        kind = MemberKind(_profile(each.request, options.placed, view.table), view.policy_of(each.request))
        key = kind, each.rules, sides.anti_affinity_of(each)
        known = next((those for *same, those in kinds if tuple(same) == key), None)
        if known is None:
            kinds.append((*key, [each]))
        else:
            known.append(each)
    groups = sorted(
        (
            MemberGroup(kind, rules, tuple(those), side, sides.excluded_nodes(side))
            for kind, rules, side, those in kinds
        ),
        key=_order,
    )
    wants = [each.gang_request for each in members]
    return MemberGroups(
        tuple(groups),
        tuple(others),
        _minimum(members, options),
        next((want.required for want in wants if want.required), None),
        next((want.preferred for want in wants if want.preferred), None),
    )


def _minimum(members: Sequence[Member], options: PlanOptions) -> int:
    """At least one, and never more than wait: whether all have come is decided before they are planned."""
    said = [each.gang_request.minimum or each.gang_request.size for each in members]
    least = options.minimum if options.minimum is not None else max((each for each in said if each), default=None)
    missing = len(members) if least is None else least - len(options.placed)
    return max(1, min(len(members), missing))


def _profile(request: PodRequest, placed: Sequence[Seat], table: Snapshot) -> PodProfile:
    """What it asks, given what its siblings run on already."""
    uids = {seat.uid for seat in placed}
    nodes = {seat.node for seat in placed}
    siblings = [
        PlacedPod(name, pod)
        for name in sorted(name for name in nodes if name is not None and name in table.records)
        for pod in table.records[name].pods
        if pod.uid in uids
    ]
    return for_owner(request, siblings, table)[0].profile


def _order(group: MemberGroup) -> tuple[int, tuple[tuple[int, int, str], ...], str]:
    first = group.members[0]
    return -group.kind.profile.devices, natural_key(first.name), first.uid
