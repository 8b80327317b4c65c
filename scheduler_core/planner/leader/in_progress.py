"""For whom something is under way already, so that nothing else is begun for them. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.commit.ledger import active_entries
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.view import PlannerView


class InProgress(NamedTuple):
    """Gangs and pods."""

    gangs: frozenset[GangName]
    pods: frozenset[str]  # UIDs of single ones

    def is_free(self, gang: Gang) -> bool:
        """Whether it is none of those."""
        return gang.name not in self.gangs and not any(each.uid in self.pods for each in gang.ready)


def in_progress(view: PlannerView) -> InProgress:
    """Of now. The ledger is there: nothing is begun before."""
    assert view.ledger is not None
    entries = active_entries(view.ledger.spec, view.reservations)
    open_ = [view.reservations[uid] for uid, entry in entries.items() if entry.phase is not EntryPhase.HELD]
    gangs = frozenset(name for each in open_ if (name := reserved_gang(each)) is not None)
    return InProgress(gangs, frozenset(seat.uid for each in open_ if not each.spec.gang for seat in each.spec.seats))
