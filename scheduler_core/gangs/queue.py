"""Whose turn it is: by priority, then age; who does not fit lets smaller ones pass, but not for ever. Pure.

A gang that was rolled back waits longer each time. One that could not be placed for longer than ``patience_s`` may have
the next room that becomes free held for it: one gang of each priority at most, the first that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from scheduler_core.gangs.member import GangName
from scheduler_core.gangs.gang import Gang


class Pace(NamedTuple):
    """Seconds."""

    patience_s: float = 300.0  # in the queue before room is held
    first_s: float = 10.0  # after the first rollback; doubled by each that follows
    most_s: float = 300.0
    gather_s: float = 10.0  # an elastic gang with its minimum there waits so long for the rest


class Waiting(NamedTuple):
    """A gang in the queue."""

    gang: Gang
    since: float  # its first member's creation, also of earlier attempts
    rollbacks: int = 0
    until: float = 0.0  # not before that
    tried: Hashable = None  # what it did not fit into last


class Queue:
    """The gangs that are to be planned."""

    def __init__(self, pace: Pace = Pace()) -> None:  # noqa: B008
        self._pace = pace

    def put(self, gang: Gang) -> None:
        """A gang as it is now. One that is not QUEUED leaves the queue; what it went through is kept while it lives."""
        raise NotImplementedError

    def forget(self, name: GangName) -> None:
        """It is no more."""
        raise NotImplementedError

    def rolled_back(self, name: GangName, now: float) -> float:
        """Its members did not all start. Answers when it may be tried again."""
        raise NotImplementedError

    def unplaced(self, name: GangName, state: Hashable) -> None:
        """It did not fit into that (a table's generation): not tried again before that changes."""
        raise NotImplementedError

    def order(self, now: float) -> tuple[Waiting, ...]:
        """All that wait, the first first; those that wait for their time too."""
        raise NotImplementedError

    def batches(self, now: float, state: Hashable = None, most: int = 256) -> tuple[tuple[Waiting, ...], ...]:
        """What to plan now, in order: a gang, or single pods that follow one another, at most so many."""
        raise NotImplementedError

    def next_due(self, now: float) -> float | None:
        """When the next one that waits for its time may be tried; None: none does."""
        raise NotImplementedError

    def entitled(self, now: float) -> tuple[Waiting, ...]:
        """For whom room may be held: of each priority the first, once it did not fit and has waited long enough."""
        raise NotImplementedError


class Ending(NamedTuple):
    """A node and when the pods that are on it now will have ended."""

    node: str
    at: float | None  # seconds since 1970, by activeDeadlineSeconds of its last pod; None: nobody can say
    gpus: int  # that pods hold there now; 0: nothing to wait for


class Room(NamedTuple):
    """Nodes to hold for a gang."""

    nodes: tuple[str, ...]
    estimate: float | None  # when they will be free; None: nobody can say


def room(endings: Sequence[Ending], fits: Callable[[Sequence[str]], bool], tries: int = 200) -> Room | None:
    """The nodes that are free soonest and on which, once their present pods have ended, a gang fits; None: on none.

    ``fits`` is asked of sets of nodes, at most about ``tries`` times; with more nodes it must not say no to what it
    said yes to.
    """
    raise NotImplementedError
