"""All nodes in the forms that rankings iterate over: by name, by state in the order of hashes, and by free devices."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain

from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import spread_hash
from scheduler_core.evaluation.in_flight import has_commitments
from scheduler_core.evaluation.transient import is_uncertain

HashedName = tuple[int, str]  # ``spread_hash`` of a node's name, and the name


class NodeIndex:
    """All nodes, in the forms that rankings iterate over: three times as fast as the maps of a snapshot."""

    def __init__(self) -> None:
        self.snapshot = ClusterSnapshot()
        self.states: dict[str, NodeState] = {}
        self.with_commitments: set[str] = set()  # nodes where in-flight pods matter (``has_commitments``)
        self.uncertain: set[str] = set()  # see ``is_uncertain``
        self.by_state: dict[NodeState, list[HashedName]] = {}  # ordered
        self._by_free_devices: dict[tuple[bool, int], dict[NodeState, None]] = {}  # states by ``_free_devices_key``

    def catch_up(self, snapshot: ClusterSnapshot, changed: Iterable[str] | None) -> None:
        """Apply the changes up to a newer snapshot; all nodes where ``changed`` is None."""
        if changed is None:
            self.states, self.with_commitments, self.uncertain = {}, set(), set()
            self.by_state, self._by_free_devices = {}, {}
            changed = snapshot.states
        for name in changed:
            old, new = self.states.pop(name, None), snapshot.states.get(name)
            self.with_commitments.discard(name)
            self.uncertain.discard(name)
            if old is not None:
                self._remove_node(old, name)
            if new is not None:
                self.states[name] = new
                self._add_node(new, name)
                if has_commitments(new):
                    self.with_commitments.add(name)
                if is_uncertain(new):
                    self.uncertain.add(name)

    def ordered_states(self, devices: int) -> Iterator[NodeState]:
        """Yield all states: those with enough free devices, no open admissions, and few free devices come first."""
        keys = sorted(self._by_free_devices, key=lambda key: (key[1] < devices, *key))
        return chain.from_iterable(map(self._by_free_devices.__getitem__, keys))

    def _add_node(self, state: NodeState, name: str) -> None:
        if state not in self.by_state:
            self._by_free_devices.setdefault(_free_devices_key(state), {})[state] = None
        insort(self.by_state.setdefault(state, []), (spread_hash(name), name))

    def _remove_node(self, state: NodeState, name: str) -> None:
        same_state, hashed = self.by_state[state], (spread_hash(name), name)
        del same_state[bisect_left(same_state, hashed)]
        if not same_state:
            del self.by_state[state]
            del self._by_free_devices[_free_devices_key(state)][state]


def _free_devices_key(state: NodeState) -> tuple[bool, int]:
    """Return whether admissions are open, and the number of free devices of the first resource."""
    return state.open_admissions is not None, state.free_counts[0][1] if state.free_counts else 0
