"""Writes that are under way, and those that are not to be repeated yet. No I/O: ``Hands`` carries them out.

Of one object one write is under way at a time. What was refused, or not answered, is not sent again at once: its
consequences may not have been seen yet, or nothing has changed that would make another answer likely.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    DeleteReservation,
    DropRegistration,
    Key,
    ProbeExtenderPod,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.writer import WriteOutcome

_AGAIN_S = 2.0  # before what did not help is tried again on the same version of an object
_REFUSED_S = 30.0  # before what the API server does not take is sent again
_AWAY_S, _LONGEST_AWAY_S = 0.2, 10.0  # a pause where nobody answers; doubled by each that follows


class BackedOffWrite(NamedTuple):
    """A write that is not to be repeated yet."""

    version: str  # of the object that it was worked out from
    until: float  # monotonic seconds


class Outbox:
    """For one thread, and one term of leadership."""

    def __init__(self, given: TermContext, view: PlannerView) -> None:
        self._given, self._view = given, view
        self._busy: dict[Key, Action] = {}
        self._refused: dict[tuple[type[Any], Key], BackedOffWrite] = {}
        self._away = 0  # pauses in a row
        self._away_in: set[str] = set()  # namespaces of writes in a row that nobody answered; "": of none
        self._pause = 0.0  # monotonic: nothing is written before

    @property
    def is_busy(self) -> bool:
        """Whether any write is under way."""
        return bool(self._busy)

    @property
    def is_writing_plan(self) -> bool:
        """Whether a plan is being written down."""
        return any(isinstance(each, CreateReservation) for each in self._busy.values())

    def is_paused(self, now: float) -> bool:
        """Whether nobody is asked for a while."""
        return now < self._pause

    def submit_action(self, what: Action, now: float) -> None:
        """Have it written, unless something else of that object is, or it was refused a moment ago."""
        if what.key in self._busy:
            return
        refusal = self._refused.get((type(what), what.key))
        if refusal is not None and refusal.version == version_of(what) and now < refusal.until:
            self._given.executor.schedule_round(refusal.until - now)
            return
        self._busy[what.key] = what
        self._view.mark_writing(what)
        self._given.executor.execute_action(what)

    def apply_answer(self, what: Action, outcome: WriteOutcome, now: float) -> bool:
        """Take note of an answer. Answers whether it is this write that is not taken now: false where none is."""
        self._busy.pop(what.key, None)
        if outcome is not WriteOutcome.DONE:
            self._view.mark_not_written(what)
        if outcome is WriteOutcome.UNANSWERED:
            return self._unanswered(what, now)
        if outcome is not WriteOutcome.DEPOSED:
            self._away = 0
            self._away_in.clear()
        if outcome is not WriteOutcome.DONE or not isinstance(what, WriteLedger):
            self._refuse(what, now, _REFUSED_S if outcome is WriteOutcome.REFUSED else _AGAIN_S)
        return outcome in (WriteOutcome.REFUSED, WriteOutcome.CONFLICT, WriteOutcome.GONE)

    def _unanswered(self, what: Action, now: float) -> bool:
        """In one namespace a webhook may fail that others know nothing of; else nobody is asked for a while."""
        self._away_in.add(namespace_of(what))
        if "" in self._away_in or len(self._away_in) > 1:
            if now >= self._pause:  # those that were under way when it began say no more than the first of them
                self._pause = now + min(_LONGEST_AWAY_S, _AWAY_S * 2.0 ** min(self._away, 10))
                self._away += 1
            self._given.executor.schedule_round(self._pause - now)
            return False
        self._refuse(what, now, _AGAIN_S)
        self._given.executor.schedule_round(_AGAIN_S)
        return True

    def _refuse(self, what: Action, now: float, seconds: float) -> None:
        """The same is not done again at once: its consequences may not have been seen yet."""
        if len(self._refused) > 10_000:
            self._refused = {key: each for key, each in self._refused.items() if each.until > now}
        self._refused[type(what), what.key] = BackedOffWrite(version_of(what), now + seconds)


def version_of(what: Action) -> str:
    """Of the object that it was worked out from; "" where there was none."""
    for field in ("over", "of", "member"):
        found = getattr(what, field, None)
        if found is not None and not isinstance(found, str):
            return str(found.version)
    return ""


def namespace_of(what: Action) -> str:
    """Of the object that is written; "" where it has none."""
    if isinstance(what, CreateReservation):
        return what.namespace
    if isinstance(what, WriteStatus | DeleteReservation):
        return what.of.namespace
    return (
        ""
        if isinstance(what, CreateLedger | WriteLedger | DropRegistration | ProbeExtenderPod)
        else what.member.namespace
    )
