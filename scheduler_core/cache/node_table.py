"""All nodes at one moment, and the next one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from immutables import Map

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold, with_pod
from scheduler_core.cache.node_state import NodeState, state_from_record, state_of
from scheduler_core.cache.staleness import is_stale
from scheduler_core.policy.policy import Policy


class Snapshot(msgspec.Struct, frozen=True):
    """All nodes, at one moment."""

    generation: int = 0
    records: Map[str, NodeRecord] = Map()  # persistent: the next table shares all that is alike
    states: Map[str, NodeState] = Map()


def state_if(table: Snapshot, name: str, pods: Iterable[Occupant]) -> NodeState:
    """What would follow, were those the pods on the node, and no place kept for any."""
    by_uid = tuple(sorted(pods, key=lambda each: each.uid))
    known = table.states[name]
    record = msgspec.structs.replace(table.records[name], pods=by_uid, reserved=())
    return state_from_record(record, stale=known.stale, awaited=known.awaited)


def without_own_reservation(table: Snapshot, uid: str, names: Iterable[str]) -> Snapshot:
    """The same generation as the pod sees it for which a place is kept on those nodes: that does not stand in its way.

    Nor does what is kept free there for a gang that does not fit yet: it takes only what others leave.
    """
    records, states = table.records, table.states
    for name in names:
        known = records.get(name)
        if known is not None and uid in known.reserved:
            kept = tuple(each for each in known.reserved if each != uid and not is_hold(each))
            pods = tuple(pod for pod in known.pods if pod.uid not in known.reserved or pod.uid in kept)
            records = records.set(name, msgspec.structs.replace(known, pods=pods, reserved=kept))
            states = states.set(
                name, state_from_record(records[name], stale=states[name].stale, awaited=states[name].awaited)
            )
    return msgspec.structs.replace(table, records=records, states=states)


def snapshot_of(records: Iterable[NodeRecord], now: float, policy: Policy, generation: int = 0) -> Snapshot:
    """A table of all those nodes."""
    return with_records(Snapshot(generation - 1), records, now, policy)


def with_records(table: Snapshot, records: Iterable[NodeRecord], now: float, policy: Policy) -> Snapshot:
    """The next generation, in which those nodes are as their records say."""
    changed = {record.name: record for record in records}
    states = {name: state_of(record, now, policy) for name, record in changed.items()}
    return Snapshot(table.generation + 1, table.records.update(changed), table.states.update(states))


def without_nodes(table: Snapshot, names: Iterable[str]) -> Snapshot:
    """The next generation, without those nodes."""
    records, states = table.records.mutate(), table.states.mutate()
    for name in names:
        records.pop(name, None)
        states.pop(name, None)
    return Snapshot(table.generation + 1, records.finish(), states.finish())


def with_staleness(table: Snapshot, now: float, policy: Policy) -> Snapshot:
    """The next generation, in which nodes that nobody has confirmed for too long are stale; the same where none is."""
    turned = [
        record
        for name, record in table.records.items()
        if is_stale(record, now, policy) is not table.states[name].stale
    ]
    return with_records(table, turned, now, policy) if turned else table


def with_pods(table: Snapshot, pods: Iterable[tuple[str, Occupant]], now: float, policy: Policy) -> Snapshot:
    """The same generation with those pods on those nodes in addition, where it does not know of them already."""
    records: dict[str, NodeRecord] = {}
    for name, pod in pods:
        record = records.get(name) or table.records.get(name)
        if record is not None and all(each.uid != pod.uid for each in record.pods):
            records[name] = with_pod(record, pod)
    changed = with_records(table, records.values(), now, policy)
    return msgspec.structs.replace(changed, generation=table.generation)
