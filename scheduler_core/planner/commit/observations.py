"""What a planner has seen itself since it leads: by its own monotonic clock, and forgotten when it ends. Pure.

Nothing here is needed to resume: a successor that knows none of it does the same, after waiting once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import Phase, State
from scheduler_core.cache.events import LedgerSeen, ReservationSeen
from scheduler_core.planner.commit.ledger import counting


class Since(NamedTuple):
    """Since when an entry has been in its phase."""

    phase: Phase
    at: float  # monotonic seconds
    generation: int  # of the ledger that showed it first, or a later one


class Silence(NamedTuple):
    """An extender that has not taken in what the ledger says."""

    generation: int  # that it has not reached
    since: float
    asked: float | None = None  # when its pod was last asked after
    gone: float | None = None  # when its pod was first found to have ended


class Denial(NamedTuple):
    """A write of a pod that the API server does not take, or that fails in its admission."""

    since: float  # monotonic seconds, of the first refusal in a row
    last: float
    error: str  # its words
    answered: bool = True  # the last of them; else nobody did, as where a webhook fails


class Memory(NamedTuple):
    """All that is remembered."""

    ledger: float | None = None  # when the ledger was first seen
    fresh: bool = False  # it was made by this planner: extenders may not know of it yet
    since: Mapping[str, Since] = {}  # by the UID of the reservation
    made: frozenset[str] = frozenset()  # reservations of this planner that were not listed yet
    touched: frozenset[tuple[str, str]] = frozenset()  # reservation, pod
    silent: Mapping[str, Silence] = {}  # by the identity of the extender
    denied: Mapping[tuple[type, str], Denial] = {}  # by what was to be written, and the UID of the pod


_IN_A_ROW_S = 90.0  # a refusal that is older has no successor: the write was not wanted any more


def with_denial(memory: Memory, what: type, uid: str, error: str, now: float, *, answered: bool = True) -> Memory:
    """It was refused, again or for the first time."""
    before = memory.denied.get((what, uid))
    again = Denial(now if before is None else before.since, now, error, answered)
    return memory._replace(denied={**memory.denied, (what, uid): again})


def without_denial(memory: Memory, what: type, uid: str) -> Memory:
    """It was done."""
    if (what, uid) not in memory.denied:
        return memory
    return memory._replace(denied={key: each for key, each in memory.denied.items() if key != (what, uid)})


def without_unanswered(memory: Memory) -> Memory:
    """The API server itself was away: that says nothing of the pods that were to be written."""
    return memory._replace(denied={key: each for key, each in memory.denied.items() if each.answered})


def noted(memory: Memory, ledger: LedgerSeen | None, reservations: Mapping[str, ReservationSeen], now: float) -> Memory:
    """What is remembered after a look at the cluster."""
    if ledger is None:
        return memory
    entries = counting(ledger.spec, reservations)
    since = {
        uid: before
        if (before := memory.since.get(uid)) is not None and before.phase is entry.phase
        else Since(entry.phase, now, ledger.generation)
        for uid, entry in entries.items()
    }
    return memory._replace(
        ledger=now if memory.ledger is None else memory.ledger,
        since=since,
        made=frozenset(uid for uid in memory.made if uid not in entries and _is_to_be_listed(reservations.get(uid))),
        touched=frozenset(each for each in memory.touched if each[0] in reservations),
        silent=dict(_silent(memory, since, ledger, now)),
        denied={key: each for key, each in memory.denied.items() if now - each.last < _IN_A_ROW_S},
    )


def _is_to_be_listed(reservation: ReservationSeen | None) -> bool:
    """Whether nothing has become of it yet: what was written again for members on their way may be Bound at once."""
    return reservation is not None and reservation.status.state in (None, State.PROPOSED)


def _silent(
    memory: Memory, since: Mapping[str, Since], ledger: LedgerSeen, now: float
) -> Iterator[tuple[str, Silence]]:
    """Extenders speak up where something is proposed; else there is nothing to say."""
    needed = max((each.generation for each in since.values() if each.phase is Phase.PROPOSED), default=0)
    abreast = {each.pod for each in ledger.extenders.values() if each.pod and each.generation >= needed}
    for identity, said in ledger.extenders.items():
        if said.generation >= needed:
            continue
        before = memory.silent.get(identity)
        silent = before if before is not None and said.generation < before.generation else Silence(needed, now)
        if silent.gone is None and said.pod in abreast:  # its container was started again: this is the process before
            silent = silent._replace(gone=now)
        yield identity, silent
