"""How long gangs waited since they were complete, each attempt told once: by how it ended. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.members import Roster
from scheduler_core.planner.leader.context import Given


class Wait(NamedTuple):
    """A gang that waited, with members that may be gone by now."""

    gang: Gang
    seconds: float


class Waits:
    """For one thread, and one term of leadership."""

    def __init__(self, given: Given, roster: Roster) -> None:
        self._given, self._roster = given, roster
        self._let_off: set[GangName] = set()  # whose release is counted: pods are released one by one
        self._taken_back: dict[str, Wait] = {}  # by the UID of a reservation whose end has begun

    def put(self, name: GangName, gang: Gang | None) -> None:
        """What has become of a gang; None: it has no member any more."""
        if gang is None or not gang.placed:  # those that were released have gone
            self._let_off.discard(name)

    def ended(self, outcome: str, name: GangName) -> None:
        """``outcome``: "bound", "rolled back", "failed", "released"."""
        self._tell(outcome, self._wait(name))

    def released(self, name: GangName) -> None:
        """One of its pods was."""
        if name not in self._let_off:
            self._let_off.add(name)
            self.ended("released", name)

    def taken_back(self, uid: str, name: GangName) -> None:
        """Its end has begun: it is rolled back once the ledger has forgotten it, if it does not fail before."""
        wait = self._wait(name)
        if wait is not None:
            self._taken_back[uid] = wait

    def failed(self, uid: str, name: GangName) -> None:
        """It could not be taken back."""
        self._tell("failed", self._taken_back.pop(uid, None) or self._wait(name))

    def gone(self, uid: str) -> None:
        """The ledger has forgotten it, or there is no such reservation any more."""
        self._tell("rolled back", self._taken_back.pop(uid, None))

    def _wait(self, name: GangName) -> Wait | None:
        """None: nobody knows since when, once none of its pods is left."""
        gang = self._roster.gang(name)
        if gang is None or not gang.newest:
            return None
        return Wait(gang, max(0.0, self._given.clock.wall() - gang.newest))

    def _tell(self, outcome: str, wait: Wait | None) -> None:
        if wait is not None:
            self._given.hands.placed(outcome, wait.gang, wait.seconds)
