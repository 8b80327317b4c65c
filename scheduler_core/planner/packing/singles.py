"""Many pods that are on their own, one after the other on one snapshot, each seeing those before it. Pure.

The same answers as ``evaluate`` gives one by one, each with the next table, over the nodes that kube-scheduler would
take and that have the CPU, as far as is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gputopo.crd.reservations import Seat
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.node_record import with_pod
from scheduler_core.cache.node_table import Snapshot, state_if
from scheduler_core.evaluation.ranking import Rankings
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON, AntiAffinities
from scheduler_core.planner.packing.bandwidth import expected_gpus
from scheduler_core.planner.packing.model import DEFAULT_OPTIONS, NodeView, PlanOptions, SinglePodPlan
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import NO_CPU, node_cpu_of
from scheduler_core.request.pod_request import InvalidRequest, PodRequest

_PROFILES = 256  # whose standings are kept
_RULES = 64  # for which the nodes are: of 5,000 nodes 0.3 MB each
NOT_TAKEN = "kube-scheduler would take no node: cordons, taints, nodeSelector or node affinity"


def plan_single_pods(
    members: Sequence[Member], view: NodeView, options: PlanOptions = DEFAULT_OPTIONS
) -> SinglePodPlan:
    """Where each goes, in that order. Of ``options`` what says which nodes to avoid counts, and when time is over."""
    return SinglePodPlacer().place_pods(members, view, options)


class SinglePodPlacer:
    """Keeps how nodes stand from one batch to the next, of which only those count that are others by then."""

    def __init__(self) -> None:
        self._growing = _GrowingSnapshot()
        self._standings = Rankings(self._growing, _PROFILES)
        self._nodes = _AllowedNodes()

    def place_pods(
        self, members: Sequence[Member], view: NodeView, options: PlanOptions = DEFAULT_OPTIONS
    ) -> SinglePodPlan:
        """As ``plan_singles``."""
        growing, nodes = self._growing, self._nodes
        growing.begin(view.table)
        nodes.begin(view, options, growing.moves)
        sides = AntiAffinities(members, options.placed_members)
        seats, missing = list[Seat](), list[tuple[str, Reason | str]]()
        for member in members:
            if options.out_of_time():
                break
            request = member.request
            if isinstance(request, InvalidRequest):
                missing.append((member.uid, request.reason))
                continue
            if not request.profile.device_request.steps_by_resource:
                seats.append(Seat(member.uid, member.name))
                continue
            side = sides.anti_affinity_of(member)
            names = nodes.nodes_for(member.rules)
            closed = names & sides.excluded_nodes(side)
            standing = self._standings.ranking_for(request.profile, view.policy_of(request))
            open_ = names - closed if closed else names
            best = next(growing.with_enough_cpu(standing.best_nodes(open_, request.uid), request), None)
            if best is None:
                apart = (
                    next(growing.with_enough_cpu(standing.best_nodes(closed, request.uid), request), None) is not None
                )
                missing.append(
                    (member.uid, ANTI_AFFINITY_REASON if apart else _why(growing, standing.rejections_of(names)))
                )
                continue
            ask = request.profile.device_request
            seats.append(
                Seat(member.uid, member.name, best, ask.totals, expected_gpus(growing.table.states[best], ask))
            )
            growing.add_pod(best, request)
            sides.add_placed(best, side)
        return SinglePodPlan(tuple(seats), tuple(missing))


class _GrowingSnapshot:
    """The table with all that was placed so far (``standings.Source``)."""

    def __init__(self) -> None:
        self.table = Snapshot()
        self.change_log = ChangeLog()
        self.moves = 0  # how often nodes came or went

    def begin(self, table: Snapshot) -> None:
        """Nothing is placed on it yet."""
        before, after = self.table.states, table.states
        changed = [name for name, state in after.items() if before.get(name) is not state]
        come = sum(name not in before for name in changed)
        gone = [name for name in before if name not in after] if len(before) + come > len(after) else []
        self.moves += bool(come or gone)
        self.table = table
        self.change_log.add_names((*changed, *gone))

    def with_enough_cpu(self, names: Iterator[str], request: PodRequest) -> Iterator[str]:
        """Those that have the CPU."""
        asks = (request.profile.device_request.cpu_milli,)
        return (name for name in names if node_cpu_of(self.table.records[name]).has_room_for(asks))

    def add_pod(self, name: str, request: PodRequest) -> None:
        """A pod is on its way there."""
        pod = Occupant(request.uid, request.namespace, request.name, request.profile, owner=request.owner)
        record = with_pod(self.table.records[name], pod)
        state = state_if(self.table, name, record.pods)
        records, states = self.table.records.set(name, record), self.table.states.set(name, state)
        self.table = msgspec.structs.replace(self.table, records=records, states=states)
        self.change_log.add_names((name,))


class _AllowedNodes:
    """Which nodes kube-scheduler would take, for pods by their rules."""

    def __init__(self) -> None:
        self._view: NodeView | None = None
        self._grounds: tuple[object, ...] = ()  # all that what is known follows from, but ``rules`` of the view
        self._names: list[str] = []
        self._known: list[tuple[SchedulingRules | None, AbstractSet[str]]] = []

    def begin(self, view: NodeView, options: PlanOptions, moves: int) -> None:
        """What is known stays where nothing that it follows from is another."""
        grounds = (options.avoid, moves)
        if self._view is None or view.rules is not self._view.rules or grounds != self._grounds:
            self._names = [name for name in view.table.states if name in view.rules and name not in options.avoid]
            self._known = []
        self._view, self._grounds = view, grounds

    def nodes_for(self, rules: SchedulingRules | None) -> AbstractSet[str]:
        """Those for pods with such rules."""
        found = next((names for known, names in self._known if known == rules), None)
        if found is None:
            assert self._view is not None  # it began
            if len(self._known) >= _RULES:
                self._known.clear()
            bars = NodeFilter(rules)
            found = {name for name in self._names if bars.rejection_of(self._view.rules[name]) is None}
            self._known.append((rules, found))
        return found


def _why(growing: _GrowingSnapshot, refused: Mapping[str, str]) -> str:
    """What most of the nodes lack that have GPUs at all."""
    if not refused:
        return NOT_TAKEN
    # Those that suit, and were not taken, are "unknown" to a standing that is asked why they do not.
    said = {Reason.UNKNOWN_NODE.value: NO_CPU}
    states = growing.table.states
    counts = Counter(said.get(reason, reason) for name, reason in refused.items() if states[name].allocatable)
    return min(counts, key=lambda each: (-counts[each], each), default=Reason.TOO_FEW_GPUS.value)
