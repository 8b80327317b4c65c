"""Nodes by class, kept from one plan to the next: only nodes that changed are classified again. Pure.

A class is everything about a node that decides how members fit on it: its nodes stay equal whatever members are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, kubelet_report_of
from scheduler_core.cache.node_table import ClusterSnapshot

_ROUNDED_UP = 999  # requests are rounded up to whole cores: the pod may use so much less
_MAX_UNUSED = 1 << 6  # classes without nodes, and one for each with nodes: a node often returns to its former class
_MIN_CHANGES, _CHANGES_OF_NODE = 1 << 10, 4  # that are kept: where more have changed, all nodes are compared


class NodeCpu(NamedTuple):
    """CPU of a node. Pods without GPUs are not watched, so less may be free."""

    milli: int | None
    requested: int = 0
    pods: int = 0  # that request CPU

    def has_room_for(self, requests: Sequence[int]) -> bool:
        """Return whether the requests may fit. False only where they surely do not."""
        if self.milli is None:
            return True
        others = [each for each in requests if each]
        return self.requested + sum(others) - _ROUNDED_UP * (self.pods + len(others)) <= self.milli


class NodeClass(NamedTuple):
    """Everything about a node that decides how members fit on it."""

    state: NodeState
    released: tuple[int, ...] | None  # GPUs of ended pods that the kubelet still reports; None: there is no report
    cpu: NodeCpu
    name: str = ""  # of a node that shares its class with no other


class NodeClasses:
    """The nodes of one snapshot by class. Classes have numbers, which are not used again. For one thread."""

    def __init__(self, table: ClusterSnapshot | None = None, rules: Mapping[str, FullNode] | None = None) -> None:
        self.table = ClusterSnapshot()
        self.rules: Mapping[str, FullNode] = {}
        self.number_of: dict[str, int] = {}  # by node
        self.classes: dict[int, NodeClass] = {}
        self.nodes: dict[int, dict[str, None]] = {}  # by class; ordered, unlike a set
        self._numbers: dict[NodeClass, int] = {}
        self._serial = count()
        self._changes: list[tuple[str, int | None]] = []
        self._dropped = 0  # changes before the first kept one
        self._since: dict[int, dict[str, int | None]] = {}  # cache of ``changed_since``
        self.update(table or ClusterSnapshot(), rules or {})

    @property
    def mark(self) -> int:
        """The position after the last change."""
        return self._dropped + len(self._changes)

    def update(self, table: ClusterSnapshot, rules: Mapping[str, FullNode], names: Iterable[str] | None = None) -> None:
        """Go on to another snapshot, newer or not. ``names``: nodes that may differ; None: any node."""
        before, old, self.table, self.rules = self.table, self.rules, table, rules
        if names is None:
            names = {*before.records, *table.records, *old, *rules}
        for name in names:
            # The next snapshot shares the objects of all nodes that did not change.
            if (
                before.states.get(name) is not table.states.get(name)
                or before.records.get(name) is not table.records.get(name)
                or name not in self.number_of
            ):
                self._classify(name)
        if rules is not old:
            self._log((name, None) for name in names if old.get(name) is not rules.get(name))
        if len(self.classes) > 2 * len(self.nodes) + _MAX_UNUSED:
            self.classes = {number: self.classes[number] for number in self.nodes}
            self._numbers = {each: number for number, each in self.classes.items()}

    def changed_since(self, mark: int) -> Mapping[str, int | None] | None:
        """Return the class that each changed node had at the mark; None: it is a new node, or its labels changed.

        Returns None where the changes are not kept so long.
        """
        if mark < self._dropped:
            return None
        if mark not in self._since:
            found: dict[str, int | None] = {}
            for name, before in self._changes[mark - self._dropped :]:
                found[name] = None if before is None else found.get(name, before)
            self._since[mark] = found
        return self._since[mark]

    def _classify(self, name: str) -> None:
        before, state = self.number_of.pop(name, None), self.table.states.get(name)
        after = None if state is None else self._number(node_class_of(self.table.records[name], state))
        if after is not None:
            self.number_of[name] = after
        if before != after:
            self._log([(name, before)])
            if after is not None:
                self.nodes.setdefault(after, {})[name] = None
            if before is not None:
                del self.nodes[before][name]
                if not self.nodes[before]:
                    del self.nodes[before]

    def _number(self, node_class: NodeClass) -> int:
        found = self._numbers.get(node_class)
        if found is None:
            found = self._numbers[node_class] = next(self._serial)
            self.classes[found] = node_class
        return found

    def _log(self, changes: Iterable[tuple[str, int | None]]) -> None:
        self._changes += changes
        self._since.clear()
        most = max(_MIN_CHANGES, _CHANGES_OF_NODE * len(self.number_of))
        if len(self._changes) > 2 * most:
            self._dropped += len(self._changes) - most
            del self._changes[:-most]


def node_class_of(record: NodeRecord, state: NodeState) -> NodeClass:
    """Return the class of a node."""
    own = record.name if state.honours_gpu_choice or state.shared_gpus is not None else ""
    return NodeClass(state, _released(record, state), node_cpu_of(record), own)


def node_cpu_of(record: NodeRecord) -> NodeCpu:
    """Return what is known of the node's CPU."""
    requests = [each.profile.device_request.cpu_milli for each in record.pods if each.profile.device_request.cpu_milli]
    return NodeCpu(record.machine.cpu_milli, sum(requests), len(requests))


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
