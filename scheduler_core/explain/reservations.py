"""For whom planners keep the GPUs that a pod is refused. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gputopo.crd.reservations import EntryPhase, gang_title
from gputopo.labels.reasons import Reason
from scheduler_core.cache.node_record import hold_uid
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.explain.model import Explanation, ReservedGpus


def with_reservations(
    told: Explanation, table: Snapshot, counting: Iterable[ActiveReservation], uid: str
) -> Explanation:
    """The same with who keeps what on the nodes that the pod is refused because of that; and its own place.

    ``counting``: reservations that count in the table. ``uid``: the pod's.
    """
    refused = {name for group in told.refused if group.reason == Reason.RESERVED.name for name in group.nodes}
    counting = sorted(counting, key=lambda each: (each.entry.namespace, each.entry.name))
    kept = (_reserved_gpus(each, table, refused & each.nodes) for each in counting)
    return replace(
        told, kept=tuple(each for each in kept if each.gpus), notes=(*told.notes, *_own_notes(counting, uid))
    )


def _reserved_gpus(counting: ActiveReservation, table: Snapshot, nodes: Iterable[str]) -> ReservedGpus:
    status, entry = counting.reservation.status, counting.entry
    gpus = {name: _gpus(counting, table, name) for name in sorted(nodes)}
    held = entry.phase is EntryPhase.HELD
    return ReservedGpus(
        gang=gang_title(counting.entry.namespace, counting.reservation.spec),
        reservation=f"{entry.namespace}/{entry.name}",
        phase=entry.phase.value,
        until=status.estimate if held else status.deadline,
        gpus=sum(gpus.values()),
        nodes=tuple(name for name, number in gpus.items() if number),
    )


def _gpus(counting: ActiveReservation, table: Snapshot, name: str) -> int:
    """How many devices it keeps there: of its seats those that nobody sits in yet, of what it holds what is free."""
    record = table.records[name]
    seats = [seat for seat in counting.seats if seat.node == name and seat.uid in record.reserved]
    held, free = Counter[str](), Counter[str]()
    for each in counting.holdings:
        held[each.resource] += each.gpus if each.node == name else 0
    for pod in record.pods:
        free.update(dict(pod.profile.device_request.totals) if pod.uid == hold_uid(name) else {})
    return sum(number for seat in seats for _, number in seat.gpus) + (held & free).total()


def _own_notes(counting: Iterable[ActiveReservation], uid: str) -> Iterator[str]:
    for each in counting:
        for seat in each.seats:
            if seat.uid == uid:
                where = f"{each.entry.namespace}/{each.entry.name}"
                yield f"its place on {seat.node} is kept by the reservation {where} ({each.entry.phase.value})"
