"""A search for room, beside the thread that plans."""

from __future__ import annotations

from threading import Thread

from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask
from scheduler_core.planner.leader.hold_throttle import HoldThrottle
from tests.scheduler_core.planner.leader.hold_tasks import BUSY, task
from tests.scheduler_core.planner.packing.member_groups import crew

FITS = task(crew(1, 8), *BUSY.values())


class Seeker(Thread):
    """The other thread."""

    def __init__(self, precedence: HoldThrottle, task: HoldTask = FITS) -> None:
        super().__init__()
        self.found: HoldResult | None = None
        self._precedence, self._job = precedence, task

    def run(self) -> None:
        self.found = self._precedence.search_hold(self._job)


def test_it_rests_while_anything_is_planned() -> None:
    precedence = HoldThrottle()
    with precedence.plan_running():
        seeker = Seeker(precedence)
        seeker.start()
        seeker.join(0.05)
        assert seeker.is_alive()
    seeker.join(10)

    assert seeker.found is not None
    assert seeker.found.create is not None
    assert seeker.found.took > 0


def test_it_does_not_rest_for_ever() -> None:
    precedence = HoldThrottle(give_way_s=0.05)
    with precedence.plan_running():
        found = precedence.search_hold(FITS)

    assert found.create is not None


def test_it_ends_with_its_time() -> None:
    assert HoldThrottle(room_s=0.0).search_hold(FITS).create is None
