"""Plan many single pods one after the other on one snapshot, each with the pods before it in place. Pure.

The result is that of ``evaluate`` for one pod after the other, each on the next snapshot, over the nodes that pass
kube-scheduler's filters and have enough CPU, memory and pod slots. Siblings count as they do for pods without a gate.
A request that did not fit before is tried on the nodes that changed, as they are without the pods of this batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import PlannedMember
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.node_record import with_pod
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.evaluation.ranking import NodeRanking, PodRanking, Rankings
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import (
    ANTI_AFFINITY_REASON,
    NO_RELATION,
    AntiAffinities,
    AntiAffinity,
)
from scheduler_core.planner.packing.bandwidth import expected_gpus
from scheduler_core.planner.packing.free_resources import free_resources
from scheduler_core.planner.packing.model import DEFAULT_OPTIONS, NodeView, PlanOptions, RequestId, SinglePodPlan
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.placed_siblings import PlacedSiblings, RequestWithSiblings
from scheduler_core.planner.packing.unfit_requests import SingleRequest, UnfitRequests
from scheduler_core.planner.packing.view_changes import ViewReader
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod_request import InvalidRequest, PodRequest

_PROFILES = 256  # number of profiles with cached rankings
_RULES = 64  # number of rules with cached nodes: 0.3 MB each for 5,000 nodes
NOT_TAKEN = "kube-scheduler would reject every node: cordons, taints, nodeSelector or node affinity"


class SinglePodPlacer:
    """Keeps rankings from one batch to the next: only nodes that changed since are evaluated again."""

    def __init__(self) -> None:
        self._reader = ViewReader()
        self._growing = _GrowingSnapshot()
        self._rankings = Rankings(self._growing, _PROFILES)
        self._nodes = _AllowedNodes()
        self._unfit_requests = UnfitRequests()

    def see_view(self, view: NodeView) -> None:
        """Go on to another view, on which no pod is placed."""
        self._reader.see_view(view)

    def place_pods(
        self, members: Sequence[Member], view: NodeView, options: PlanOptions = DEFAULT_OPTIONS, *, again: bool = False
    ) -> SinglePodPlan:
        """Return the node of each pod, in this order. Only ``avoid``, ``placed_members`` and ``out_of_time`` apply.

        ``again``: only for requests that are known not to fit; find a reason again if nodes have changed often since.
        """
        growing, nodes = self._growing, self._nodes
        self._unfit_requests.see_view(view, growing.begin(view, self._reader.take_changed(view)))
        nodes.begin(view, options, growing.moves)
        anti_affinities = AntiAffinities(members, options.placed_members)
        seats, missing = list[PlannedMember](), list[tuple[str, Reason | str]]()
        reasons: dict[Hashable, Reason | str] = {}  # equal requests share a reason until a pod is placed
        request_ids: dict[str, RequestId] = {}  # by UID
        for member in members:
            if options.out_of_time():
                break
            request = member.request
            if isinstance(request, InvalidRequest) or member.blocked is not None:
                missing.append((member.uid, _own_reason(member)))
                continue
            ask = request.profile.device_request
            if not ask.steps_by_resource:
                seats.append(PlannedMember(member.uid, member.name))
                continue
            query = self._query_of(member, request, view, anti_affinities, options)
            known = self._unfit_requests.find_request(query.request, query.allowed) if query.is_shared else None
            if again and known is None:
                continue
            if known is not None and not (again and self._unfit_requests.is_reason_outdated(known)):
                missing.append((member.uid, known.reason))
                request_ids[member.uid] = known.request_id
                continue
            key = query.request, query.anti_affinity
            best = None if key in reasons else self._best_node(query, member)
            if best is None:
                if key not in reasons:
                    reasons[key] = self._reason_against(query, member)
                missing.append((member.uid, reasons[key]))
                if query.is_shared and not growing.has_placed:
                    request_ids[member.uid] = self._unfit_requests.record(query.request, reasons[key])
                continue
            reasons.clear()
            gpus = expected_gpus(growing.snapshot.states[best], ask)
            seats.append(PlannedMember(member.uid, member.name, best, ask.totals, gpus))
            growing.add_pod(best, request, member.load)
            anti_affinities.add_placed(best, query.anti_affinity)
        return SinglePodPlan(tuple(seats), tuple(missing), request_ids)

    def _query_of(
        self,
        member: Member,
        request: PodRequest,
        view: NodeView,
        anti_affinities: AntiAffinities,
        options: PlanOptions,
    ) -> _Query:
        """Return what a pod asks for, with the pods placed so far."""
        anti_affinity, names = anti_affinities.anti_affinity_of(member), self._nodes.nodes_for(member.rules)
        adapted = self._growing.siblings.with_siblings(request, self._growing.snapshot)
        rules_key = None if member.rules is None else member.rules.key
        return _Query(
            SingleRequest(rules_key, adapted.request.profile, view.policy_of(request), member.load),
            adapted,
            anti_affinity,
            names,
            names & anti_affinities.excluded_nodes(anti_affinity),
            is_shared=anti_affinity == NO_RELATION and not adapted.nodes and not options.avoid,
        )

    def _ranking(self, query: _Query) -> NodeRanking | PodRanking:
        return query.adapted.ranking(query.request.policy, self._rankings)

    def _best_node(self, query: _Query, member: Member) -> str | None:
        """Return the best node for a pod; None: no node suits."""
        return self._growing.best_node(self._ranking(query), query.allowed, member)

    def _reason_against(self, query: _Query, member: Member) -> Reason | str:
        """Return why a pod fits on no node."""
        ranking = self._ranking(query)
        if self._growing.best_node(ranking, query.excluded, member) is not None:
            return ANTI_AFFINITY_REASON
        return _most_frequent_reason(self._growing, ranking, query.names, member)


class _Query(NamedTuple):
    """A pod's request, given the pods placed so far, and the nodes that it may go to."""

    request: SingleRequest
    adapted: RequestWithSiblings
    anti_affinity: AntiAffinity
    names: AbstractSet[str]  # nodes that kube-scheduler would take
    excluded: AbstractSet[str]  # nodes in ``names`` with a pod that this pod may not share a node with
    is_shared: bool  # the result depends neither on other pods nor on nodes that only some pods avoid

    @property
    def allowed(self) -> AbstractSet[str]:
        """The nodes to choose from."""
        return self.names - self.excluded if self.excluded else self.names


