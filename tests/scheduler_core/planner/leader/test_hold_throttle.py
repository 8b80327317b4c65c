"""A hold search beside the planning thread."""

from __future__ import annotations

from threading import Thread

from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask
from scheduler_core.planner.leader.hold_throttle import HoldThrottle
from tests.scheduler_core.planner.leader.hold_tasks import BUSY, task
from tests.scheduler_core.planner.packing.member_groups import crew

FITS = task(crew(1, 8), *BUSY.values())


class SearchThread(Thread):
    """The thread of the hold search."""

    def __init__(self, precedence: HoldThrottle, task: HoldTask = FITS) -> None:
        super().__init__()
        self.found: HoldResult | None = None
        self._precedence, self._job = precedence, task

    def run(self) -> None:
        self.found = self._precedence.search_hold(self._job)


def test_a_search_pauses_while_a_plan_runs() -> None:
    precedence = HoldThrottle()
    with precedence.plan_running():
        thread = SearchThread(precedence)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(10)

    assert thread.found is not None
    assert thread.found.create is not None
    assert thread.found.cpu_s > 0


def test_a_search_does_not_pause_forever() -> None:
    precedence = HoldThrottle(max_pause_s=0.05)
    with precedence.plan_running():
        found = precedence.search_hold(FITS)

    assert found.create is not None


def test_a_search_ends_when_its_time_is_over() -> None:
    assert HoldThrottle(search_s=0.0).search_hold(FITS).create is None
