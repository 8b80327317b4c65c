"""The last preemptions in the ledger, so that limits of evictions survive a change of the leader. Pure.

The write of the ledger that makes an intent effective also records it: so no eviction is missing, whenever the planner
is killed. The write that removes a hold of which no pod was evicted removes its record. The records are bounded by
number and age: a ledger is one object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, PastPreemption
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.planner.commit.state import ReconcileInput

MAX_AGE_S = 86_400.0
MAX_RECORDS = 256
MAX_UNITS = 256  # of one record: the others have no cool-down after a change of the leader
MAX_ALL_UNITS = 2_000


def past_preemptions(
    inputs: ReconcileInput, spec: LedgerSpec, new: Iterable[LedgerEntry], removed: Collection[str]
) -> tuple[PastPreemption, ...]:
    """Return the records after a write of the ledger that adds and removes these entries; oldest first."""
    kept = [each for each in spec.preemptions if not (each.hold in removed and _is_unbegun(inputs, each.hold))]
    known = {each.hold for each in kept}
    made = (_record(inputs, entry.uid) for entry in new if entry.phase is EntryPhase.HELD and entry.uid not in known)
    kept += [each for each in made if each is not None]
    oldest, units, found = inputs.wall_time - MAX_AGE_S, 0, list[PastPreemption]()
    for each in reversed(kept[-MAX_RECORDS:]):
        units += len(each.units)
        if units <= MAX_ALL_UNITS and (parse_timestamp(each.at) or 0.0) >= oldest:
            found.append(each)
    return tuple(reversed(found))


def _is_unbegun(inputs: ReconcileInput, uid: str) -> bool:
    reservation = inputs.reservations.get(uid)
    return reservation is not None and not reservation.status.evicting


def _record(inputs: ReconcileInput, uid: str) -> PastPreemption | None:
    """Return the record of a hold; None: it evicts no pods, or backfilled pods, which no limit counts."""
    reservation = inputs.reservations.get(uid)
    intent = None if reservation is None else reservation.spec.preemption
    if intent is None or intent.yields:
        return None
    units = tuple(dict.fromkeys(each.key or each.unit for each in intent.evictions))
    return PastPreemption(uid, format_timestamp(inputs.wall_time), len(intent.evictions), units[:MAX_UNITS])
