"""The agent's state: news in, due work out. One thread turns it; it starts none and never sleeps.

    Probed, Reading, Woken ──turn(now, news)──▶ look, publish, report, announce ──▶ Step (probe again? end? until when?)

Time and everything that takes long is outside: ``agent.daemon.threads`` asks the machine and the kubelet on threads of
their own, so that a driver that hangs does not keep the loop from telling so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from agent.allocation.devices import allocations
from agent.allocation.watch import Reading
from agent.daemon.discovery_pass import View, look, only_a_restart_helps
from agent.daemon.metrics import Metrics
from agent.daemon.publication import Publication
from agent.daemon.schedule import Schedule
from agent.daemon.settings import Settings
from agent.daemon.status import Status
from agent.publish import Publisher
from agent.snapshot import Snapshot
from gputopo.crd.nodegpus import Allocation

TICK_S = 5.0  # the loop turns at least this often, so that a probe of its health can tell it from a hanging one
SETTLE_S = 5.0  # between looks that the driver's events cause: a broken GPU reports many in a row
RETRY_S = 10.0  # between looks while NVML fails
STUCK_S = 300.0  # a look that takes longer hangs in the driver: nvidia-smi alone is given up after 60 s

_STORMS = frozenset({"xid", "lost"})  # reasons that the driver may give many times a second
_log = logging.getLogger("gputopo.agent")


class Probed(NamedTuple):
    """The machine was asked, which took that long."""

    snapshot: Snapshot
    seconds: float


class Woken(NamedTuple):
    """Something happened: look at once."""

    reason: str  # "xid", "lost", "hangup", "driver", "file", "allocation"


class Now(NamedTuple):
    """One moment."""

    monotonic: float  # seconds, for intervals
    unix: float  # seconds, for people


class Step(NamedTuple):
    """What the loop wants."""

    probe: bool  # ask the machine and come back with ``Probed``
    until: float  # come back then, if nothing happens before (monotonic)
    end: str | None  # why this process must end and be started anew; None: go on


News = Probed | Reading | Woken


class Loop:
    """The agent of one node. ``status`` is its state as of the last turn."""

    def __init__(self, settings: Settings, publisher: Publisher, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._schedule = Schedule(settings.node)
        self._publication = Publication(publisher, self._schedule, settings.heartbeat_s, metrics)
        self._view = View()
        self._reading = Reading(None, "not asked" if settings.socket else "switched off")
        self._looked_at = float("-inf")
        self._next_look = float("-inf")
        self._looking_since: float | None = None
        self._observed_at: datetime | None = None
        self.status = Status(turned_at=float("-inf"))
        metrics.expose(lambda: self.status)

    def turn(self, now: Now, news: Iterable[News]) -> Step:
        """Take note of what happened and do what is due."""
        for each in news:
            if isinstance(each, Probed):
                self._look(now, each)
            elif isinstance(each, Reading):
                self._read(now, each)
            else:
                self._wake(now, each)
        self._publish(now.monotonic)
        probe = self._looking_since is None and now.monotonic >= self._next_look
        if probe:
            self._looking_since = now.monotonic
            self._next_look = float("inf")
        self.status = self._status(now)
        until = min(self._next_look, self._publication.due(), now.monotonic + TICK_S)
        return Step(probe, until, self._must_end(now.monotonic))

    def _publish(self, now: float) -> None:
        recalled = self._publication.recall(now)
        if recalled is not None:
            self._view = View(recalled=recalled, snapshot=self._view.snapshot)
            self._next_look = float("-inf")
        if self._publication.recalling:
            return
        if self._observed_at is not None:
            self._publication.tell(self._observed_at.strftime("%Y-%m-%dT%H:%M:%SZ"), self._allocations(), now)
        self._publication.deliver(now)

    # -- news -----------------------------------------------------------------------------------------------------

    def _look(self, now: Now, probed: Probed) -> None:
        self._looking_since = None
        self._view = look(self._view, probed.snapshot, now.monotonic, self._settings.hold_s)
        good = "nvml" not in self._view.failures
        self._plan_next_look(now.monotonic, good=good)
        self._metrics.passes.labels("ok" if good else "failed").inc()
        self._metrics.pass_seconds.observe(probed.seconds)
        for source in self._view.failures:
            self._metrics.source_failures.labels(source).inc()
        if good:
            self._observed_at = datetime.fromtimestamp(now.unix, UTC)
            assert self._view.topology is not None
            self._publication.offer(self._view.topology, now.monotonic, mirror=self._settings.mirror)
        self._log_pass(probed)

    def _plan_next_look(self, now: float, *, good: bool) -> None:
        """Where something woke the loop while it looked, ``_next_look`` is set already."""
        beat = self._schedule.first if self._looked_at == float("-inf") else self._schedule.next
        wait = beat(self._settings.interval_s)
        self._next_look = min(max(self._next_look, now + SETTLE_S), now + (wait if good else min(wait, RETRY_S)))
        self._looked_at = now

    def _read(self, now: Now, reading: Reading) -> None:
        if reading.error != self._reading.error:
            level = logging.INFO if reading.error is None else logging.WARNING
            _log.log(level, "podresources", extra={"fields": {"error": reading.error}})
        self._reading = reading
        known = {gpu.uuid for gpu in self._view.observed.gpus} if self._view.observed is not None else set()
        if known and any(each.gpu not in known for each in self._allocations() or ()):
            self._wake(now, Woken("allocation"))  # a MIG device that was made since the last look

    def _wake(self, now: Now, woken: Woken) -> None:
        self._metrics.wakeups.labels(woken.reason).inc()
        settled = self._looked_at + SETTLE_S if woken.reason in _STORMS else now.monotonic
        self._next_look = min(self._next_look, max(now.monotonic, settled))

    def _allocations(self) -> tuple[Allocation, ...] | None:
        if self._reading.held is None or self._view.observed is None:
            return None
        return allocations(self._reading.held, self._view.observed.gpus)

    # -- what there is to say -------------------------------------------------------------------------------------

    def _must_end(self, now: float) -> str | None:
        grace, since = self._settings.grace_s, self._view.failing_since
        if self._stuck(now):
            return f"a look at the machine has not ended within {STUCK_S:g} s: the driver hangs"
        if since is not None and now - since >= grace and only_a_restart_helps(self._view):
            return f"NVML fails for {now - since:.0f} s, and this process cannot recover: {self._view.failures['nvml']}"
        return None

    def _stuck(self, now: float) -> bool:
        return self._looking_since is not None and now - self._looking_since >= STUCK_S

    def _unready(self, now: float) -> str | None:
        """Why not everything is as it should be, where that lasts."""
        failing, grace = self._view.failing_since, self._settings.grace_s
        if not self._publication.complete:
            return (
                f"nothing is published yet: {self._publication.error or self._view.failures.get('nvml') or 'starting'}"
            )
        if failing is not None and now - failing >= grace:
            return f"NVML fails, and what was published stays: {self._view.failures['nvml']}"
        if self._publication.late(now, grace):
            return f"what changed is not published yet: {self._publication.error}"
        return self._must_end(now)

    def _status(self, now: Now) -> Status:
        epoch = now.unix - now.monotonic
        return Status(
            turned_at=now.monotonic,
            observed=self._view.observed,
            published=self._publication.published,
            observed_at=None if self._observed_at is None else self._observed_at.timestamp(),
            failures=self._view.failures,
            good_at={source: epoch + at for source, at in self._view.good_at.items()},
            allocations=self._allocations(),
            podresources=self._reading.error,
            kept_by_others=self._publication.kept_by_others,
            behind=self._publication.behind,
            unready=self._unready(now.monotonic),
        )

    def _log_pass(self, probed: Probed) -> None:
        """The one line of a look."""
        seen = self._view.observed
        fields: dict[str, object] = {
            "outcome": "failed" if "nvml" in self._view.failures else "ok",
            "duration_s": round(probed.seconds, 3),
            "gpus": None if seen is None else len(seen.gpus),
            "usable": None if seen is None else len(seen.usable),
            "islands": None if seen is None or seen.islands is None else [island.size for island in seen.islands],
            "degraded": None if seen is None else [each.what for each in seen.degraded],
            "kept": dict(self._view.failures),  # sources whose earlier facts stand in
            "changed": self._publication.changed,
        }
        level = logging.INFO if fields["outcome"] == "ok" else logging.WARNING
        _log.log(level, "pass", extra={"fields": fields})
