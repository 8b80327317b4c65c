"""The state of ``gputopo ui`` on the event loop: the watches' view of the cluster, its overview, and its history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gputopo.recent_results import ResultExpiry
from scheduler_core.cache.events import Batch, WatchStatus
from scheduler_core.cache.watch import WatchErrorLog, restart_reason, silence_reason
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.profiles import BUILT_IN, Policies
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import WatchSet
from scheduler_core.ui.history import History
from scheduler_core.ui.model import NodeRow, Overview
from scheduler_core.ui.overview import RowCache, overview
from scheduler_core.ui.overview_page import MAX_ROWS, PageQuery, clock, sections, summary_part
from scheduler_core.ui.rows_html import ANYONE, node_line, row_id
from scheduler_core.ui.streams import Streams

_POOL = ""  # no ledger has this name: all ledgers count
_IDLE_S = 10.0  # without changes the page is made again after this time, because ages are shown
_MAX_ERRORS = 3  # of watches, on the page
_MAX_CHANGED = 300  # rows in one message; after more changes the page is fetched again


class UiService:
    """The cluster as the pages show it. All methods are called on the thread of the loop."""

    def __init__(
        self,
        policies: Policies = BUILT_IN,
        clock: Callable[[], float] | None = None,
        print_line: Callable[[str], None] | None = None,
    ) -> None:
        """``print_line``: prints that watches fail, and that none fails any more; None: each error is logged."""
        self.policies = policies
        self.view = PlannerView(policies.node_policy, _POOL, "", heartbeats=True)
        self.history = History()
        self.streams = Streams()
        self.stop_requested = asyncio.Event()
        self.troubles: tuple[str, ...] = ()  # of a file: what could not be read
        self.notice = ""  # of a file: its name
        self.recorded = ""  # of a cluster that was listed once: when, in words; "": the cluster is watched
        self.version = 0  # of the overview
        self._now = clock or SlewedClock()
        self._cache = RowCache()
        self._rows: list[NodeRow] = []
        self._overview: Overview | None = None
        self._is_changed = True
        self._namespaces: frozenset[str] | None = None  # None: the cluster has changed since
        self._watches: WatchSet | None = None
        self._readers, self._held = 0, list[Batch[Any]]()  # of the view on other threads; what came meanwhile
        self._is_update_due = False  # a tick came while there were readers
        self._error: Exception | None = None
        self._watch_errors = WatchErrorLog()
        self._print_line, self._was_failing = print_line, False
        self._expiry = ResultExpiry()

    @property
    def overview(self) -> Overview:
        """Return the cluster as of the last tick."""
        if self._overview is None:
            self._update()
        assert self._overview is not None
        return self._overview

    def row(self, name: str) -> NodeRow | None:
        """Return the row of a node."""
        return next((row for row in self._rows if row.name == name), None)

    def namespaces(self) -> frozenset[str]:
        """Return the namespaces that any page may name: of the overview, and of changes that it does not show yet."""
        found = self.overview
        if self._namespaces is None:
            names = {pod.occupant.namespace for pod in self.view.cache.pods.values()}
            names |= {pod.namespace for row in self._rows for pod in row.pods}
            names |= {gang.name.namespace for gang in self.view.gang_members.all_gangs()}
            names |= {each.reservation.partition("/")[0] for each in found.reserved}
            for each in found.preemptions:
                names |= {each.namespace, *(unit.partition("/")[0] for unit in each.units)}
            names |= {each.entry.namespace for each in self.view.cache.reservations.active.values()}
            held = (each.spec.backfill for each in self.view.reservations.values())  # its holder may be deleted
            names |= {each.gang.partition("/")[0] for each in held if each is not None}
            names |= {each.namespace for each in self.history.changes if each.namespace is not None}
            self._namespaces = frozenset(names)
        return self._namespaces

    @contextmanager
    def running_watches(self, watches: WatchSet) -> Iterator[None]:
        """Run the watches. Raises the first error of a batch that was applied after a report, at the end."""
        self._watches = watches
        watches.start()
        try:
            yield
        finally:
            self.streams.close()
            watches.stop()
        if self._error is not None:
            raise self._error

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Keep the view as it is while another thread reads it: batches are applied afterwards."""
        self.view.cache.snapshot  # noqa: B018  computed now, not by two threads at once
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._catch_up()

    def _catch_up(self) -> None:
        """Do what waited for readers, before the next one starts. An error ends the daemon, not the request."""
        held, self._held = self._held, []
        works: list[Callable[[], None]] = [partial(self.apply_batch, batch) for batch in held]
        if self._is_update_due:
            works.append(self._refresh)
        for work in works:
            try:
                work()
            except Exception as error:  # noqa: BLE001  raised by ``running_watches``
                self._error = self._error or error
                self.stop_requested.set()

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply a batch of a watch."""
        if self._readers:
            self._held.append(batch)
            return
        self.view.apply_batch(batch, self._now())
        self._is_changed, self._namespaces = True, None

    def tick(self) -> None:
        """Make the overview again if something has changed, and send the changes to the viewers."""
        self._report_errors()
        if self.stop_requested.is_set():
            self.streams.close()
        if self._readers:
            self._is_update_due = True
        else:
            self._refresh()
        self.streams.wake()

    def now(self) -> float:
        """Return the time that ages are computed from: seconds since 1970."""
        return self._now()

    def not_ready_reason(self) -> str | None:
        """Return why the cluster is not shown yet; None: it is."""
        return self.view.cache.not_ready_reason or silence_reason(self._statuses())

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return restart_reason(self._statuses())

    def _refresh(self) -> None:
        self._is_update_due = False
        self.view.cache.advance_time(self._now())
        self._expiry.tick(time.monotonic(), self.view.cache.snapshot.states_in_use)
        idle = self._overview is not None and self._now() - self._overview.at >= _IDLE_S
        if self._is_changed or idle:
            self._update()

    def _update(self) -> None:
        self._is_changed, self._namespaces = False, None
        before, now = self._rows, self._now()
        self._rows = self._cache.rows(self.view, now)
        self._overview = overview(self.view, self._rows, now, self._troubles(), self.notice)
        if not self.recorded and (self.view.cache.synced or self._watches is None):
            self.history.add(self._overview, self._rows)
        self.version += 1
        if self.streams.open:
            self.streams.send(self._changed_parts(before))

    def _changed_parts(self, before: Sequence[NodeRow]) -> dict[str, str] | None:
        """Return the changed parts of the unfiltered page, by element id; None: it must be fetched again."""
        found = self.overview
        if len(before) != len(self._rows) or len(self._rows) > MAX_ROWS or found.troubles:
            return None
        changed = [new for old, new in zip(before, self._rows, strict=True) if old is not new]
        names = all(old.name == new.name for old, new in zip(before, self._rows, strict=True))
        if not names or len(changed) > _MAX_CHANGED:
            return None
        parts = {"summary": summary_part(found, self._rows, PageQuery()), **sections(found, self.history, ANYONE)}
        return {**parts, **{row_id(row.name): node_line(row) for row in changed}}

    def _troubles(self) -> list[str]:
        if self._watches is None:
            return list(self.troubles)
        failed, first = self._failed_watches(), self.not_ready_reason()
        unavailable = [each for each in failed if each.is_unavailable]
        if len(unavailable) > 1:
            first = unavailable_text(unavailable, self._now())
            failed = [each for each in failed if not each.is_unavailable]
        errors = [f"{each.kind}: {each.error}" for each in failed[:_MAX_ERRORS]]
        more = len(failed) - len(errors)
        return [*([first] if first else []), *errors, *([f"{more} more kinds cannot be read"] if more > 0 else [])]

    def _report_errors(self) -> None:
        if self._print_line is None:
            self._watch_errors.log_errors(self._statuses())
            return
        is_failing = bool(self._failed_watches())
        if is_failing != self._was_failing:
            self._was_failing = is_failing
            self._print_line(f"gputopo ui: {self._troubles()[0] if is_failing else 'the cluster is read again'}")

    def _failed_watches(self) -> list[WatchStatus]:
        """Return the watches with errors. A kind that the API server does not serve has no objects."""
        return [each for each in self._statuses() if each.error and each.served]

    def _statuses(self) -> tuple[WatchStatus, ...]:
        return () if self._watches is None else self._watches.status(time.monotonic())


def unavailable_text(watches: Sequence[WatchStatus], now: float) -> str:
    """Return since when the API server cannot be read. ``watches``: one or more; ``now``: seconds since 1970."""
    ages = [each.last_event_age_s for each in watches if each.last_event_age_s is not None]
    error = watches[0].error
    if not ages:
        return f"The API server cannot be read: {error}"
    since = clock(now - min(ages))
    return f"The API server cannot be read since {since} UTC; the page shows the cluster as it was then. {error}"
