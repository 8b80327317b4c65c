"""The nodes that a ranking has not evaluated yet."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot


class WaitingNodes(NamedTuple):
    """The nodes that are not evaluated yet, by their states. Their names are collected only where they are needed."""

    states: AbstractSet[NodeState] = frozenset()
    number: int = 0  # of nodes
    evaluated: AbstractSet[str] = frozenset()  # nodes that are evaluated, whatever their states

    def among(self, names: AbstractSet[str], snapshot: ClusterSnapshot) -> frozenset[str]:
        """Return the named nodes that wait. ``snapshot``: of the ranking."""
        if not self.states:
            return frozenset()
        states, state_of = self.states, snapshot.states.get
        return frozenset([name for name in names if state_of(name) in states]) - self.evaluated

    def includes_some(self, names: AbstractSet[str], snapshot: ClusterSnapshot) -> bool:
        """Return whether ``among`` is not empty. Most often the first names tell."""
        states, state_of = self.states, snapshot.states.get
        return bool(states) and any(state_of(name) in states and name not in self.evaluated for name in names)
