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
from scheduler_core.cache.change_log import Changes
from scheduler_core.cache.kube_scheduler_filters import PodRules
from scheduler_core.cache.node_record import with_pod
from scheduler_core.cache.node_table import NodeTable, state_if
from scheduler_core.evaluation.ranking import Standings
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import APART, Sides
from scheduler_core.planner.packing.bandwidth import expected
from scheduler_core.planner.packing.model import AS_USUAL, NodeView, Options, Singles
from scheduler_core.planner.packing.node_filter import Bars
from scheduler_core.planner.packing.node_fit import NO_CPU, cpu_of
from scheduler_core.request.pod_request import PodRequest, Refused

_PROFILES = 256  # whose standings are kept
_RULES = 64  # for which the nodes are: of 5,000 nodes 0.3 MB each
NOT_TAKEN = "kube-scheduler would take no node: cordons, taints, nodeSelector or node affinity"


def plan_singles(members: Sequence[Member], view: NodeView, options: Options = AS_USUAL) -> Singles:
    """Where each goes, in that order. Of ``options`` what says which nodes to avoid counts, and when time is over."""
    return Placer().place(members, view, options)


class Placer:
    """Keeps how nodes stand from one batch to the next, of which only those count that are others by then."""

    def __init__(self) -> None:
        self._growing = _Growing()
        self._standings = Standings(self._growing, _PROFILES)
        self._nodes = _Nodes()

    def place(self, members: Sequence[Member], view: NodeView, options: Options = AS_USUAL) -> Singles:
        """As ``plan_singles``."""
        growing, nodes = self._growing, self._nodes
        growing.begin(view.table)
        nodes.begin(view, options, growing.moves)
        sides = Sides(members, options.there)
        seats, missing = list[Seat](), list[tuple[str, Reason | str]]()
        for member in members:
            if options.out_of_time():
                break
            request = member.request
            if isinstance(request, Refused):
                missing.append((member.uid, request.reason))
                continue
            if not request.profile.ask.programs:
                seats.append(Seat(member.uid, member.name))
                continue
            side = sides.of(member)
            names = nodes.of(member.rules)
            closed = names & sides.closed(side)
            standing = self._standings.of(request.profile, view.policy_of(request))
            open_ = names - closed if closed else names
            best = next(growing.roomy(standing.best(open_, request.uid), request), None)
            if best is None:
                apart = next(growing.roomy(standing.best(closed, request.uid), request), None) is not None
                missing.append((member.uid, APART if apart else _why(growing, standing.refused(names))))
                continue
            ask = request.profile.ask
            seats.append(Seat(member.uid, member.name, best, ask.totals, expected(growing.table.states[best], ask)))
            growing.add(best, request)
            sides.add(best, side)
        return Singles(tuple(seats), tuple(missing))


class _Growing:
    """The table with all that was placed so far (``standings.Source``)."""

    def __init__(self) -> None:
        self.table = NodeTable()
        self.changes = Changes()
        self.moves = 0  # how often nodes came or went

    def begin(self, table: NodeTable) -> None:
        """Nothing is placed on it yet."""
        before, after = self.table.states, table.states
        changed = [name for name, state in after.items() if before.get(name) is not state]
        come = sum(name not in before for name in changed)
        gone = [name for name in before if name not in after] if len(before) + come > len(after) else []
        self.moves += bool(come or gone)
        self.table = table
        self.changes.add((*changed, *gone))

    def roomy(self, names: Iterator[str], request: PodRequest) -> Iterator[str]:
        """Those that have the CPU."""
        asks = (request.profile.ask.cpu_milli,)
        return (name for name in names if cpu_of(self.table.records[name]).holds(asks))

    def add(self, name: str, request: PodRequest) -> None:
        """A pod is on its way there."""
        pod = Occupant(request.uid, request.namespace, request.name, request.profile, owner=request.owner)
        record = with_pod(self.table.records[name], pod)
        state = state_if(self.table, name, record.pods)
        records, states = self.table.records.set(name, record), self.table.states.set(name, state)
        self.table = msgspec.structs.replace(self.table, records=records, states=states)
        self.changes.add((name,))


class _Nodes:
    """Which nodes kube-scheduler would take, for pods by their rules."""

    def __init__(self) -> None:
        self._view: NodeView | None = None
        self._grounds: tuple[object, ...] = ()  # all that what is known follows from, but ``rules`` of the view
        self._names: list[str] = []
        self._known: list[tuple[PodRules | None, AbstractSet[str]]] = []

    def begin(self, view: NodeView, options: Options, moves: int) -> None:
        """What is known stays where nothing that it follows from is another."""
        grounds = (options.avoid, moves)
        if self._view is None or view.rules is not self._view.rules or grounds != self._grounds:
            self._names = [name for name in view.table.states if name in view.rules and name not in options.avoid]
            self._known = []
        self._view, self._grounds = view, grounds

    def of(self, rules: PodRules | None) -> AbstractSet[str]:
        """Those for pods with such rules."""
        found = next((names for known, names in self._known if known == rules), None)
        if found is None:
            assert self._view is not None  # it began
            if len(self._known) >= _RULES:
                self._known.clear()
            bars = Bars(rules)
            found = {name for name in self._names if bars.against(self._view.rules[name]) is None}
            self._known.append((rules, found))
        return found


def _why(growing: _Growing, refused: Mapping[str, str]) -> str:
    """What most of the nodes lack that have GPUs at all."""
    if not refused:
        return NOT_TAKEN
    # Those that suit, and were not taken, are "unknown" to a standing that is asked why they do not.
    said = {Reason.UNKNOWN_NODE.value: NO_CPU}
    states = growing.table.states
    counts = Counter(said.get(reason, reason) for name, reason in refused.items() if states[name].offered)
    return min(counts, key=lambda each: (-counts[each], each), default=Reason.TOO_FEW_GPUS.value)
