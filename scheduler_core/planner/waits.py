"""How long gangs waited, each told once: by how their wait ended. No I/O."""

from __future__ import annotations

from scheduler_core.gangs.gang import Gang
from scheduler_core.gangs.member import GangName
from scheduler_core.gangs.roster import Roster
from scheduler_core.planner.given import Given


class Waits:
    """For one thread, and one term of leadership."""

    def __init__(self, given: Given, roster: Roster) -> None:
        self._given, self._roster = given, roster
        self._let_off: set[GangName] = set()  # whose release is counted: pods are released one by one

    def put(self, name: GangName, gang: Gang | None) -> None:
        """What has become of a gang; None: it has no member any more."""
        if gang is None or not gang.placed:  # those that were released have gone
            self._let_off.discard(name)

    def ended(self, outcome: str, name: GangName) -> None:
        """``outcome``: "bound", "rolled back", "failed", "released"."""
        gang = self._roster.gang(name)
        if gang is not None and gang.created:  # nobody knows since when, once none of its pods is left
            self._given.hands.placed(outcome, gang, max(0.0, self._given.clock.wall() - gang.created))

    def released(self, name: GangName) -> None:
        """One of its pods was."""
        if name not in self._let_off:
            self._let_off.add(name)
            self.ended("released", name)
