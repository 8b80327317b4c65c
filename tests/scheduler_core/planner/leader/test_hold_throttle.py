"""A search for room, beside the thread that plans."""

from __future__ import annotations

from threading import Thread

from scheduler_core.planner.leader.hold_search import Held, HoldTask
from scheduler_core.planner.leader.hold_throttle import Precedence
from tests.scheduler_core.planner.leader.hold_tasks import BUSY, task
from tests.scheduler_core.planner.packing.member_groups import crew

FITS = task(crew(1, 8), *BUSY.values())


class Seeker(Thread):
    """The other thread."""

    def __init__(self, precedence: Precedence, task: HoldTask = FITS) -> None:
        super().__init__()
        self.found: Held | None = None
        self._precedence, self._job = precedence, task

    def run(self) -> None:
        self.found = self._precedence.seek(self._job)


def test_it_rests_while_anything_is_planned() -> None:
    precedence = Precedence()
    with precedence.planning():
        seeker = Seeker(precedence)
        seeker.start()
        seeker.join(0.05)
        assert seeker.is_alive()
    seeker.join(10)

    assert seeker.found is not None
    assert seeker.found.create is not None
    assert seeker.found.took > 0


def test_it_does_not_rest_for_ever() -> None:
    precedence = Precedence(give_way_s=0.05)
    with precedence.planning():
        found = precedence.seek(FITS)

    assert found.create is not None


def test_it_ends_with_its_time() -> None:
    assert Precedence(room_s=0.0).seek(FITS).create is None
