"""How a plan comes to count, and when its members may be let go. Pure; ``steps`` says what is written when.

    propose ──▶ every extender vouches ──▶ commit ──▶ members are let go ──▶ all bound ──▶ release
                     └── blocked, or no room any more ──▶ withdraw           └── deadline ──▶ rolled back ──▶ release

What counts is ``spec`` of the pool's one ``PlacementLedger``, and every change of it is a write over the version that
it was worked out from. So a planner that was deposed, however late it notices, changes nothing: its successor's first
write was ``taken_over``. Extenders write ``status`` of the same object: one that registers between a planner's look and
its commit fails the commit. docs/architecture.md has the argument as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from gputopo.crd.reservations import EntryPhase, ExtenderAck, LedgerEntry, LedgerSpec, LedgerStatus
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate


class LedgerRole(Enum):
    """What a planner that holds the Lease is to the ledger."""

    CREATE = "create"  # there is none
    TAKE_OVER = "take over"  # another wrote it last
    LEAD = "lead"


class Acknowledgement(Enum):
    """What the extenders say of a proposal."""

    CLEAR = "clear"  # all that answer hold it, and it fits with all that they let in
    AWAITED = "awaited"  # one has not taken it in yet, or too few are known
    BLOCKED = "blocked"  # one let in what it conflicts with


def ledger_role(ledger: LedgerUpdate | None, me: str) -> LedgerRole:
    """What to do first."""
    if ledger is None:
        return LedgerRole.CREATE
    return LedgerRole.LEAD if ledger.spec.planner == me else LedgerRole.TAKE_OVER


def take_over_spec(spec: LedgerSpec, me: str, lease: str = "", levels: str = "") -> LedgerSpec:
    """A new leader's first write: from here on every write of its predecessor is one over an old version."""
    return msgspec.structs.replace(spec, planner=me, epoch=spec.epoch + 1, lease=lease, levels=levels)


def entry_of(reservation: ReservationUpdate, phase: EntryPhase) -> LedgerEntry:
    """What the ledger says of it."""
    return LedgerEntry(reservation.key, reservation.namespace, reservation.name, reservation.hash, phase)


def with_entries(spec: LedgerSpec, entries: Collection[LedgerEntry]) -> LedgerSpec:
    """With these; one that is there in another phase changes in its place."""
    new = {each.uid: each for each in entries}
    kept = tuple(new.pop(each.uid, each) for each in spec.entries)
    return msgspec.structs.replace(spec, entries=(*kept, *new.values()))


def without_entries(spec: LedgerSpec, uids: Collection[str]) -> LedgerSpec:
    """Without these."""
    return msgspec.structs.replace(spec, entries=tuple(each for each in spec.entries if each.uid not in uids))


def active_entries(spec: LedgerSpec, reservations: Mapping[str, ReservationUpdate]) -> dict[str, LedgerEntry]:
    """The entries that count, by UID: their reservation is there, and is the plan that they were written for."""
    return {
        each.uid: each for each in spec.entries if each.uid in reservations and reservations[each.uid].hash == each.hash
    }


def acknowledgement_of(uid: str, since: int, extenders: Mapping[str, ExtenderAck]) -> Acknowledgement:
    """Whether a proposal may be committed: every extender that is listed holds it, and it is in nobody's way.

    ``since``: a generation of the ledger that lists it, as do all since then. Where no extender is listed, one that
    answers may not have been heard of yet.
    """
    said = extenders.values()
    if any(uid in each.blocked for each in said):
        return Acknowledgement.BLOCKED
    if not said or any(each.generation < since for each in said):
        return Acknowledgement.AWAITED
    return Acknowledgement.CLEAR


def without_extenders(extenders: Mapping[str, ExtenderAck], identities: Collection[str]) -> LedgerStatus:
    """Without the registrations of those that cannot answer any more."""
    return LedgerStatus({name: each for name, each in extenders.items() if name not in identities})
