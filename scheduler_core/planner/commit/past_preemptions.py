"""The last preemptions in the ledger, so that limits of evictions survive a change of the leader. Pure.

The write of the ledger that makes an intent effective also records it: so no eviction is missing, whenever the planner
is killed. The write that removes a hold of which no pod was evicted removes its record. The records are bounded by
number and age: a ledger is one object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, PastPreemption, PlannedEviction
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.planner.commit.state import ReconcileInput

MAX_AGE_S = 86_400.0  # or the cool-down, where it is longer
HOUR_S = 3_600.0
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
    oldest = inputs.wall_time - max(MAX_AGE_S, inputs.cooldown_s)
    kept = [each for each in kept if (parse_timestamp(each.at) or 0.0) >= oldest]
    units, found = 0, list[PastPreemption]()
    for each in reversed(_merged(kept, inputs.wall_time)):
        units += len(each.units)
        if units <= MAX_ALL_UNITS:
            found.append(each)
    return tuple(reversed(found))


def pods_of_last_hour(records: Iterable[PastPreemption], wall_time: float) -> int:
    """Return the number of pods with GPUs that were planned to be evicted in the last hour."""
    return sum(each.pods for each in records if wall_time - (parse_timestamp(each.at) or 0.0) < HOUR_S)


def _merged(records: list[PastPreemption], wall_time: float) -> list[PastPreemption]:
    """Return at most ``MAX_RECORDS``: the oldest ones become one, with the time of the newest of them.

    So a limit above ``MAX_RECORDS`` evictions an hour counts all of them, and no cool-down becomes shorter.
    """
    first = len(records) - MAX_RECORDS
    if first <= 0:
        return records
    old, last = records[:first], records[first]
    units = Counter[str]()
    for each in reversed((*old, last)):
        units.update(each.devices_by_unit())
    pods, known = last.pods + pods_of_last_hour(old, wall_time), [each.priority for each in (*old, last)]
    priority = None if None in known else max(each for each in known if each is not None)
    changed = msgspec.structs.replace(last, pods=pods, **_first_units(units), priority=priority)
    return [changed, *records[first + 1 :]]


def _is_unbegun(inputs: ReconcileInput, uid: str) -> bool:
    reservation = inputs.reservations.get(uid)
    return reservation is not None and not reservation.status.evicting


def _record(inputs: ReconcileInput, uid: str) -> PastPreemption | None:
    """Return the record of a hold; None: it evicts no pods, or backfilled pods, which no limit counts."""
    reservation = inputs.reservations.get(uid)
    if reservation is None or (intent := reservation.spec.preemption) is None or intent.yields:
        return None
    units = Counter[str]()
    for each in intent.evictions:
        units[each.key or each.unit] += devices_to_protect(each, reservation.namespace)
    pods = sum(each.gpus > 0 for each in intent.evictions)
    at, priority = format_timestamp(inputs.wall_time), reservation.spec.priority
    return PastPreemption(uid, at, pods, **_first_units(units), priority=priority)


def shared_namespace(namespace: str, beneficiary: str) -> str | None:
    """Return the namespace of a pod that is evicted for a gang of the same namespace; None: of another one."""
    return namespace if namespace == beneficiary else None


def devices_to_protect(eviction: PlannedEviction, namespace: str) -> int:
    """Return how many devices the cool-down protects for this eviction. ``namespace``: of the gang that gets them.

    A tenant must not protect its pods by evictions for its own gangs.
    """
    return 0 if eviction.namespace == namespace else eviction.gpus


def _first_units(units: Counter[str]) -> dict[str, Any]:
    """Return the fields of a record, with as many units as it can have."""
    return {"units": tuple(units)[:MAX_UNITS], "unit_devices": tuple(units.values())[:MAX_UNITS]}
