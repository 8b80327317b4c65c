"""Observations of one planner since it leads, timed by its own monotonic clock and lost when it ends. Pure.

No recovery needs them: a successor without them takes the same steps, after waiting once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, ReservationState
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.ledger import active_entries


class PhaseSince(NamedTuple):
    """Since when an entry of the ledger has been in its phase."""

    phase: EntryPhase
    at: float  # monotonic seconds
    generation: int  # of the ledger that first listed it so, or a later one


class SilentExtender(NamedTuple):
    """An extender that has not acknowledged the ledger's entries."""

    generation: int  # the generation that it has not reached
    since: float
    probed_at: float | None = None  # when its pod was last probed
    gone_at: float | None = None  # when its pod was first found to be gone


class RefusedWrite(NamedTuple):
    """A write of a pod that the API server, or an admission webhook, refuses."""

    since: float  # monotonic seconds, of the first refusal in a row
    last: float
    error: str  # the API server's message
    answered: bool = True  # false: the last attempt got no answer, as when a webhook fails


class BudgetCheck(NamedTuple):
    """Which units may be evicted, as last counted."""

    at: float  # monotonic seconds
    blocked: Mapping[str, str]  # unit -> why, for people
    forbidden: frozenset[str] = frozenset()  # UIDs of further pods that they forbid to evict
    # Nodes without evictions on which the gang would lack CPU, memory or another resource.
    insufficient_nodes: frozenset[str] = frozenset()


class Observations(NamedTuple):
    """Everything that this planner has observed."""

    ledger_seen_at: float | None = None  # when the ledger was first seen
    is_new_ledger: bool = False  # this planner created it: extenders may not have seen it yet
    since: Mapping[str, PhaseSince] = {}  # by the UID of the reservation
    created: frozenset[str] = frozenset()  # reservations of this planner that the ledger has not listed yet
    touched: frozenset[tuple[str, str]] = frozenset()  # UIDs of reservation and pod
    silent_extenders: Mapping[str, SilentExtender] = {}  # by the identity of the extender
    replaced_extenders: Mapping[str, float] = {}  # when a successor in its pod first named it, by identity
    refused_writes: Mapping[tuple[type, str], RefusedWrite] = {}  # by type of action and UID of the pod
    budgets: Mapping[str, BudgetCheck] = {}  # by the UID of the capacity hold
    evicted: Mapping[str, float] = {}  # by UID: when the eviction of a pod was accepted, or found to be unnecessary


_IN_A_ROW_S = 90.0  # an older refusal was not repeated: the write is no longer wanted


def with_refused_write(
    observations: Observations, action_type: type, uid: str, error: str, now: float, *, answered: bool = True
) -> Observations:
    """Record that a write of a pod was refused, for the first time or again."""
    before = observations.refused_writes.get((action_type, uid))
    refused = RefusedWrite(now if before is None else before.since, now, error, answered)
    return observations._replace(refused_writes={**observations.refused_writes, (action_type, uid): refused})


def without_refused_write(observations: Observations, action_type: type, uid: str) -> Observations:
    """Forget the refusals of a write that succeeded."""
    if (action_type, uid) not in observations.refused_writes:
        return observations
    return observations._replace(
        refused_writes={key: each for key, each in observations.refused_writes.items() if key != (action_type, uid)}
    )


def with_evicted_pod(observations: Observations, uid: str, now: float) -> Observations:
    """Record that the eviction of a pod was accepted, or that the pod is gone."""
    return observations._replace(evicted={**observations.evicted, uid: now})


def without_unanswered_writes(observations: Observations) -> Observations:
    """Forget writes without an answer: the API server itself was away, which says nothing about the pods."""
    return observations._replace(
        refused_writes={key: each for key, each in observations.refused_writes.items() if each.answered}
    )


def observe_ledger(
    observations: Observations, ledger: LedgerUpdate | None, reservations: Mapping[str, ReservationUpdate], now: float
) -> Observations:
    """Return the observations after one more read of the ledger."""
    if ledger is None:
        return observations
    entries = active_entries(ledger.spec, reservations)
    replaced = {each: observations.replaced_extenders.get(each, now) for each in _replaced_extenders(ledger)}
    since = {
        uid: before
        if (before := observations.since.get(uid)) is not None and before.phase is entry.phase
        else PhaseSince(entry.phase, now, ledger.generation)
        for uid, entry in entries.items()
    }
    victims = {
        each.uid
        for uid in entries
        if (preemption := reservations[uid].spec.preemption) is not None
        for each in preemption.evictions
    }
    return observations._replace(
        budgets={uid: each for uid, each in observations.budgets.items() if uid in entries},
        evicted={uid: at for uid, at in observations.evicted.items() if uid in victims},
        ledger_seen_at=now if observations.ledger_seen_at is None else observations.ledger_seen_at,
        since=since,
        created=frozenset(
            uid for uid in observations.created if uid not in entries and _is_to_be_listed(reservations.get(uid))
        ),
        touched=frozenset(each for each in observations.touched if each[0] in reservations),
        silent_extenders=dict(_silent(observations._replace(replaced_extenders=replaced), since, ledger, now)),
        replaced_extenders=replaced,
        refused_writes={
            key: each for key, each in observations.refused_writes.items() if now - each.last < _IN_A_ROW_S
        },
    )


def _is_to_be_listed(reservation: ReservationUpdate | None) -> bool:
    """Return whether it is not listed yet. A plan recreated for ungated members may be Bound before it is listed."""
    return reservation is not None and reservation.status.state in (None, ReservationState.PROPOSED)


def _silent(
    observations: Observations, since: Mapping[str, PhaseSince], ledger: LedgerUpdate, now: float
) -> Iterator[tuple[str, SilentExtender]]:
    """Yield the silent extenders. An extender has to acknowledge only while a proposal is listed.

    A replaced extender is silent at once, so that the wait for its end runs beside the wait of its successor, which
    acknowledges nothing at first (``gputopo/timing.py``).
    """
    needed = max((each.generation for each in since.values() if each.phase is EntryPhase.PROPOSED), default=0)
    current_pods = {each.pod for each in ledger.extenders.values() if each.pod and each.generation >= needed}
    for identity, ack in ledger.extenders.items():
        replaced_at = observations.replaced_extenders.get(identity)
        if ack.generation >= needed and replaced_at is None:
            continue
        before = observations.silent_extenders.get(identity)
        silent = before if before is not None and ack.generation < before.generation else SilentExtender(needed, now)
        if replaced_at is not None:
            silent = silent._replace(
                gone_at=replaced_at if silent.gone_at is None else min(silent.gone_at, replaced_at)
            )
        elif (
            silent.gone_at is None and ack.pod in current_pods
        ):  # its container restarted: this is the previous process
            silent = silent._replace(gone_at=now)
        yield identity, silent


def _replaced_extenders(ledger: LedgerUpdate) -> Iterator[str]:
    """Yield the extenders whose successor in the same pod names them. Two that name each other prove nothing."""
    for successor, ack in ledger.extenders.items():
        for identity in ack.replaces:
            replaced = ledger.extenders.get(identity)
            if replaced is not None and ack.pod and replaced.pod == ack.pod and successor not in replaced.replaces:
                yield identity
