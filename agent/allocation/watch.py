"""Asks the kubelet again and again, and tells only what is news. Time is an argument.

A kubelet that restarts must not look like pods that come and go: what it said last is kept for ``KEEP_S`` while it
does not answer, and for ``SETTLE_S`` after it came back an answer that lacks something is not believed, because its
socket is there before its pods are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agent.allocation.client import PodResourcesError
from agent.allocation.wire import Held

POLL_S = 1.0  # a change must be published within two seconds; a poll costs 3 ms
KEEP_S = 60.0  # longer than a kubelet's restart; then "not known" is the truth
SETTLE_S = 10.0  # from its sockets to its pods a kubelet needs some seconds


class Reading(NamedTuple):
    """What is known of who holds what. ``held`` is None where nothing is; ``error`` is why the last poll failed."""

    held: frozenset[Held] | None = None
    error: str | None = None


class Watch:
    """Remembers the last reading."""

    def __init__(self, ask: Callable[[], tuple[Held, ...]]) -> None:
        self._ask = ask
        self._told: Reading | None = None
        self._answered = float("-inf")  # when the kubelet last answered
        self._settled = float("-inf")  # from when on an answer that lacks something is believed

    def poll(self, now: float) -> Reading | None:
        """Ask once; the reading where it differs from the last one that was returned."""
        reading = self._read(now)
        if reading == self._told:
            return None
        self._told = reading
        return reading

    def _read(self, now: float) -> Reading:
        before = self._told or Reading()
        try:
            held = frozenset(each._replace(devices=tuple(sorted(each.devices))) for each in self._ask())
        except PodResourcesError as error:
            self._settled = float("inf")  # until it answers again
            return Reading(before.held if now - self._answered <= KEEP_S else None, str(error))
        if self._settled == float("inf"):
            self._settled = now + SETTLE_S
        self._answered = now
        if before.held is not None and not before.held <= held and now < self._settled:
            held |= before.held
        return Reading(held)
