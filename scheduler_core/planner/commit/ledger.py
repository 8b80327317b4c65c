"""The ledger: how a plan is committed, and when its members may be ungated. Pure; ``reconcile`` orders the writes.

    propose ──▶ every extender acknowledges ──▶ commit ──▶ ungate and pin ──▶ all bound ──▶ remove from the ledger
                     └── blocked, or no longer fits ──▶ withdraw      └── deadline ──▶ roll back ──▶ remove

A reservation counts while ``spec`` of the pool's one ``PlacementLedger`` lists it. Every change of ``spec`` is a
compare-and-swap: a write over the version that it was computed from. So a deposed planner changes nothing, however
late it notices: the first write of its successor (``take_over_spec``) moved the version. Extenders write ``status`` of
the same object: an extender that registers between a planner's read and its commit makes the commit fail.
docs/architecture.md has the whole argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from gputopo.crd.reservations import EntryPhase, ExtenderAck, LedgerEntry, LedgerSpec, LedgerStatus
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate


class LedgerRole(Enum):
    """The relation of the planner that holds the Lease to the ledger: its first write follows from it."""

    CREATE = "create"  # there is no ledger
    TAKE_OVER = "take over"  # another planner wrote it last
    LEAD = "lead"


class Acknowledgement(Enum):
    """The answer of all extenders to a proposal."""

    CLEAR = "clear"  # all registered extenders count it, and no pod that they admitted conflicts
    AWAITED = "awaited"  # an extender has not read it yet, or none is registered
    BLOCKED = "blocked"  # an extender has admitted a pod that it conflicts with


def ledger_role(ledger: LedgerUpdate | None, identity: str) -> LedgerRole:
    """Return the role of this planner."""
    if ledger is None:
        return LedgerRole.CREATE
    return LedgerRole.LEAD if ledger.spec.planner == identity else LedgerRole.TAKE_OVER


def take_over_spec(spec: LedgerSpec, identity: str, lease: str = "", levels: str = "") -> LedgerSpec:
    """Return the first write of a new leader: every later write of its predecessor is over an old version and fails."""
    return msgspec.structs.replace(spec, planner=identity, epoch=spec.epoch + 1, lease=lease, levels=levels)


def entry_of(reservation: ReservationUpdate, phase: EntryPhase) -> LedgerEntry:
    """Return the ledger's entry for a reservation."""
    return LedgerEntry(reservation.key, reservation.namespace, reservation.name, reservation.hash, phase)


def with_entries(spec: LedgerSpec, entries: Collection[LedgerEntry]) -> LedgerSpec:
    """Return the spec with these entries; an entry that is listed in another phase changes in its place."""
    new = {each.uid: each for each in entries}
    kept = tuple(new.pop(each.uid, each) for each in spec.entries)
    return msgspec.structs.replace(spec, entries=(*kept, *new.values()))


def without_entries(spec: LedgerSpec, uids: Collection[str]) -> LedgerSpec:
    """Return the spec without the entries of these reservations."""
    return msgspec.structs.replace(spec, entries=tuple(each for each in spec.entries if each.uid not in uids))


def active_entries(spec: LedgerSpec, reservations: Mapping[str, ReservationUpdate]) -> dict[str, LedgerEntry]:
    """Return the entries that count, by UID: their reservation exists, and its plan still has the entry's hash."""
    return {
        each.uid: each for each in spec.entries if each.uid in reservations and reservations[each.uid].hash == each.hash
    }


def acknowledgement_of(uid: str, since: int, extenders: Mapping[str, ExtenderAck]) -> Acknowledgement:
    """Return whether a proposal may be committed: every registered extender counts it, and none reports a conflict.

    ``since``: a generation of the ledger from which on it lists the proposal. No registered extender is no
    acknowledgement: an extender may be about to register.
    """
    acks = extenders.values()
    if any(uid in ack.blocked for ack in acks):
        return Acknowledgement.BLOCKED
    if not acks or any(ack.generation < since for ack in acks):
        return Acknowledgement.AWAITED
    return Acknowledgement.CLEAR


def without_extenders(extenders: Mapping[str, ExtenderAck], identities: Collection[str]) -> LedgerStatus:
    """Return the status without the registrations of these extenders."""
    return LedgerStatus({name: each for name, each in extenders.items() if name not in identities})
