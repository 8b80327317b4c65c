"""The observer as a service: watches deliver, one event loop owns the state, and placements are printed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from gputopo.process.daemon import bind_socket
from gputopo.recent_results import ResultExpiry
from scheduler_core.cache.events import Batch, WatchStatus
from scheduler_core.cache.watch import WatchErrorLog, restart_reason, silence_reason
from scheduler_core.observe.comparison import ObservedPlacement
from scheduler_core.observe.document import placement_document, report_document
from scheduler_core.observe.metrics import ObserverMetrics, ObserverStatus
from scheduler_core.observe.observer import Observer
from scheduler_core.observe.settings import ObserverSettings
from scheduler_core.observe.summary import render_summary
from scheduler_core.observe.wording import log_line
from scheduler_core.policy.policy import Policy
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import WatchSet
from scheduler_core.runtime.http_connection import PAGE_LIMITS
from scheduler_core.runtime.http_pages import json_page, program_app
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.page_access import PageAccess

_SYNC_S = 60.0  # for the first lists, if the run has an end


class ObserverService:
    """All parts but the socket, on the thread of the event loop."""

    def __init__(self, settings: ObserverSettings, policy: Policy, print_line: Callable[[str], None]) -> None:
        """``say`` prints; it raises ``BrokenPipeError`` when its reader is gone."""
        self.observer = Observer(policy, heartbeats=True)
        self.metrics = ObserverMetrics(self._status)
        self.stop_requested = asyncio.Event()
        self._now = SlewedClock()
        self._settings = settings
        self._print_line = print_line
        self._watches: WatchSet | None = None
        self._watch_errors = WatchErrorLog()
        self._expiry = ResultExpiry()
        self._started = time.monotonic()
        self._synced: float | None = None  # monotonic, as the other times
        self._reported: float | None = None  # when a summary was last printed

    @property
    def synced(self) -> bool:
        """True if all watches were synced."""
        return self._synced is not None

    @property
    def watch_errors(self) -> tuple[str, ...]:
        """The errors of the watches."""
        return tuple(each.error for each in self._statuses() if each.error)

    @contextmanager
    def running_watches(self, watches: WatchSet) -> Iterator[None]:
        """Run the watches; print the report at the end."""
        self._watches = watches
        self._started = time.monotonic()
        watches.start()
        try:
            yield
        finally:
            watches.stop()
        if self.synced:
            self._count(self.observer.finish())
            self._print_report()

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply a batch of a watch."""
        placements = self.observer.apply_batch(batch, self._now())
        if self.synced:
            self._count(placements)
        elif self.observer.cache.synced:
            self._begin(placements)

    def tick(self) -> None:
        """Let time pass, and end or report when due."""
        self._watch_errors.log_errors(self._statuses())
        now = time.monotonic()
        if self._synced is None:
            if self._settings.for_s is not None and now - self._started > self._settings.for_s + _SYNC_S:
                self.stop_requested.set()
            return
        self._count(self.observer.advance_time(self._now()))
        self._expiry.tick(now, self.observer.cache.snapshot.states_in_use)
        every, reported = self._settings.every_s, self._reported
        if self._settings.for_s is not None and now - self._synced >= self._settings.for_s:
            self.stop_requested.set()
        elif every is not None and reported is not None and now - reported >= every:
            self._print_report()

    def not_ready_reason(self) -> str | None:
        """Return why the cluster is not followed; None: it is."""
        return self.observer.cache.not_ready_reason or silence_reason(self._statuses())

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return restart_reason(self._statuses())

    def report(self) -> Mapping[str, Any]:
        """Return the report as a document."""
        return report_document(self.observer.report(self._now()))

    def _begin(self, ran: tuple[ObservedPlacement, ...]) -> None:
        self._synced = time.monotonic()
        if self._settings.output == "jsonl":
            self._print([_json(placement_document(each)) for each in ran])
        if self._settings.for_s == 0:
            self.stop_requested.set()  # which prints the summary
        else:
            self._print_report()

    def _count(self, placements: tuple[ObservedPlacement, ...]) -> None:
        for each in placements:
            self.metrics.count_placement(each)
        as_json = self._settings.output == "jsonl"
        self._print([_json(placement_document(each)) if as_json else log_line(each) for each in placements])

    def _print_report(self) -> None:
        self._reported = time.monotonic()
        report = self.observer.report(self._now())
        if self._settings.output == "jsonl":
            self._print([_json(report_document(report))])
        else:
            self._print(["", *render_summary(report).splitlines(), ""])

    def _print(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            self._print_line("".join(f"{each}\n" for each in lines))
        except BrokenPipeError:
            self.stop_requested.set()

    def _statuses(self) -> tuple[WatchStatus, ...]:
        return () if self._watches is None else self._watches.status(time.monotonic())

    def _status(self) -> ObserverStatus:
        """Return the status now, for the metrics."""
        cache = self.observer.cache
        return ObserverStatus(
            table=cache.snapshot,
            ready=self.not_ready_reason() is None,
            watches=self._statuses(),
            pods=len(cache.pods),
            present=self.observer.report(self._now()).now,
        )


def _json(document: Mapping[str, Any]) -> str:
    return orjson.dumps(document).decode()


def listener_of(service: ObserverService, where: tuple[str, int], access: PageAccess | None = None) -> Listener:
    """Return the listener of the pages. Raises ``OSError`` if the address is not available."""
    own = {"/report": json_page(service.report)}
    pages = program_app(service.not_ready_reason, service.metrics.registry, own, service.unhealthy, access)
    return Listener(pages, bind_socket(where), limits=PAGE_LIMITS)
