"""Plan gangs one after the other. A gang that did not fit is planned again only where nodes take more of it. Pure.

The verdict on a gang that did not fit stands until a node takes more of its members than when the verdict was found, or
has other labels or taints. Then an upper bound of the members that fit decides. It is exact with members of one kind:
such a gang is planned only if it fits. Gangs with equal requests share a verdict.

The reasons of a verdict are those of its last diagnosis. After changes of nodes they may be wrong while the gang still
does not fit: the caller decides when to diagnose again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from weakref import WeakValueDictionary

import msgspec

from gputopo.recent_results import add_bounded
from scheduler_core.cache.node_state import product_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.packing.candidates import Candidates, own_levels
from scheduler_core.planner.packing.diagnosis import diagnosis_summary
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import (
    NO_HOLDS,
    GangPlan,
    Levels,
    NodeView,
    PlanOptions,
    RequestId,
    Unplaced,
)
from scheduler_core.planner.packing.node_classes import NodeCapacity, NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import FitClass, Load, limited_load
from scheduler_core.planner.packing.placed_pods import ChangedPods, PlacedMember
from scheduler_core.planner.packing.plan import plan_groups
from scheduler_core.planner.packing.search import (
    FitResults,
    LimitedNodes,
    SearchMemory,
    counts_by_product,
    limited_nodes_of,
    resource_requests,
)
from scheduler_core.planner.packing.view_changes import ViewReader
from scheduler_core.request.pod_request import Strength

_MAX_REQUESTS = 1 << 13  # gangs: those that were tried last
_MAX_VERDICTS = 1 << 12  # different requests: later gangs share the verdicts of those that came last
_MAX_RESULTS = 64  # different requests with kept results, a megabyte each at most: those that were planned last
_MAX_LIMITED = 64  # different requests of CPU, memory and devices with kept nodes that are short of these
_MAX_CANDIDATES = 8  # different rules with kept candidates
_MAX_KINDS = 8  # of a gang for which anything is kept
_MAX_CHANGED = 1 << 12  # changed nodes that a verdict remembers: with more, the bound is computed again


class _Verdict(msgspec.Struct):
    """The reason that gangs with equal requests did not fit, and the nodes at that time."""

    unplaced: Unplaced  # without ``missing``: not diagnosed yet
    names: tuple[str, ...]  # of the members that ``unplaced`` names
    mark: int  # of the node classes: changes until then are checked
    loads: dict[int, Load]  # by class: members of each kind that fit there alone; classes that take none are left out
    diagnosed_at: int = -1  # mark of the node classes of the reasons in ``unplaced``
    # Nodes that changed since: what they had, and the load, at the verdict.
    before: dict[str, tuple[NodeCapacity | None, Load]] = {}


class _Verdicts(msgspec.Struct):
    """The verdicts on gangs with equal requests."""

    by_avoided: dict[AbstractSet[str], _Verdict] = {}  # key: the nodes that the plan avoids
    # By ignored holds. An ID is kept as long as a result has it.
    request_ids: WeakValueDictionary[frozenset[str], RequestId] = msgspec.field(default_factory=WeakValueDictionary)


class _Request(msgspec.Struct):
    """A gang as it was last grouped."""

    members: Sequence[Member]
    minimum: int | None
    groups: MemberGroups
    key: Hashable  # equal for gangs with equal requests
    verdicts: _Verdicts  # shared by all gangs with equal requests
    source: Unplaced | None = None  # ``unplaced`` is this result with the names of this gang
    unplaced: Unplaced | None = None


class GangPlanner:
    """Keeps classes of nodes, and verdicts, from one plan to the next. For one thread."""

    def __init__(self) -> None:
        self._reader = ViewReader()
        self._nodes = NodeClasses()
        self._requests: dict[GangName, _Request] = {}
        self._verdicts: dict[Hashable, _Verdicts] = {}  # by all that decides whether gangs fit
        self._results: dict[Hashable, FitResults] = {}  # by request, the last used last
        self._limited: dict[Hashable, LimitedNodes] = {}  # by ``resource_requests``
        self._candidates: dict[Hashable, Candidates] = {}  # by the rules of a request, the last used last
        self._inputs: tuple[object, ...] = ()  # of all requests
        self._placed_members: tuple[PlacedMember, ...] = ()  # on which the grouping of members depends
        self._diagnosed_at: dict[GangName, int] = {}  # of the result that each gang was given last

    def see_view(self, view: NodeView) -> None:
        """Go on to another view, on which no gang is planned."""
        self._reader.see_view(view)

    def changes_since_diagnosis(self, name: GangName) -> int:
        """Return how many changes of nodes the reasons of a gang that did not fit do not know of."""
        return self._nodes.mark - self._diagnosed_at.get(name, self._nodes.mark)

    def request_id(self, name: GangName, ignored_holds: frozenset[str] = NO_HOLDS) -> RequestId | None:
        """Return the ID of the request of a gang that was just planned without these holds: equal requests share it.

        If one of these gangs does not fit without avoided nodes, none does. None: this is not known, because no gang
        with this request was planned without avoided nodes on these nodes, the gang has placed members, its members
        cannot be grouped, or the time of the plan was over before.
        """
        request = self._requests.get(name)
        if request is None:
            return None
        verdict = request.verdicts.by_avoided.get(frozenset())
        if verdict is None or verdict.mark != self._nodes.mark:
            return None
        return request.verdicts.request_ids.setdefault(ignored_holds, RequestId(ignored_holds))

    def plan_gang(
        self,
        members: Sequence[Member],
        view: NodeView,
        options: PlanOptions,
        *,
        diagnose: bool = True,
        again: bool = False,
    ) -> GangPlan | Unplaced:
        """Return the result of ``plan.plan_gang``.

        ``diagnose``: False leaves ``Unplaced.missing`` empty where that saves a plan. ``again``: also find the reasons
        again if nodes have changed since.
        """
        request = self._request(members, view, options)
        if isinstance(request, Unplaced):
            return request
        self._nodes.update(view, self._reader.take_changed(view))
        groups, verdict = request.groups, request.verdicts.by_avoided.get(options.avoid)
        if verdict is None or self._has_improved(verdict, request, options.levels):
            memory = self._memory(request, options.levels)
            trial = _GangFit(groups, self._nodes, memory)
            most = trial.count_members(options)
            if most >= groups.minimum:
                found = plan_groups(groups, view, options, self._nodes, memory)
                if isinstance(found, GangPlan) or options.out_of_time():
                    self._forget_placed(members, found)
                    return found
            elif verdict is None or verdict.unplaced.best != most:
                missing = () if verdict is None else verdict.unplaced.missing
                found = Unplaced(diagnosis_summary(most, groups), missing, most)
            else:
                found = verdict.unplaced
            trial.load_all()
            names = _names(groups) if verdict is None or most >= groups.minimum else verdict.names
            mark = self._nodes.mark
            known_at = mark if verdict is None or most >= groups.minimum else verdict.diagnosed_at
            verdict = request.verdicts.by_avoided[options.avoid] = _Verdict(found, names, mark, trial.loads, known_at)
        if diagnose and (not verdict.unplaced.missing or (again and verdict.diagnosed_at != self._nodes.mark)):
            found = plan_groups(groups, view, options, self._nodes, self._memory(request, options.levels))
            if isinstance(found, GangPlan):
                del request.verdicts.by_avoided[options.avoid]  # it was wrong: the gang fits
                self._forget_placed(members, found)
                return found
            if not (again and options.out_of_time()):
                verdict.unplaced, verdict.names, verdict.diagnosed_at = found, _names(groups), self._nodes.mark
        add_bounded(self._diagnosed_at, members[0].gang_request.gang, verdict.diagnosed_at, _MAX_REQUESTS)
        return _with_own_names(request, verdict)

    def _request(self, members: Sequence[Member], view: NodeView, options: PlanOptions) -> _Request | Unplaced:
        inputs = (view.policy_of, options.levels)
        if inputs != self._inputs:
            self._inputs, self._requests, self._verdicts = inputs, {}, {}
            self._results.clear()
            self._candidates.clear()
        if options.placed_members is not self._placed_members:  # results are kept: their keys have the excluded nodes
            changed = ChangedPods(self._placed_members, options.placed_members)
            self._placed_members = options.placed_members
            self._requests = {
                name: each for name, each in self._requests.items() if not changed.may_affect(each.members)
            }
        name = members[0].gang_request.gang
        known = self._requests.pop(name, None)
        if known is not None and known.members is members and known.minimum == options.minimum and not options.placed:
            self._requests[name] = known
            return known
        groups = group_members(members, view, options)
        if isinstance(groups, Unplaced):
            return groups
        key = _fit_key(groups, view, options)
        verdicts = self._verdicts.get(key)
        if verdicts is None:
            verdicts = _Verdicts()
            add_bounded(self._verdicts, key, verdicts, _MAX_VERDICTS)
        found = _Request(members, options.minimum, groups, key, verdicts)
        if not options.placed:
            add_bounded(self._requests, name, found, _MAX_REQUESTS)
        return found

    def _forget_placed(self, members: Sequence[Member], found: GangPlan | Unplaced) -> None:
        """Keep no members of a gang that is placed."""
        if isinstance(found, GangPlan):
            self._requests.pop(members[0].gang_request.gang, None)

    def _memory(self, request: _Request, levels: Levels) -> SearchMemory:
        """Return what is kept for gangs with equal requests."""
        groups = request.groups
        rules = tuple(each.rules and each.rules.key for each in groups.groups), own_levels(groups, levels)
        candidates = self._candidates.pop(rules, None) or Candidates(groups, levels)
        results = self._results.pop(request.key, None) or FitResults(groups, self._nodes, self._limited_nodes(groups))
        if len(groups.groups) <= _MAX_KINDS:
            add_bounded(self._candidates, rules, candidates, _MAX_CANDIDATES)
            add_bounded(self._results, request.key, results, _MAX_RESULTS)
        return SearchMemory(candidates, results)

    def _limited_nodes(self, groups: MemberGroups) -> LimitedNodes:
        requests = resource_requests(groups)
        found = self._limited.pop(requests, None) or limited_nodes_of(groups, self._nodes)
        add_bounded(self._limited, requests, found, _MAX_LIMITED)
        return found

    def _has_improved(self, verdict: _Verdict, request: _Request, levels: Levels) -> bool:
        """Return whether a node may take more members than when the verdict was found."""
        groups = request.groups
        nodes, nothing, kinds = self._nodes, (0,) * len(groups.groups), [each.kind for each in groups.groups]
        changes = nodes.changed_since(verdict.mark)
        if changes is None or len(verdict.before) > _MAX_CHANGED:
            return True
        trial: _GangFit | None = None  # made when it is needed: it may compute everything again
        for name, before in changes.items():
            capacity = nodes.capacity_of.get(name)
            may_take = capacity is not None and self._has_devices(capacity, groups)
            if before is None and not may_take:
                verdict.before.pop(name, None)  # other labels or taints than at the verdict: it took no members then
            if before == capacity or not (may_take or (before is not None and self._has_devices(before, groups))):
                continue
            was: tuple[NodeCapacity | None, Load] = (None, nothing)
            if before is not None:
                load = limited_load(verdict.loads.get(before.node_class, nothing), before.free, kinds)
                was = verdict.before.get(name) or (before, load)
            if capacity is not None and may_take:
                trial = trial or _GangFit(groups, nodes, self._memory(request, levels))
                if before is not None and trial.are_equal(before, capacity):
                    continue
                if trial.may_take_more(was[0], capacity):
                    load = limited_load(trial.load_of(FitClass(capacity.node_class)), capacity.free, kinds)
                    # Members of several kinds may fit better beside each other, though not more of each kind alone.
                    if any(load) and (len(load) > 1 or load > was[1]) and trial.takes(name):
                        return True
            if before is None or any(was[1]):
                verdict.before[name] = was
        verdict.mark = nodes.mark
        return False

    def _has_devices(self, capacity: NodeCapacity, groups: MemberGroups) -> bool:
        """Return whether a node has, or had, enough free devices for any member."""
        node = self._nodes.classes.get(capacity.node_class)
        return node is None or any(
            all(
                node.state.free_devices(resource) >= devices
                for resource, devices in each.kind.profile.device_request.totals
            )
            for each in groups.groups
        )


class _GangFit:
    """The fit of one gang on the present nodes."""

    def __init__(self, groups: MemberGroups, nodes: NodeClasses, memory: SearchMemory) -> None:
        self.loads = memory.results.loads
        self._groups, self._nodes = groups, nodes
        self._candidates, self._results, self._fit = memory.candidates, memory.results, memory.results.node_fit
        self._filters = [NodeFilter(each.rules, each.excluded_nodes) for each in groups.groups]

    def load_of(self, of: FitClass) -> Load:
        """Return how many members of each kind fit alone on a node of the class."""
        found, kinds, gpus = self.loads.get(of.number), range(len(self._filters)), FitClass(of.number)
        if found is None:
            if not any(self._fit.max_of_kind(gpus, at) for at in kinds):
                return (0,) * len(kinds)
            found = self.loads[of.number] = tuple(self._fit.max_alone(gpus, at) for at in kinds)
        return found if of.free is None else self._fit.limited_load(found, of.free)

    def are_equal(self, before: NodeCapacity, capacity: NodeCapacity) -> bool:
        """Return whether a node takes the same members as before: most pods without GPUs do not matter."""
        return before.node_class == capacity.node_class and self._fit.class_of(before) == self._fit.class_of(capacity)

    def may_take_more(self, before: NodeCapacity | None, capacity: NodeCapacity) -> bool:
        """Return whether a node may take more members than before."""
        if before is None or before.node_class != capacity.node_class:
            return True
        return any(now > was for was, now in zip(before.free, capacity.free, strict=True))

    def load_all(self) -> None:
        """Compute the loads of all classes."""
        for number in self._nodes.nodes:
            self.load_of(FitClass(number))

    def takes(self, name: str) -> bool:
        """Return whether kube-scheduler would take the node for at least one kind."""
        node = self._nodes.rules.get(name)
        return node is not None and any(each.rejection_of(node) is None for each in self._filters)

    def count_members(self, options: PlanOptions) -> int:
        """Return an upper bound of the members that fit at once, or at least the minimum where they may all fit.

        Where the time does not suffice, they may.
        """
        groups, required = self._groups, self._groups.required
        if not self._candidates.update(groups, self._nodes, options, self._results.limited_nodes()):
            return groups.minimum
        most, one_product = len(groups.without_gpus), groups.same_product is Strength.REQUIRED
        for whole in self._candidates.at_level(() if required is None else (required,)).groups():
            for counts in counts_by_product(whole, self._nodes).values() if one_product else (whole,):
                total = [0] * len(self._filters)
                for of, number in counts:
                    if of.node_class.number not in self.loads and options.out_of_time():
                        return groups.minimum
                    for at, load in enumerate(self.load_of(of.node_class)):
                        total[at] += number * load if of.allowed[at] else 0
                most = max(most, len(groups.without_gpus) + sum(map(min, total, groups.wanted)))
                if most >= groups.minimum:
                    return most
        return most


def _fit_key(groups: MemberGroups, view: NodeView, options: PlanOptions) -> Hashable:
    """Return all of a gang that decides whether it fits, except the nodes to avoid."""
    nodes = sorted({seat.node for seat in options.placed if seat.node is not None})
    siblings = tuple(
        (
            name,
            tuple(sorted((view.rules[name].metadata.labels or {}).items())),
            product_of(view.table.states[name]) if name in view.table.states else None,
        )
        for name in nodes
        if name in view.rules
    )
    kinds = tuple(
        (each.kind, each.rules and each.rules.key, len(each.members), each.excluded_nodes) for each in groups.groups
    )
    return kinds, groups.conflicting_kinds, len(groups.without_gpus), groups.minimum, groups.required, siblings


def _names(groups: MemberGroups) -> tuple[str, ...]:
    return tuple(member.name for each in groups.groups for member in each.members)


def _with_own_names(request: _Request, verdict: _Verdict) -> Unplaced:
    """Return the verdict with the names of this gang; the same object while nothing changes."""
    if request.source is not verdict.unplaced or request.unplaced is None:
        own = dict(zip(verdict.names, _names(request.groups), strict=True))
        missing = tuple((own[name], reason) for name, reason in verdict.unplaced.missing)
        request.source, request.unplaced = verdict.unplaced, verdict.unplaced._replace(missing=missing)
    return request.unplaced
