"""The members to place, grouped by request, scheduling rules and anti-affinity. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputopo.crd.reservations import PlannedMember
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.owner_pods import PlacedPod, with_owner
from scheduler_core.planner.gang.gang import natural_key
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import (
    AntiAffinities,
    AntiAffinity,
    ConflictingPairs,
    conflicting_pairs,
)
from scheduler_core.planner.packing.model import NodeView, PlanOptions, Unplaced
from scheduler_core.planner.packing.node_fit import MemberKind
from scheduler_core.planner.packing.ranks import sort_by_rank
from scheduler_core.request.pod_request import InvalidRequest, PodProfile, PodRequest, Strength


class MemberGroup(NamedTuple):
    """Members with the same request, scheduling rules and anti-affinity."""

    kind: MemberKind
    rules: SchedulingRules | None
    members: tuple[Member, ...]  # in the order in which they are placed, if not all can be
    anti_affinity: AntiAffinity = AntiAffinity()
    excluded_nodes: frozenset[str] = frozenset()  # nodes with pods that they may not share a node with


class MemberGroups(NamedTuple):
    """All members to place."""

    groups: tuple[MemberGroup, ...]  # with most GPUs first
    without_gpus: tuple[Member, ...]
    minimum: int  # number of these members that must be placed
    required: str | None  # a level, or a label's key
    preferred: str | None
    same_product: Strength = Strength.PREFERRED  # all members on GPUs of one product

    @property
    def wanted(self) -> tuple[int, ...]:
        """Members of each kind."""
        return tuple(len(group.members) for group in self.groups)

    @property
    def conflicting_kinds(self) -> ConflictingPairs:
        """Kinds that may not share a node."""
        return conflicting_pairs([group.anti_affinity for group in self.groups])


def group_members(members: Sequence[Member], view: NodeView, options: PlanOptions) -> MemberGroups | Unplaced:
    """Group members by what they ask for. If a request is invalid, the gang is not placed."""
    invalid = [
        (each.name, each.request.reason) for each in sort_by_rank(members) if isinstance(each.request, InvalidRequest)
    ]
    if invalid:
        return Unplaced(invalid[0][1], tuple(invalid))
    blocked = [(each.name, each.blocked) for each in sort_by_rank(members) if each.blocked is not None]
    if blocked:
        return Unplaced(f"no node fits {blocked[0][0]}: {blocked[0][1]}", tuple(blocked))
    anti_affinities = AntiAffinities(members, options.placed_members)
    has_peers = len(members) + len(options.placed) > 1
    kinds: dict[tuple[MemberKind, bytes | None, AntiAffinity], list[Member]] = {}
    without_gpus = []
    for each in sort_by_rank(members):
        assert isinstance(each.request, PodRequest)  # invalid requests returned above
        if not each.request.profile.device_request.steps_by_resource:
            without_gpus.append(each)
            continue
        kind = MemberKind(
            _profile(each.request, options.placed, view.table, has_peers=has_peers),
            view.policy_of(each.request),
            each.load,
        )
        rules_key = None if each.rules is None else each.rules.key
        kinds.setdefault((kind, rules_key, anti_affinities.anti_affinity_of(each)), []).append(each)
    groups = sorted(
        (
            MemberGroup(kind, same[0].rules, tuple(same), anti_affinity, anti_affinities.excluded_nodes(anti_affinity))
            for (kind, _, anti_affinity), same in kinds.items()
        ),
        key=_order,
    )
    requests = [each.gang_request for each in members]
    return MemberGroups(
        tuple(groups),
        tuple(without_gpus),
        _minimum(members, options),
        next((request.required for request in requests if request.required), None),
        next((request.preferred for request in requests if request.preferred), None),
        _same_product(group.kind.profile for group in groups),
    )


def _same_product(profiles: Iterable[PodProfile]) -> Strength:
    """Return the strongest ``same-product`` of the members: it applies to the whole gang."""
    strengths = {each.constraints.same_product for each in profiles}
    if Strength.REQUIRED in strengths:
        return Strength.REQUIRED
    return Strength.IGNORE if strengths == {Strength.IGNORE} else Strength.PREFERRED


def _minimum(members: Sequence[Member], options: PlanOptions) -> int:
    """Return how many members must be placed: at least 1, at most all. ``Gang`` decides whether it is complete."""
    declared = [each.gang_request.minimum or each.gang_request.size for each in members]
    minimum = options.minimum if options.minimum is not None else max((each for each in declared if each), default=None)
    missing = len(members) if minimum is None else minimum - len(options.placed)
    return max(1, min(len(members), missing))


def _profile(
    request: PodRequest, placed: Sequence[PlannedMember], table: ClusterSnapshot, *, has_peers: bool
) -> PodProfile:
    """Return the member's profile, with the hardware of its placed siblings."""
    uids = {seat.uid for seat in placed}
    nodes = {seat.node for seat in placed}
    siblings = [
        PlacedPod(name, pod)
        for name in sorted(name for name in nodes if name is not None and name in table.records)
        for pod in table.records[name].pods
        if pod.uid in uids
    ]
    return with_owner(request, siblings, table)[0].profile._replace(has_peers=has_peers)


def _order(group: MemberGroup) -> tuple[int, tuple[tuple[int, int, str], ...], str]:
    first = group.members[0]
    return -group.kind.profile.devices, natural_key(first.name), first.uid