def _own_reason(member: Member) -> str:
    """Return why a pod fits no node, whatever the nodes: an invalid request, or a volume claim that is not bound."""
    return member.request.reason if isinstance(member.request, InvalidRequest) else member.blocked or ""


class _GrowingSnapshot:
    """The snapshot with all pods placed so far (the ``Source`` of ``Rankings``)."""

    def __init__(self) -> None:
        self.snapshot = ClusterSnapshot()
        self.change_log = ChangeLog()
        self.moves = 0  # how often nodes were added or removed
        self.siblings = PlacedSiblings()
        self._others: Mapping[str, NodeLoad] = {}
        self._placed_on: set[str] = set()

    def begin(self, view: NodeView, names: AbstractSet[str] | None) -> AbstractSet[str]:
        """Begin with a view on which nothing is placed yet. Return all nodes that may differ from the last snapshot.

        ``names``: nodes that may differ from the last view; None: any may.
        """
        table, self._others = view.table, view.others
        before, after = self.snapshot.states, table.states
        names = {*before, *after} if names is None else names | self._placed_on
        changed = [name for name in names if before.get(name) is not after.get(name)]
        self.moves += any(name not in before or name not in after for name in changed)
        self.snapshot, self._placed_on = table, set()
        self.siblings.update_nodes(table, names)
        self.change_log.add_names(changed)
        return names

    @property
    def has_placed(self) -> bool:
        """Return whether any pod was placed on this snapshot."""
        return bool(self._placed_on)

    def best_node(self, ranking: NodeRanking | PodRanking, names: AbstractSet[str], member: Member) -> str | None:
        """Return the best of these nodes with enough CPU, memory and pod slots for a pod; None: no node suits."""
        best_first = ranking.best_nodes(names, member.uid)
        return next((name for name in best_first if self.shortage_on(name, member.load) is None), None)

    def shortage_on(self, name: str, load: NodeLoad) -> str | None:
        """Return what a node has too little of for a pod; None: nothing."""
        return free_resources(self.snapshot.records[name], self._others.get(name, NO_LOAD)).shortage(load)

    def add_pod(self, name: str, request: PodRequest, load: NodeLoad) -> None:
        """Place a pod on a node."""
        pod = Occupant(
            request.uid,
            request.namespace,
            request.name,
            request.profile,
            owner=request.owner,
            job=request.job,
            load=load,
        )
        record = with_pod(self.snapshot.records[name], pod)
        state = state_if(self.snapshot, name, record.pods)
        records, states = self.snapshot.records.set(name, record), self.snapshot.states.set(name, state)
        self.snapshot = msgspec.structs.replace(self.snapshot, records=records, states=states)
        self.siblings.update_nodes(self.snapshot, (name,))
        self.change_log.add_names((name,))
        self._placed_on.add(name)


class _AllowedNodes:
    """Nodes that kube-scheduler would take, by the pods' rules."""

    def __init__(self) -> None:
        self._view: NodeView | None = None
        self._inputs: tuple[object, ...] = ()  # inputs of the cache beside ``rules`` of the view
        self._names: list[str] = []
        self._known: dict[bytes | None, AbstractSet[str]] = {}

    def begin(self, view: NodeView, options: PlanOptions, moves: int) -> None:
        """Keep the cache if none of its inputs has changed."""
        inputs = (options.avoid, moves)
        if self._view is None or view.rules is not self._view.rules or inputs != self._inputs:
            self._names = [name for name in view.table.states if name in view.rules and name not in options.avoid]
            self._known = {}
        self._view, self._inputs = view, inputs

    def nodes_for(self, rules: SchedulingRules | None) -> AbstractSet[str]:
        """Return nodes for pods with these rules."""
        key = None if rules is None else rules.key
        found = self._known.get(key)
        if found is None:
            assert self._view is not None  # ``begin`` was called
            if len(self._known) >= _RULES:
                self._known.clear()
            node_filter = NodeFilter(rules)
            found = {name for name in self._names if node_filter.rejection_of(self._view.rules[name]) is None}
            self._known[key] = found
        return found


def _most_frequent_reason(
    growing: _GrowingSnapshot, ranking: NodeRanking | PodRanking, names: AbstractSet[str], member: Member
) -> str:
    """Return the most frequent reason on nodes that have GPUs."""
    rejections = ranking.rejections_of(names)
    if not rejections:
        return NOT_TAKEN
    states = growing.snapshot.states
    counts = Counter(
        # A ranking reports nodes whose GPUs fit as unknown nodes.
        (reason == Reason.UNKNOWN_NODE.value and growing.shortage_on(name, member.load)) or reason
        for name, reason in rejections.items()
        if states[name].allocatable
    )
    return min(counts, key=lambda each: (-counts[each], each), default=Reason.TOO_FEW_GPUS.value)
