"""How many members fit on a node, and their scores there. Pure.

The kubelet may admit members that are ungated together in any order. So each member with a required shape is evaluated
as if all others were admitted before it (``filters.rejection_reason``, for the worst possible outcome), and so are pods
that are on their way to the node already (``filters.unadmitted_shapes``). A load that fits still fits with fewer
members.

Nodes with equal GPUs share one class (``node_classes``), and its results. What else is free there matters only where it
does not suffice for as many members as the GPUs: then the load must fit into that, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from gputopo.recent_results import ResultCache
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.score import MAX_POINTS, Score
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON, ConflictingPairs
from scheduler_core.planner.packing.free_resources import FreeResources
from scheduler_core.planner.packing.node_classes import NodeCapacity, NodeClass, NodeClasses
from scheduler_core.policy.policy import Policy
from scheduler_core.request.node_load import NO_LOAD, ONE_POD, NodeLoad
from scheduler_core.request.pod_request import PodProfile

_MAX_RESULTS, _MAX_UNUSED = 1 << 15, 1 << 8  # of one gang: in all; of classes without nodes
MICRO = 1_000_000  # integer sums do not depend on the order

Load = tuple[int, ...]  # members of each kind
AddedPods = tuple[tuple[PodProfile, int], ...]  # pods of each profile


class MemberKind(NamedTuple):
    """Members with the same request."""

    profile: PodProfile
    policy: Policy
    load: NodeLoad = ONE_POD


class FitClass(NamedTuple):
    """Nodes on which members of equal gangs fit equally."""

    number: int  # of the class in ``NodeClasses``
    free: FreeResources | None = None  # None: enough for all members that the GPUs suffice for


class NodeFit:
    """Fit of equal gangs, computed once for each class of nodes. Classes have the numbers of ``nodes``."""

    def __init__(
        self,
        nodes: NodeClasses,
        kinds: Sequence[MemberKind],
        wanted: Load,
        conflicting: ConflictingPairs = frozenset(),
    ) -> None:
        """``wanted``: members of each kind. ``conflicting``: kinds that may not share a node."""
        self.wanted = wanted
        self.nodes = nodes
        self._kinds = kinds
        self._conflicting = conflicting
        self._devices = [kind.profile.devices for kind in kinds]
        self._evaluators = [evaluator_for(kind.profile, kind.policy) for kind in kinds]
        self._points: dict[tuple[int, Load], int | Reason | str] = {}
        self._states: dict[tuple[int, Load], NodeState] = {}
        self._alone: dict[tuple[int, int], int] = {}
        self._needed: dict[int, tuple[FitClass, NodeLoad]] = {}  # by class: what suffices for all members
        self._used = 0  # results of classes with nodes, when the others were dropped

    def drop_unused(self) -> None:
        """Drop the results of classes without nodes if they are many, and all results if these are too many."""
        if len(self._points) <= 2 * self._used + _MAX_UNUSED:
            return
        present = {} if len(self._points) > _MAX_RESULTS else self.nodes.nodes
        self._points = {key: found for key, found in self._points.items() if key[0] in present}
        self._states = {key: found for key, found in self._states.items() if key[0] in present}
        self._alone = {key: found for key, found in self._alone.items() if key[0] in present}
        self._needed = {key: found for key, found in self._needed.items() if key in present}
        self._used = len(self._points)

    def class_of(self, capacity: NodeCapacity) -> FitClass:
        """Return the class of a node with this capacity."""
        known = self._needed.get(capacity.node_class)
        if known is None:
            if len(self._needed) > 2 * len(self.nodes.nodes) + _MAX_UNUSED:
                self._needed.clear()  # most are of former classes
            known = FitClass(capacity.node_class), self._most_requested(capacity.node_class)
            self._needed[capacity.node_class] = known
        of, needed = known
        if capacity.free.shortage(needed) is None:  # most nodes
            return of
        return FitClass(of.number, capacity.free.limits_for(needed, [each.load for each in self._kinds]))

    def _most_requested(self, number: int) -> NodeLoad:
        """Return what as many members request as the devices of a class of nodes may suffice for."""
        state, found = self.nodes.classes[number].state, NO_LOAD
        for kind, wanted in zip(self._kinds, self.wanted, strict=True):
            totals = kind.profile.device_request.totals
            most = min(wanted, *(state.free_devices(resource) // devices for resource, devices in totals))
            found = found.plus(kind.load, most)
        return found

    def points_of(self, of: FitClass, load: Load) -> int | Reason | str:
        """Return the sum of the members' points on the node, in millionths; or why they do not fit."""
        if not any(load):
            return 0
        if of.free is not None:
            points = self.points_of(FitClass(of.number), load)
            return (of.free.shortage(self._requested(load)) or points) if isinstance(points, int) else points
        key = (of.number, load)
        found = self._points.get(key)
        if found is None:
            found = self._points[key] = self._compute_points(of, load)
        return found

    def state_with(self, of: FitClass, load: Load) -> NodeState:
        """Return the state of the node with these members added."""
        if not any(load):
            return self.nodes.classes[of.number].state
        key = (of.number, load)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = _state_with_members(
                self.nodes.classes[of.number],
                self._added_pods(load),
                self.nodes.table,
                next(iter(self.nodes.nodes[of.number])),
            )
        return found

    def devices_of(self, load: Load) -> int:
        """Return the number of devices that these members use."""
        return sum(devices * number for devices, number in zip(self._devices, load, strict=True))

    def max_alone(self, of: FitClass, at: int) -> int:
        """Return how many members of one kind fit without others."""
        if of.free is not None:
            return self._limited(self.max_alone(FitClass(of.number), at), of.free, at)
        found = self._alone.get((of.number, at))
        if found is None:
            found = 0
            while found < self.wanted[at] and isinstance(self.points_of(of, self._only(at, found + 1)), int):
                found += 1
            self._alone[of.number, at] = found
        return found

    def max_of_kind(self, of: FitClass, at: int) -> int:
        """Return an upper bound of members of one kind, from device counts where only these decide."""
        profile = self._kinds[at].profile
        state = self.nodes.classes[of.number].state
        found = min(
            self.wanted[at],
            *(state.free_devices(resource) // number for resource, number in profile.device_request.totals),
        )
        if found > 0 and (
            (at, at) in self._conflicting
            or profile.has_hard_constraints
            or profile.constraints.model is not None
            or profile.constraints.min_vram_mib is not None
        ):
            return self.max_alone(of, at)
        return found if of.free is None else self._limited(found, of.free, at)

    def limited_load(self, load: Load, free: FreeResources) -> Load:
        """Return the members of each kind, each without others, for which this suffices, too."""
        return limited_load(load, free, self._kinds)

    def _limited(self, number: int, free: FreeResources, at: int) -> int:
        return min(number, free.most(self._kinds[at].load))

    def _requested(self, load: Load) -> NodeLoad:
        found = NO_LOAD
        for kind, number in zip(self._kinds, load, strict=True):
            found = found.plus(kind.load, number)
        return found

    def max_points_per_member(self, of: FitClass, at_least: int) -> float:
        """Return the most points per member, where the node takes at least so many."""
        if len(self.wanted) > 1 or at_least < 1:
            return float(MAX_POINTS * MICRO)
        if self.max_of_kind(of, 0) < at_least:
            return 0.0
        points = ((number, self.points_of(of, (number,))) for number in range(at_least, self.max_alone(of, 0) + 1))
        return max((each / number for number, each in points if isinstance(each, int)), default=0.0)

    def loads(self, of: FitClass, most: Load, allowed: Sequence[bool]) -> Iterator[tuple[Load, int]]:
        """Yield every load of allowed kinds that fits, with its points, without the empty load."""
        nothing = (0,) * len(most)
        reached = [nothing]
        for load in reached:  # grows during the loop; each load is reached on one path, kind after kind
            first = max((at for at, number in enumerate(load) if number), default=0)
            for at in range(first, len(most)):
                if allowed[at] and load[at] < most[at]:
                    larger = (*load[:at], load[at] + 1, *load[at + 1 :])
                    points = self.points_of(of, larger)
                    if isinstance(points, int):
                        reached.append(larger)
                        yield larger, points

    def fill_node(self, of: FitClass, most: Load, allowed: Sequence[bool], order: Sequence[int]) -> Load:
        """Return as many members as fit, kind after kind in this order."""
        if len(most) == 1:
            return (min(most[0], self.max_alone(of, 0)) if allowed[0] else 0,)
        load = [0] * len(most)
        for at in order:
            while allowed[at] and load[at] < most[at]:
                load[at] += 1
                if not isinstance(self.points_of(of, tuple(load)), int):
                    load[at] -= 1
                    break
        return tuple(load)

    def _compute_points(self, of: FitClass, load: Load) -> int | Reason | str:
        """Evaluate the last member after all others, and members with hard constraints after it."""
        kinds = [at for at, number in enumerate(load) if number]
        if any(load[to] > (at == to) for to in kinds for at in kinds if (at, to) in self._conflicting):
            return ANTI_AFFINITY_REASON
        before = self.points_of(of, _fewer(load, kinds[-1]))
        if not isinstance(before, int):
            return before
        for at in kinds[:-1]:
            if self._kinds[at].profile.has_hard_constraints:
                found = self._evaluators[at](self.state_with(of, _fewer(load, at)))
                if not isinstance(found, Score):
                    return found
        found = self._evaluators[kinds[-1]](self.state_with(of, _fewer(load, kinds[-1])))
        if not isinstance(found, Score):
            return found
        return before + round(found.points * MICRO)

    def _only(self, at: int, number: int) -> Load:
        return tuple(number if kind == at else 0 for kind in range(len(self._kinds)))

    def _added_pods(self, load: Load) -> AddedPods:
        return tuple(
            (kind.profile._replace(sibling_hardware=None, has_peers=False), number)
            for kind, number in zip(self._kinds, load, strict=True)
        )


def limited_load(load: Load, free: FreeResources, kinds: Iterable[MemberKind]) -> Load:
    """Return the members of each kind, each without others, for which the free resources of a node suffice, too."""
    return tuple(min(number, free.most(kind.load)) for number, kind in zip(load, kinds, strict=True))


# States of nodes with members added, shared by all gangs: most nodes do not change from one gang to the next.
_STATES = ResultCache[tuple[NodeClass, AddedPods], NodeState](1 << 15)


def _state_with_members(node_class: NodeClass, added: AddedPods, table: ClusterSnapshot, name: str) -> NodeState:
    """Return the state of a class of nodes with pods added. ``name``: any node of the class in ``table``."""
    return _STATES.result_of(
        (node_class, added), lambda _: state_if(table, name, (*table.records[name].pods, *_pods(added)))
    )


def _pods(added: AddedPods) -> Iterator[Occupant]:
    for kind, (profile, number) in enumerate(added):
        for serial in range(number):
            yield Occupant(f"~{kind:03}-{serial:05}", "", "", profile)


def _fewer(load: Load, at: int) -> Load:
    return (*load[:at], load[at] - 1, *load[at + 1 :])
