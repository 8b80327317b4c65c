"""Reservations and ledgers as watches show them, in one line each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gputopo.crd.reservations import (
    EntryPhase,
    ExtenderAck,
    HeldCapacity,
    LedgerEntry,
    LedgerSpec,
    PlannedMember,
    ReservationSpec,
    ReservationStatus,
    spec_hash,
)
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.request.device_request import WHOLE

HELD, PROPOSED, COMMITTED = EntryPhase.HELD, EntryPhase.PROPOSED, EntryPhase.COMMITTED


def plan(
    name: str,
    seats: Mapping[str, tuple[str, int]] | None = None,
    *,
    held: Mapping[str, int] | None = None,
    gang: str = "llm",
    resource: str = WHOLE,
    priority: int = 0,
    status: ReservationStatus = ReservationStatus(),  # noqa: B008  frozen
) -> ReservationUpdate:
    """A reservation: node and GPUs by pod; or reserved devices by node, and the priority of their gang."""
    spec = ReservationSpec(
        gang,
        tuple(PlannedMember(f"uid-{pod}", pod, node, ((WHOLE, gpus),)) for pod, (node, gpus) in (seats or {}).items()),
        tuple(HeldCapacity(node, gpus, resource) for node, gpus in (held or {}).items()),
        priority=priority,
    )
    return ReservationUpdate(f"uid-{name}", "team", name, spec, spec_hash(spec), status)


def entry(planned: ReservationUpdate, phase: EntryPhase = COMMITTED) -> LedgerEntry:
    """The ledger's entry for a reservation."""
    return LedgerEntry(planned.key, planned.namespace, planned.name, planned.hash, phase)


def ledger(
    *entries: LedgerEntry,
    generation: int = 1,
    name: str = "gpus",
    uid: str = "L",
    extenders: Mapping[str, ExtenderAck] = MappingProxyType({}),
) -> LedgerUpdate:
    """A ledger with entries and acknowledgements of extenders."""
    return LedgerUpdate(name, uid, str(generation), generation, LedgerSpec("planner", 1, entries), extenders)
