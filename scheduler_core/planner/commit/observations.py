"""What a planner has seen itself since it leads: by its own monotonic clock, and forgotten when it ends. Pure.

Nothing here is needed to resume: a successor that knows none of it does the same, after waiting once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, ReservationState
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.ledger import active_entries


class PhaseSince(NamedTuple):
    """Since when an entry has been in its phase."""

    phase: EntryPhase
    at: float  # monotonic seconds
    generation: int  # of the ledger that showed it first, or a later one


class SilentExtender(NamedTuple):
    """An extender that has not taken in what the ledger says."""

    generation: int  # that it has not reached
    since: float
    asked: float | None = None  # when its pod was last asked after
    gone: float | None = None  # when its pod was first found to have ended


class RefusedWrite(NamedTuple):
    """A write of a pod that the API server does not take, or that fails in its admission."""

    since: float  # monotonic seconds, of the first refusal in a row
    last: float
    error: str  # its words
    answered: bool = True  # the last of them; else nobody did, as where a webhook fails


class Observations(NamedTuple):
    """All that is remembered."""

    ledger_seen_at: float | None = None  # when the ledger was first seen
    is_new_ledger: bool = False  # it was made by this planner: extenders may not know of it yet
    since: Mapping[str, PhaseSince] = {}  # by the UID of the reservation
    made: frozenset[str] = frozenset()  # reservations of this planner that were not listed yet
    touched: frozenset[tuple[str, str]] = frozenset()  # reservation, pod
    silent_extenders: Mapping[str, SilentExtender] = {}  # by the identity of the extender
    refused_writes: Mapping[tuple[type, str], RefusedWrite] = {}  # by what was to be written, and the UID of the pod


_IN_A_ROW_S = 90.0  # a refusal that is older has no successor: the write was not wanted any more


def with_refused_write(
    memory: Observations, what: type, uid: str, error: str, now: float, *, answered: bool = True
) -> Observations:
    """It was refused, again or for the first time."""
    before = memory.refused_writes.get((what, uid))
    again = RefusedWrite(now if before is None else before.since, now, error, answered)
    return memory._replace(refused_writes={**memory.refused_writes, (what, uid): again})


def without_refused_write(memory: Observations, what: type, uid: str) -> Observations:
    """It was done."""
    if (what, uid) not in memory.refused_writes:
        return memory
    return memory._replace(
        refused_writes={key: each for key, each in memory.refused_writes.items() if key != (what, uid)}
    )


def without_unanswered_writes(memory: Observations) -> Observations:
    """The API server itself was away: that says nothing of the pods that were to be written."""
    return memory._replace(refused_writes={key: each for key, each in memory.refused_writes.items() if each.answered})


def observe_ledger(
    memory: Observations, ledger: LedgerUpdate | None, reservations: Mapping[str, ReservationUpdate], now: float
) -> Observations:
    """What is remembered after a look at the cluster."""
    if ledger is None:
        return memory
    entries = active_entries(ledger.spec, reservations)
    since = {
        uid: before
        if (before := memory.since.get(uid)) is not None and before.phase is entry.phase
        else PhaseSince(entry.phase, now, ledger.generation)
        for uid, entry in entries.items()
    }
    return memory._replace(
        ledger_seen_at=now if memory.ledger_seen_at is None else memory.ledger_seen_at,
        since=since,
        made=frozenset(uid for uid in memory.made if uid not in entries and _is_to_be_listed(reservations.get(uid))),
        touched=frozenset(each for each in memory.touched if each[0] in reservations),
        silent_extenders=dict(_silent(memory, since, ledger, now)),
        refused_writes={key: each for key, each in memory.refused_writes.items() if now - each.last < _IN_A_ROW_S},
    )


def _is_to_be_listed(reservation: ReservationUpdate | None) -> bool:
    """Whether nothing has become of it yet: what was written again for members on their way may be Bound at once."""
    return reservation is not None and reservation.status.state in (None, ReservationState.PROPOSED)


def _silent(
    memory: Observations, since: Mapping[str, PhaseSince], ledger: LedgerUpdate, now: float
) -> Iterator[tuple[str, SilentExtender]]:
    """Extenders speak up where something is proposed; else there is nothing to say."""
    needed = max((each.generation for each in since.values() if each.phase is EntryPhase.PROPOSED), default=0)
    abreast = {each.pod for each in ledger.extenders.values() if each.pod and each.generation >= needed}
    for identity, said in ledger.extenders.items():
        if said.generation >= needed:
            continue
        before = memory.silent_extenders.get(identity)
        silent = before if before is not None and said.generation < before.generation else SilentExtender(needed, now)
        if silent.gone is None and said.pod in abreast:  # its container was started again: this is the process before
            silent = silent._replace(gone=now)
        yield identity, silent
