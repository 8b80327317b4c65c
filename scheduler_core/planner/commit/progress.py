"""How far a gang has come: what its members show, with what its reservations add. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import Phase, State
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import gang_of
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName

FAILED, ROLLING_BACK = "failed", "rolling back"
PHASES = {Phase.HELD: "held", Phase.PROPOSED: "proposed", Phase.COMMITTED: "committed"}
# By its status, where the ledger may not be read. What is bound its members show better.
_BY_STATE = {
    State.HELD: PHASES[Phase.HELD],
    State.PROPOSED: PHASES[Phase.PROPOSED],
    State.COMMITTED: PHASES[Phase.COMMITTED],
    State.ROLLING_BACK: ROLLING_BACK,
    State.FAILED: FAILED,
}


class Progress(NamedTuple):
    """Of one gang."""

    phase: str  # one of ``GangPhase``, or "held", "proposed", "committed", "rolling back", "failed"
    reason: str  # for people
    open: ReservationSeen | None = None  # that counts, or has failed
    plan: ReservationSeen | None = None  # by which most of its members have their places, or are to


def by_gang(reservations: Iterable[ReservationSeen]) -> dict[GangName, list[ReservationSeen]]:
    """The reservations of each gang, by name."""
    found: dict[GangName, list[ReservationSeen]] = {}
    for each in sorted(reservations, key=lambda each: (each.namespace, each.name)):
        name = gang_of(each)
        if name is not None:
            found.setdefault(name, []).append(each)
    return found


def progress(gang: Gang, own: Iterable[ReservationSeen], phases: Mapping[str, Phase] | None) -> Progress:
    """``own``: its reservations. ``phases``: of those that count, by UID; None: the ledgers may not be read.

    What is held for a gang stays so while its places are only proposed, and says less.
    """
    of = list(own)
    found = min(_open(of, phases), key=lambda each: each[0] == PHASES[Phase.HELD], default=None)
    plan = max(of, key=lambda each: len(each.spec.seats), default=None)
    if found is None or (found[0] == FAILED and gang.phase in (GangPhase.BOUND, GangPhase.RUNNING)):
        return Progress(gang.phase.value, gang.reason, None, plan)
    phase, reservation = found
    return Progress(phase, reservation.status.reason or gang.reason, reservation, reservation)


def _open(own: Iterable[ReservationSeen], phases: Mapping[str, Phase] | None) -> Iterator[tuple[str, ReservationSeen]]:
    for each in own:
        state = each.status.state
        if state is State.FAILED:
            yield FAILED, each
        elif phases is None:
            if state in _BY_STATE:
                yield _BY_STATE[state], each
        elif each.key in phases:
            yield (ROLLING_BACK if state is State.ROLLING_BACK else PHASES[phases[each.key]]), each
        elif state is State.PROPOSED:  # to be listed, once every extender has seen that there is a ledger
            yield PHASES[Phase.PROPOSED], each
