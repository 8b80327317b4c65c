"""Progress of a gang, by its reservations."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import EntryPhase, ReservationState, ReservationStatus
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.progress import Progress, gang_progress
from scheduler_core.planner.gang.gang import Gang, GangPhase
from tests.scheduler_core.planner.packing.member_groups import GANG
from tests.scheduler_core.planner.packing.plans import HELD, PROPOSED, plan

QUEUED = Gang(GANG, GangPhase.QUEUED, "to be placed")
HOLD = plan("hold", held={"a": 8}, status=ReservationStatus(ReservationState.HELD, "does not fit yet"))
PLAN = plan("plan", {"w-0": ("a", 8)}, status=ReservationStatus(ReservationState.PROPOSED, "waits for an extender"))


@pytest.mark.parametrize("own", [[HOLD, PLAN], [PLAN, HOLD]], ids=["hold first", "plan first"])
@pytest.mark.parametrize("phases", [{HOLD.key: HELD, PLAN.key: PROPOSED}, None], ids=["by the ledger", "by statuses"])
def test_a_proposal_takes_precedence_over_a_capacity_hold(
    own: list[ReservationUpdate], phases: dict[str, EntryPhase] | None
) -> None:
    assert gang_progress(QUEUED, own, phases) == Progress("proposed", "waits for an extender", PLAN, PLAN)


def test_a_capacity_hold_is_reported_while_nothing_is_proposed() -> None:
    assert gang_progress(QUEUED, [HOLD], {HOLD.key: HELD}) == Progress("held", "does not fit yet", HOLD, HOLD)


def test_a_reservation_that_no_longer_counts_is_ignored() -> None:
    done = plan("done", {"w-0": ("a", 8)}, status=ReservationStatus(ReservationState.BOUND))

    assert gang_progress(QUEUED, [done], {}) == Progress("queued", "to be placed", None, done)
