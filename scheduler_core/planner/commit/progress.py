"""Progress of a gang: the phase that its members show, refined by its reservations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, ReservationState
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName

FAILED, ROLLING_BACK = "failed", "rolling back"
PHASES = {EntryPhase.HELD: "held", EntryPhase.PROPOSED: "proposed", EntryPhase.COMMITTED: "committed"}
# By the reservation's status, where the ledger may not be read. Members show better what is bound.
_BY_STATE = {
    ReservationState.HELD: PHASES[EntryPhase.HELD],
    ReservationState.PROPOSED: PHASES[EntryPhase.PROPOSED],
    ReservationState.COMMITTED: PHASES[EntryPhase.COMMITTED],
    ReservationState.ROLLING_BACK: ROLLING_BACK,
    ReservationState.FAILED: FAILED,
}


class Progress(NamedTuple):
    """Progress of one gang."""

    phase: str  # one of ``GangPhase``, or "held", "proposed", "committed", "rolling back", "failed"
    reason: str  # for people
    open: ReservationUpdate | None = None  # a reservation that counts, or has failed
    plan: ReservationUpdate | None = None  # the reservation that places most of its members


def reservations_by_gang(reservations: Iterable[ReservationUpdate]) -> dict[GangName, list[ReservationUpdate]]:
    """Return the reservations of each gang, sorted by name."""
    found: dict[GangName, list[ReservationUpdate]] = {}
    for each in sorted(reservations, key=lambda each: (each.namespace, each.name)):
        name = reserved_gang(each)
        if name is not None:
            found.setdefault(name, []).append(each)
    return found


def gang_progress(gang: Gang, own: Iterable[ReservationUpdate], phases: Mapping[str, EntryPhase] | None) -> Progress:
    """Return the progress of a gang. ``own``: its reservations.

    ``phases``: phases of the reservations that count, by UID; None: the ledgers may not be read. A capacity hold stays
    listed while places are only proposed, and says less than the proposal.
    """
    of = list(own)
    found = min(_open(of, phases), key=lambda each: each[0] == PHASES[EntryPhase.HELD], default=None)
    plan = max(of, key=lambda each: len(each.spec.seats), default=None)
    if found is None or (found[0] == FAILED and gang.phase in (GangPhase.BOUND, GangPhase.RUNNING)):
        return Progress(gang.phase.value, gang.reason, None, plan)
    phase, reservation = found
    return Progress(phase, reservation.status.reason or gang.reason, reservation, reservation)


def _open(
    own: Iterable[ReservationUpdate], phases: Mapping[str, EntryPhase] | None
) -> Iterator[tuple[str, ReservationUpdate]]:
    for each in own:
        state = each.status.state
        if state is ReservationState.FAILED:
            yield FAILED, each
        elif phases is None:
            if state in _BY_STATE:
                yield _BY_STATE[state], each
        elif each.key in phases:
            yield (ROLLING_BACK if state is ReservationState.ROLLING_BACK else PHASES[phases[each.key]]), each
        elif state is ReservationState.PROPOSED:  # it will be listed once every extender has seen the new ledger
            yield PHASES[EntryPhase.PROPOSED], each
