"""Polls the kubelet and returns changes only. Time is an argument.

A restart of the kubelet must not look like pods that end and start: while the kubelet does not answer, its last report
is kept for ``KEEP_S``; for ``SETTLE_S`` after it is back, devices that are missing from a report are still kept,
because its socket is available before its pods are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agent.allocation.client import PodResourcesError
from agent.allocation.kubelet_reading import KubeletReading
from agent.allocation.nics import read_physical_functions
from agent.allocation.wire import HeldDevices

POLL_S = 1.0  # a change must be published within two seconds; a poll costs 3 ms
KEEP_S = 60.0  # longer than a restart of the kubelet; later the allocations are unknown
KUBELET_S = 5.0  # between two readings of the kubelet's configuration and of what it may allocate
SETTLE_S = 10.0  # a starting kubelet needs some seconds from its socket to its pods


class AllocationReport(NamedTuple):
    """The devices that containers hold. ``held`` is None where unknown; ``error`` is the error of the last poll."""

    held: frozenset[HeldDevices] | None = None
    error: str | None = None
    physical_functions: Mapping[str, str] = {}  # PCI address of a held virtual function -> that of its card
    kubelet: KubeletReading = KubeletReading()


class AllocationWatch:
    """Polls and remembers the last report."""

    def __init__(
        self,
        list_held: Callable[[], tuple[HeldDevices, ...]],
        find_cards: Callable[[Iterable[HeldDevices]], Mapping[str, str]] = read_physical_functions,
        read_kubelet: Callable[[], KubeletReading] = KubeletReading,
    ) -> None:
        self._list_held = list_held
        self._find_cards = find_cards
        self._read_kubelet = read_kubelet
        self._kubelet = KubeletReading()
        self._next_kubelet_at = float("-inf")
        self._last_returned: AllocationReport | None = None
        self._answered = float("-inf")  # the last answer of the kubelet
        self._settled = float("-inf")  # from this time on missing devices count as released

    def poll(self, now: float) -> AllocationReport | None:
        """Poll once; return the report if it differs from the last one returned."""
        reading = self._poll_kubelet(now)
        if reading == self._last_returned:
            return None
        self._last_returned = reading
        return reading

    def _poll_kubelet(self, now: float) -> AllocationReport:
        previous = self._last_returned or AllocationReport()
        try:
            held = frozenset(each._replace(devices=tuple(sorted(each.devices))) for each in self._list_held())
        except PodResourcesError as error:
            self._settled = float("inf")  # until it answers again
            kept = previous.held if now - self._answered <= KEEP_S else None
            return AllocationReport(kept, str(error), previous.physical_functions, self._kubelet)
        if self._settled == float("inf"):
            self._settled = now + SETTLE_S
        self._answered = now
        if previous.held is not None and not previous.held <= held and now < self._settled:
            held |= previous.held
        if held != previous.held or now >= self._next_kubelet_at:
            self._kubelet = self._read_kubelet()
            self._next_kubelet_at = now + KUBELET_S
        return AllocationReport(held, None, self._find_cards(held), self._kubelet)
