"""When departed pods ended, and when to check again whether they still count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gputopo.timing import ENDED_POD_SETTLES_S


class _Check(NamedTuple):
    """The next check of a pod. No plain tuple: see ``PodIndex``."""

    at: float
    node: str


class EndedPods:
    """The departed pods of all nodes, by UID. Times in seconds since 1970."""

    def __init__(self) -> None:
        self.ended_at: dict[str, float] = {}
        self._due: dict[str, _Check] = {}  # the first is due first

    def add_pod(self, uid: str, node: str, now: float) -> None:
        """Record that a pod ended on a node."""
        self.ended_at[uid] = now
        self._due[uid] = _Check(now + ENDED_POD_SETTLES_S, node)

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that counts as departed no more."""
        self.ended_at.pop(uid, None)

    def pop_due(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield pods, each with its node, that ended ``ENDED_POD_SETTLES_S`` ago; again later, until forgotten."""
        while self._due:
            uid, (at, node) = next(iter(self._due.items()))
            if at > now:
                return
            del self._due[uid]
            if uid in self.ended_at:
                yield uid, node
            if uid in self.ended_at:
                self._due[uid] = _Check(now + ENDED_POD_SETTLES_S, node)
