"""How long gangs waited since they were complete, each attempt told once: by how it ended. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.leader.context import TermContext


class Wait(NamedTuple):
    """A gang that waited, with members that may be gone by now."""

    gang: Gang
    seconds: float


class WaitTimes:
    """For one thread, and one term of leadership."""

    def __init__(self, given: TermContext, roster: GangMembers) -> None:
        self._given, self._roster = given, roster
        self._released: set[GangName] = set()  # whose release is counted: pods are released one by one
        self._rolling_back: dict[str, Wait] = {}  # by the UID of a reservation whose end has begun

    def update_gang(self, name: GangName, gang: Gang | None) -> None:
        """What has become of a gang; None: it has no member any more."""
        if gang is None or not gang.placed:  # those that were released have gone
            self._released.discard(name)

    def end_wait(self, outcome: str, name: GangName) -> None:
        """``outcome``: "bound", "rolled back", "failed", "released"."""
        self._count_wait(outcome, self._wait(name))

    def mark_released(self, name: GangName) -> None:
        """One of its pods was."""
        if name not in self._released:
            self._released.add(name)
            self.end_wait("released", name)

    def mark_rolling_back(self, uid: str, name: GangName) -> None:
        """Its end has begun: it is rolled back once the ledger has forgotten it, if it does not fail before."""
        wait = self._wait(name)
        if wait is not None:
            self._rolling_back[uid] = wait

    def mark_failed(self, uid: str, name: GangName) -> None:
        """It could not be taken back."""
        self._count_wait("failed", self._rolling_back.pop(uid, None) or self._wait(name))

    def mark_removed(self, uid: str) -> None:
        """The ledger has forgotten it, or there is no such reservation any more."""
        self._count_wait("rolled back", self._rolling_back.pop(uid, None))

    def _wait(self, name: GangName) -> Wait | None:
        """None: nobody knows since when, once none of its pods is left."""
        gang = self._roster.get_gang(name)
        if gang is None or not gang.newest:
            return None
        return Wait(gang, max(0.0, self._given.clock.wall() - gang.newest))

    def _count_wait(self, outcome: str, wait: Wait | None) -> None:
        if wait is not None:
            self._given.executor.count_wait(outcome, wait.gang, wait.seconds)
