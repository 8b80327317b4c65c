"""How many members a node takes, one after the other, and how well they do there. Pure.

Members that are let go together are admitted by the kubelet in any order. So each to whom something is promised is
judged as if all others were before it, as the core judges (``filters.verdict``, of the worst that may come out), also
for pods that are on their way there already (``filters.promises``). What fits with more members fits with fewer.

Nodes that cannot be told apart share one ``Ground``: what is worked out for one holds for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, kubelet_report_of
from scheduler_core.cache.node_table import Snapshot, state_if
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.score import MAX_POINTS, Score
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON, ConflictingPairs
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

_ROUNDED_UP = 999  # an ask for CPU is in whole cores: so much less it may be


class NodeCpu(NamedTuple):
    """Of a node. Pods without GPUs are not known, so there may be less."""

    milli: int | None
    asked: int = 0
    asking: int = 0  # pods

    def has_room_for(self, asks: Sequence[int]) -> bool:
        """Whether there is enough for those too, for all that is known. Not enough is said only where it is sure."""
        if self.milli is None:
            return True
        others = [each for each in asks if each]
        return self.asked + sum(others) - _ROUNDED_UP * (self.asking + len(others)) <= self.milli


class NodeClass(NamedTuple):
    """All of a node that decides what follows once members are on it."""

    state: NodeState
    released: tuple[int, ...] | None  # what pods let go that the kubelet still names; None: nobody asks the kubelet
    cpu: NodeCpu
    name: str = ""  # of a node that is like no other


def node_class_of(record: NodeRecord, state: NodeState) -> NodeClass:
    """What the node is like. Two that are alike stay alike whatever members come."""
    own = record.name if state.honours_gpu_choice or state.shared_gpus is not None else ""
    return NodeClass(state, _released(record, state), node_cpu_of(record), own)


def node_cpu_of(record: NodeRecord) -> NodeCpu:
    """What is known of the node's CPU."""
    asks = [each.profile.device_request.cpu_milli for each in record.pods if each.profile.device_request.cpu_milli]
    return NodeCpu(record.machine.cpu_milli, sum(asks), len(asks))


def _released(record: NodeRecord, state: NodeState) -> tuple[int, ...] | None:
    """Told only where the state does not tell it."""
    if record.gpus is None or record.gpus.allocations is None:
        return None
    if state.open_admissions is not None or not isinstance(state.free, ExactSets):
        return ()
    if len(record.gpus.allocations) == sum(pod.profile.gpus for pod in record.pods):  # each is a living pod's
        return ()
    word = kubelet_report_of(record)
    return None if word is None else word.open_admissions.releases


NO_CPU = "too little CPU left on the node, as far as is known"
MICRO = 1_000_000  # sums of whole numbers do not depend on their order

Load = tuple[int, ...]  # members of each kind
Coming = tuple[tuple[PodProfile, int], ...]  # how many of which


class MemberKind(NamedTuple):
    """Members that ask for the same."""

    profile: PodProfile
    policy: Policy


