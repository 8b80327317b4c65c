"""Nodes by class, kept from one plan to the next: only nodes that changed are classified again. Pure.

A class is everything about the GPUs of a node that decides how members fit on it: its nodes stay equal whatever members
are added. What else is free on a node is kept beside its class: it differs from node to node, and seldom matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, kubelet_report_of
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.packing.free_resources import FreeResources, free_resources
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.request.node_load import NO_LOAD, NodeLoad

_MAX_UNUSED = 1 << 6  # classes without nodes, and one for each with nodes: a node often returns to its former class
_MIN_CHANGES = 1 << 10  # kept at least; else one for each node. After more changes, all nodes are compared again


class NodeClass(NamedTuple):
    """Everything about the GPUs of a node that decides how members fit on it."""

    state: NodeState
    released: tuple[int, ...] | None  # GPUs of ended pods that the kubelet still reports; None: there is no report
    name: str = ""  # of a node that shares its class with no other


class NodeCapacity(NamedTuple):
    """The resources of a node that members may use."""

    node_class: int
    free: FreeResources


class NodeClasses:
    """The nodes of one snapshot by class. Classes have numbers, which are not used again. For one thread."""

    def __init__(self, view: NodeView | None = None) -> None:
        self.table = ClusterSnapshot()
        self.rules: Mapping[str, FullNode] = {}
        self.capacity_of: dict[str, NodeCapacity] = {}  # by node
        self.classes: dict[int, NodeClass] = {}
        self.nodes: dict[int, dict[str, None]] = {}  # by class; ordered, unlike a set
        self._numbers: dict[NodeClass, int] = {}
        self._serial = count()
        self._others: Mapping[str, NodeLoad] = {}
        self._changes: list[tuple[str, NodeCapacity | None]] = []
        self._dropped = 0  # changes before the first kept one
        self._since: dict[int, dict[str, NodeCapacity | None]] = {}  # cache of ``changed_since``
        if view is not None:
            self.update(view)

    @property
    def mark(self) -> int:
        """The position after the last change."""
        return self._dropped + len(self._changes)

    def update(self, view: NodeView, names: Iterable[str] | None = None) -> None:
        """Go on to another view, newer or not. ``names``: nodes that may differ; None: any node."""
        table, rules, others = view.table, view.rules, view.others
        before, old, loads = self.table, self.rules, self._others
        self.table, self.rules, self._others = table, rules, others
        if names is None:
            names = {*before.records, *table.records, *old, *rules}
        for name in names:
            # The next snapshot shares the objects of all nodes that did not change.
            if (
                before.states.get(name) is not table.states.get(name)
                or before.records.get(name) is not table.records.get(name)
                or loads.get(name) != others.get(name)
                or name not in self.capacity_of
            ):
                self._classify(name)
        if rules is not old:
            self._log((name, None) for name in names if old.get(name) is not rules.get(name))
        if len(self.classes) > 2 * len(self.nodes) + _MAX_UNUSED:
            self.classes = {number: self.classes[number] for number in self.nodes}
            self._numbers = {each: number for number, each in self.classes.items()}

    def changed_since(self, mark: int) -> Mapping[str, NodeCapacity | None] | None:
        """Return what each changed node had at the mark; None: it is a new node, or its labels changed.

        Returns None where the changes are not kept so long.
        """
        if mark < self._dropped:
            return None
        if mark not in self._since:
            found: dict[str, NodeCapacity | None] = {}
            for name, before in self._changes[mark - self._dropped :]:
                found[name] = None if before is None else found.get(name, before)
            self._since[mark] = found
        return self._since[mark]

    def _classify(self, name: str) -> None:
        before, state = self.capacity_of.pop(name, None), self.table.states.get(name)
        after = None if state is None else self._capacity(self.table.records[name], state)
        if after is not None:
            self.capacity_of[name] = after
        if before == after:
            return
        self._log([(name, before)])
        was, now = before and before.node_class, after and after.node_class
        if was == now:
            return
        if now is not None:
            self.nodes.setdefault(now, {})[name] = None
        if was is not None:
            del self.nodes[was][name]
            if not self.nodes[was]:
                del self.nodes[was]

    def _capacity(self, record: NodeRecord, state: NodeState) -> NodeCapacity:
        free = free_resources(record, self._others.get(record.name, NO_LOAD))
        return NodeCapacity(self._number(node_class_of(record, state)), free)

    def _number(self, node_class: NodeClass) -> int:
        found = self._numbers.get(node_class)
        if found is None:
            found = self._numbers[node_class] = next(self._serial)
            self.classes[found] = node_class
        return found

    def _log(self, changes: Iterable[tuple[str, NodeCapacity | None]]) -> None:
        self._changes += changes
        self._since.clear()
        most = max(_MIN_CHANGES, len(self.capacity_of))
        if len(self._changes) > 2 * most:
            self._dropped += len(self._changes) - most
            del self._changes[:-most]


def node_class_of(record: NodeRecord, state: NodeState) -> NodeClass:
    """Return the class of a node."""
    own = record.name if state.honours_gpu_choice or state.shared_gpus is not None else ""
    return NodeClass(state, _released(record, state), own)


def _released(record: NodeRecord, state: NodeState) -> tuple[int, ...] | None:
    """Return the GPUs of ended pods that the kubelet still reports, if the state does not contain them."""
    if record.gpus is None or record.gpus.allocations is None:
        return None
    if state.open_admissions is not None or not isinstance(state.free, ExactSets):
        return ()
    if len(record.gpus.allocations) == sum(pod.profile.gpus for pod in record.pods):  # all of running pods
        return ()
    report = kubelet_report_of(record)
    return None if report is None else report.open_admissions.releases
