"""How far a gang has come, by its reservations."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import EntryPhase, ReservationState, ReservationStatus
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.progress import Progress, gang_progress
from scheduler_core.planner.gang.gang import Gang, GangPhase
from tests.scheduler_core.planner.packing.member_groups import GANG
from tests.scheduler_core.planner.packing.plans import HELD, PROPOSED, plan

QUEUED = Gang(GANG, GangPhase.QUEUED, "to be placed")
ROOM = plan("room", held={"a": 8}, status=ReservationStatus(ReservationState.HELD, "what becomes free is held"))
PLAN = plan("plan", {"w-0": ("a", 8)}, status=ReservationStatus(ReservationState.PROPOSED, "waits for an extender"))


@pytest.mark.parametrize("own", [[ROOM, PLAN], [PLAN, ROOM]], ids=["room first", "plan first"])
@pytest.mark.parametrize("phases", [{ROOM.key: HELD, PLAN.key: PROPOSED}, None], ids=["by the ledger", "by statuses"])
def test_what_is_proposed_says_more_than_what_is_still_held(
    own: list[ReservationUpdate], phases: dict[str, EntryPhase] | None
) -> None:
    assert gang_progress(QUEUED, own, phases) == Progress("proposed", "waits for an extender", PLAN, PLAN)


def test_what_is_held_is_told_while_nothing_is_proposed() -> None:
    assert gang_progress(QUEUED, [ROOM], {ROOM.key: HELD}) == Progress("held", "what becomes free is held", ROOM, ROOM)


def test_what_counts_no_more_says_nothing() -> None:
    done = plan("done", {"w-0": ("a", 8)}, status=ReservationStatus(ReservationState.BOUND))

    assert gang_progress(QUEUED, [done], {}) == Progress("queued", "to be placed", None, done)
