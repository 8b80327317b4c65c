"""Reservations of GPUs because of which nodes reject a pod. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

from msgspec.structs import replace

from gputopo.crd.reservations import EntryPhase, gang_title
from gputopo.labels.reasons import Reason
from scheduler_core.cache.node_record import hold_uid
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.explain.model import Explanation, ReservedGpus


def with_reservations(
    explanation: Explanation, table: ClusterSnapshot, counting: Iterable[ActiveReservation], uid: str
) -> Explanation:
    """Return the explanation with the reservations on nodes that reject the pod for them, and with its own place.

    ``counting``: the active reservations in the table. ``uid``: the pod's.
    """
    refused = {name for group in explanation.refused if group.reason == Reason.RESERVED.name for name in group.nodes}
    active = sorted(counting, key=lambda each: (each.entry.namespace, each.entry.name))
    kept = (_on_nodes(each, table, refused & each.nodes) for each in active)
    own = tuple(
        f"its place on {seat.node} is reserved by {each.entry.namespace}/{each.entry.name} ({each.entry.phase.value})"
        for each in active
        for seat in each.seats
        if seat.uid == uid
    )
    return replace(explanation, kept=tuple(each for each in kept if each.gpus), notes=(*explanation.notes, *own))


def devices_by_node(active: ActiveReservation, bound: Container[str] = ()) -> Counter[str]:
    """Return the devices that the reservation takes on each node, without the seats of ``bound`` pods (UIDs)."""
    devices = Counter[str]()
    for seat in active.seats:
        if seat.uid not in bound:
            devices[str(seat.node)] += sum(number for _, number in seat.gpus)
    for each in active.holdings:
        devices[each.node] += each.gpus
    return devices


def reserved_gpus(active: ActiveReservation, gpus: Mapping[str, int]) -> ReservedGpus:
    """Return the reservation with its GPUs by node."""
    entry, reservation = active.entry, active.reservation
    hold = entry.phase is EntryPhase.HELD
    return ReservedGpus(
        gang=gang_title(entry.namespace, reservation.spec),
        reservation=f"{entry.namespace}/{entry.name}",
        phase=entry.phase.value,
        until=reservation.status.estimate if hold else reservation.status.deadline,
        gpus=sum(gpus.values()),
        nodes=tuple(sorted(gpus)),
    )


def _on_nodes(active: ActiveReservation, table: ClusterSnapshot, nodes: Iterable[str]) -> ReservedGpus:
    gpus = {name: _reserved_on(active, table, name) for name in nodes}
    return reserved_gpus(active, {name: number for name, number in gpus.items() if number})


def _reserved_on(active: ActiveReservation, table: ClusterSnapshot, name: str) -> int:
    """Return the devices of its seats there without a bound pod, and those of its capacity hold that are free."""
    record = table.records[name]
    seats = [seat for seat in active.seats if seat.node == name and seat.uid in record.reserved]
    held, free = Counter[str](), Counter[str]()
    for each in active.holdings:
        held[each.resource] += each.gpus if each.node == name else 0
    for pod in record.pods:
        free.update(dict(pod.profile.device_request.totals) if pod.uid == hold_uid(name) else {})
    return sum(number for seat in seats for _, number in seat.gpus) + (held & free).total()