class NodeFit:
    """What has been worked out for one gang on one snapshot. Grounds are known by number."""

    def __init__(
        self, table: Snapshot, kinds: Sequence[MemberKind], wanted: Load, apart: ConflictingPairs = frozenset()
    ) -> None:
        """``wanted``: members of each kind that there are. ``apart``: kinds that may not share a node."""
        self.wanted = wanted
        self._table = table
        self._kinds = kinds
        self._apart = apart
        self._devices = [kind.profile.devices for kind in kinds]
        self._judges = [evaluator_for(kind.profile, kind.policy) for kind in kinds]
        self._numbers: dict[NodeClass, int] = {}
        self._names: list[str] = []  # of one node for all of a ground
        self._classes: list[NodeClass] = []
        self._held: dict[tuple[int, Load], int | Reason | str] = {}
        self._states: dict[tuple[int, Load], NodeState] = {}
        self._alone: dict[tuple[int, int], int] = {}

    def class_number(self, name: str) -> int:
        """What the node is like."""
        ground = node_class_of(self._table.records[name], self._table.states[name])
        found = self._numbers.setdefault(ground, len(self._names))
        if found == len(self._names):
            self._names.append(name)
            self._classes.append(ground)
        return found

    def points_of(self, ground: int, load: Load) -> int | Reason | str:
        """The sum of the points of those members there, in millionths; or why they do not fit."""
        if not any(load):
            return 0
        key = (ground, load)
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = self._added(ground, load)
        return found

    def state_with(self, ground: int, load: Load) -> NodeState:
        """The node with those members on their way to it."""
        if not any(load):
            return self._classes[ground].state
        key = (ground, load)
        found = self._states.get(key)
        if found is None:
            witness = _RepresentativeNode(self._table, self._names[ground])
            found = self._states[key] = _state_with_members(self._classes[ground], self._coming(load), witness)
        return found

    def devices_of(self, load: Load) -> int:
        """GPUs and the like that those members hold."""
        return sum(devices * number for devices, number in zip(self._devices, load, strict=True))

    def max_alone(self, ground: int, at: int) -> int:
        """Members of one kind that fit there without others."""
        found = self._alone.get((ground, at))
        if found is None:
            found = 0
            while found < self.wanted[at] and isinstance(self.points_of(ground, self._only(at, found + 1)), int):
                found += 1
            self._alone[ground, at] = found
        return found

    def max_of_kind(self, ground: int, at: int) -> int:
        """No more than that of one kind fit there; where only counts decide that is soon told."""
        profile = self._kinds[at].profile
        if (
            (at, at) in self._apart
            or profile.has_hard_constraints
            or profile.constraints.model is not None
            or profile.constraints.min_vram_mib is not None
        ):
            return self.max_alone(ground, at)
        state = self._classes[ground].state
        return min(
            self.wanted[at],
            *(state.free_devices(resource) // number for resource, number in profile.device_request.totals),
        )

    def max_points_per_member(self, ground: int, least: int) -> float:
        """Points that a member has there at most, where at least so many are."""
        if len(self.wanted) > 1 or least < 1:
            return float(MAX_POINTS * MICRO)
        if self.max_of_kind(ground, 0) < least:
            return 0.0
        points = ((number, self.points_of(ground, (number,))) for number in range(least, self.max_alone(ground, 0) + 1))
        return max((each / number for number, each in points if isinstance(each, int)), default=0.0)

    def loads(self, ground: int, most: Load, allowed: Sequence[bool]) -> Iterator[tuple[Load, int]]:
        """All that fit there, of those kinds that may go there at all, and their points; the empty one is not told."""
        nothing = (0,) * len(most)
        reached = [nothing]
        for load in reached:  # grows while it is walked; each load is reached by one way: kind after kind
            first = max((at for at, number in enumerate(load) if number), default=0)
            for at in range(first, len(most)):
                if allowed[at] and load[at] < most[at]:
                    more = (*load[:at], load[at] + 1, *load[at + 1 :])
                    points = self.points_of(ground, more)
                    if isinstance(points, int):
                        reached.append(more)
                        yield more, points

    def fill_node(self, ground: int, most: Load, allowed: Sequence[bool], order: Sequence[int]) -> Load:
        """As many as fit there, kind after kind in that order."""
        if len(most) == 1:
            return (min(most[0], self.max_alone(ground, 0)) if allowed[0] else 0,)
        load = [0] * len(most)
        for at in order:
            while allowed[at] and load[at] < most[at]:
                load[at] += 1
                if not isinstance(self.points_of(ground, tuple(load)), int):
                    load[at] -= 1
                    break
        return tuple(load)

    def _added(self, ground: int, load: Load) -> int | Reason | str:
        """The last member after all others, and the others after it."""
        kinds = [at for at, number in enumerate(load) if number]
        if any(load[to] > (at == to) for to in kinds for at in kinds if (at, to) in self._apart):
            return ANTI_AFFINITY_REASON
        before = self.points_of(ground, _fewer(load, kinds[-1]))
        if not isinstance(before, int):
            return before
        for at in kinds[:-1]:
            if self._kinds[at].profile.has_hard_constraints:
                found = self._judges[at](self.state_with(ground, _fewer(load, at)))
                if not isinstance(found, Score):
                    return found
        found = self._judges[kinds[-1]](self.state_with(ground, _fewer(load, kinds[-1])))
        if not isinstance(found, Score):
            return found
        asks = [self._kinds[at].profile.device_request.cpu_milli for at in kinds for _ in range(load[at])]
        if not self._classes[ground].cpu.has_room_for(asks):
            return NO_CPU
        return before + round(found.points * MICRO)

    def _only(self, at: int, number: int) -> Load:
        return tuple(number if kind == at else 0 for kind in range(len(self._kinds)))

    def _coming(self, load: Load) -> Coming:
        return tuple(
            (kind.profile._replace(sibling_hardware=None), number)
            for kind, number in zip(self._kinds, load, strict=True)
        )


class _RepresentativeNode:
    """A node that stands for all on its ground: which one it is makes no difference to what is remembered."""

    def __init__(self, table: Snapshot, name: str) -> None:
        self.table, self.name = table, name

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RepresentativeNode)


@lru_cache(maxsize=1 << 15)
def _state_with_members(_: NodeClass, coming: Coming, witness: _RepresentativeNode) -> NodeState:
    """The node once those are on their way to it. From one gang to the next most nodes stay as they are."""
    there = witness.table.records[witness.name].pods
    return state_if(witness.table, witness.name, (*there, *_pods(coming)))


def _pods(coming: Coming) -> Iterator[Occupant]:
    for kind, (profile, number) in enumerate(coming):
        for serial in range(number):
            yield Occupant(f"~{kind:03}-{serial:05}", "", "", profile)


def _fewer(load: Load, at: int) -> Load:
    return (*load[:at], load[at] - 1, *load[at + 1 :])
