"""A snapshot of all nodes, and the functions that make the next one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec
from immutables import Map

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState, known_canonical_state, state_from_record, state_of
from scheduler_core.policy.policy import READS_NOTHING_MORE, Policy


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """All nodes at one moment."""

    generation: int = 0
    records: Map[str, NodeRecord] = Map()  # persistent maps: the next snapshot shares all unchanged entries
    states: Map[str, NodeState] = Map()

    def states_in_use(self) -> AbstractSet[NodeState]:
        """Return the states of the nodes, and the states that were evaluated instead of them."""
        found = frozenset(self.states.values())
        return found.union([same for each in found if (same := known_canonical_state(each)) is not None])


def state_if(snapshot: ClusterSnapshot, name: str, pods: Iterable[Occupant]) -> NodeState:
    """Return the state of the node if exactly these pods were on it and nothing was reserved there."""
    by_uid = tuple(sorted(pods, key=lambda each: each.uid))
    record = msgspec.structs.replace(snapshot.records[name], pods=by_uid, reserved=())
    return _with_same_staleness(record, snapshot.states[name])


def without_own_reservation(snapshot: ClusterSnapshot, uid: str, names: Iterable[str]) -> ClusterSnapshot:
    """Return the snapshot, of the same generation, without what is reserved for this pod on the named nodes.

    Capacity holds on these nodes are left out as well: they take only what other pods leave.
    """
    records, states = snapshot.records, snapshot.states
    for name in names:
        known = records.get(name)
        if known is not None and uid in known.reserved:
            kept = tuple(each for each in known.reserved if each != uid and not is_hold(each))
            pods = tuple(pod for pod in known.pods if pod.uid not in known.reserved or pod.uid in kept)
            record = msgspec.structs.replace(known, pods=pods, reserved=kept)
            records = records.set(name, record)
            states = states.set(name, _with_same_staleness(record, states[name]))
    return msgspec.structs.replace(snapshot, records=records, states=states)


def with_changed_records(snapshot: ClusterSnapshot, changed: Iterable[NodeRecord]) -> ClusterSnapshot:
    """Return the snapshot, of the same generation, with these records; the staleness of their nodes stays."""
    records = {record.name: record for record in changed}
    states = {name: _with_same_staleness(record, snapshot.states[name]) for name, record in records.items()}
    return msgspec.structs.replace(
        snapshot, records=snapshot.records.update(records), states=snapshot.states.update(states)
    )


def _with_same_staleness(record: NodeRecord, state: NodeState) -> NodeState:
    reads = READS_NOTHING_MORE if state.extras is None else state.extras.reads
    return state_from_record(record, stale=state.stale, confirmation_pending=state.confirmation_pending, reads=reads)


def snapshot_of(records: Iterable[NodeRecord], now: float, policy: Policy, generation: int = 0) -> ClusterSnapshot:
    """Return a snapshot of these nodes."""
    return with_records(ClusterSnapshot(generation - 1), records, now, policy)


def with_records(
    snapshot: ClusterSnapshot, records: Iterable[NodeRecord], now: float, policy: Policy
) -> ClusterSnapshot:
    """Return the next generation, with these records in place of the former ones of the same nodes."""
    changed = {record.name: record for record in records}
    states = {name: state_of(record, now, policy) for name, record in changed.items()}
    return ClusterSnapshot(snapshot.generation + 1, snapshot.records.update(changed), snapshot.states.update(states))


def without_nodes(snapshot: ClusterSnapshot, names: Iterable[str]) -> ClusterSnapshot:
    """Return the next generation, without the named nodes."""
    records, states = snapshot.records.mutate(), snapshot.states.mutate()
    for name in names:
        records.pop(name, None)
        states.pop(name, None)
    return ClusterSnapshot(snapshot.generation + 1, records.finish(), states.finish())
