"""The agent's state machine: inputs in, due work out. It starts no thread and never sleeps.

    ProbeResult, Reading, WakeUp ──run_iteration(now, inputs)──▶ discovery pass, publication ──▶ IterationResult

Time is an argument, and everything slow is outside: ``agent.daemon.threads`` probes the machine and asks the kubelet on
other threads, so that a driver that hangs does not keep the loop from reporting it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from agent.allocation.claims import claimed_percents
from agent.allocation.devices import allocations_from_devices
from agent.allocation.kubelet_facts import kubelet_facts
from agent.allocation.nics import nic_allocations
from agent.allocation.watch import AllocationReport
from agent.daemon.discovery_pass import DiscoveryState, needs_restart, run_discovery_pass
from agent.daemon.metrics import AgentMetrics
from agent.daemon.publication import Publication
from agent.daemon.schedule import NodeSchedule
from agent.daemon.settings import AgentSettings
from agent.daemon.status import AgentStatus
from agent.daemon.usage import published_usage
from agent.publish import Publisher
from agent.snapshot import Snapshot
from gputopo.crd.nodegpus import DeviceAllocation, GpuUsage, KubeletFacts, NicAllocation

TICK_S = 5.0  # the longest time between iterations, so that the liveness probe can detect a loop that hangs
EVENT_PAUSE_S = 5.0  # between passes that driver events cause: a broken GPU reports many in a row
RETRY_S = 10.0  # between passes while NVML fails
FIRST_REPORT_S = (
    5.0  # after a start NodeGpus waits so long for the kubelet: a restart must not report unknown allocations
)
PROBE_TIMEOUT_S = 300.0  # a probe that takes longer hangs in the driver: nvidia-smi alone times out after 60 s

_RATE_LIMITED_REASONS = frozenset({"xid", "lost"})  # the driver may report these many times a second
_NOT_POLLED = AllocationReport(None, "not polled yet")
_log = logging.getLogger("gputopo.agent")


class ProbeResult(NamedTuple):
    """A snapshot of the machine, and how long the probe took."""

    snapshot: Snapshot
    seconds: float


class WakeUp(NamedTuple):
    """A reason to run the next pass at once."""

    reason: str  # "xid", "lost", "hangup", "driver", "file", "allocation"


class Now(NamedTuple):
    """One moment."""

    monotonic: float  # seconds, for intervals
    unix: float  # seconds, for timestamps


class IterationResult(NamedTuple):
    """The next step of the caller of ``run_iteration``."""

    probe: bool  # probe the machine and pass the ``ProbeResult`` in
    next_at: float  # when to run the next iteration without inputs (monotonic)
    exit_reason: str | None  # why this process must exit and be restarted; None: continue


LoopInput = ProbeResult | AllocationReport | WakeUp


class AgentLoop:
    """The agent of one node. ``status`` is the state after the last iteration."""

    def __init__(self, settings: AgentSettings, publisher: Publisher, metrics: AgentMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._schedule = NodeSchedule(settings.node)
        self._publication = Publication(publisher, self._schedule, settings.heartbeat_s, metrics)
        self._state = DiscoveryState()
        self._allocation_report = _NOT_POLLED if settings.socket else AllocationReport(None, "disabled")
        self._first_report_by: float | None = None  # monotonic; None: before the first iteration
        self._kubelet_facts: KubeletFacts | None = None
        self._claims: dict[str, int] = {}  # percent of the memory of a GPU, by UUID
        self._last_pass_at = float("-inf")
        self._next_pass_at = float("-inf")
        self._probing_since: float | None = None
        self._observed_at: datetime | None = None
        self.status = AgentStatus(iterated_at=float("-inf"))
        metrics.register_status(lambda: self.status)

    def run_iteration(self, now: Now, inputs: Iterable[LoopInput]) -> IterationResult:
        """Handle the inputs and do what is due."""
        for each in inputs:
            if isinstance(each, ProbeResult):
                self._handle_probe(now, each)
            elif isinstance(each, AllocationReport):
                self._handle_allocations(now, each)
            else:
                self._handle_wake_up(now, each)
        self._publish(now.monotonic)
        probe = self._probing_since is None and now.monotonic >= self._next_pass_at
        if probe:
            self._probing_since = now.monotonic
            self._next_pass_at = float("inf")
        self.status = self._current_status(now)
        until = min(self._next_pass_at, self._publication.next_due_at(), now.monotonic + TICK_S)
        return IterationResult(probe, until, self._exit_reason(now.monotonic))

    def _publish(self, now: float) -> None:
        published_before = self._publication.load_published(now)
        if published_before is not None:
            self._state = DiscoveryState(published_before=published_before, snapshot=self._state.snapshot)
            self._next_pass_at = float("-inf")
        if self._publication.awaiting_published:
            return
        if self._observed_at is not None and not self._awaits_first_report(now):
            observed_at = self._observed_at.strftime("%Y-%m-%dT%H:%M:%SZ")
            self._publication.set_state(
                observed_at, self._allocations(), self._nic_allocations(), self._kubelet_facts, self._usage(), now
            )
        self._publication.send_due(now)

    def _awaits_first_report(self, now: float) -> bool:
        if self._first_report_by is None:
            self._first_report_by = now + FIRST_REPORT_S
        return self._allocation_report is _NOT_POLLED and now < self._first_report_by

    # -- inputs ---------------------------------------------------------------------------------------------------

    def _handle_probe(self, now: Now, probe_result: ProbeResult) -> None:
        self._probing_since = None
        self._state = run_discovery_pass(self._state, probe_result.snapshot, now.monotonic, self._settings.hold_s)
        good = "nvml" not in self._state.failures
        self._schedule_next_pass(now.monotonic, good=good)
        self._derive_from_kubelet()
        self._metrics.passes.labels("ok" if good else "failed").inc()
        self._metrics.pass_seconds.observe(probe_result.seconds)
        for source in self._state.failures:
            self._metrics.source_failures.labels(source).inc()
        if good:
            self._observed_at = datetime.fromtimestamp(now.unix, UTC)
            assert self._state.topology is not None
            self._publication.set_topology(self._state.topology, now.monotonic, mirror=self._settings.mirror)
        self._log_pass(probe_result)

    def _schedule_next_pass(self, now: float, *, good: bool) -> None:
        """Plan the next pass. A wake-up during the probe has set ``_next_pass_at`` already."""
        interval = (
            self._schedule.first_interval if self._last_pass_at == float("-inf") else self._schedule.next_interval
        )
        wait = interval(self._settings.interval_s)
        self._next_pass_at = min(
            max(self._next_pass_at, now + EVENT_PAUSE_S), now + (wait if good else min(wait, RETRY_S))
        )
        self._last_pass_at = now

    def _handle_allocations(self, now: Now, report: AllocationReport) -> None:
        if report.error != self._allocation_report.error:
            level = logging.INFO if report.error is None else logging.WARNING
            _log.log(level, "podresources", extra={"fields": {"error": report.error}})
        if (error := report.kubelet.config_error) != self._allocation_report.kubelet.config_error:
            level = logging.INFO if error is None else logging.WARNING
            _log.log(level, "kubelet-config", extra={"fields": {"error": error}})
        self._allocation_report = report
        self._derive_from_kubelet()
        known = {gpu.uuid for gpu in self._state.observed.gpus} if self._state.observed is not None else set()
        if known and any(each.gpu not in known for each in self._allocations() or ()):
            self._handle_wake_up(now, WakeUp("allocation"))  # a MIG device that was created since the last pass

    def _handle_wake_up(self, now: Now, wake_up: WakeUp) -> None:
        self._metrics.wakeups.labels(wake_up.reason).inc()
        allowed_at = self._last_pass_at + EVENT_PAUSE_S if wake_up.reason in _RATE_LIMITED_REASONS else now.monotonic
        self._next_pass_at = min(self._next_pass_at, max(now.monotonic, allowed_at))

    def _derive_from_kubelet(self) -> None:
        reading, observed = self._allocation_report.kubelet, self._state.observed
        self._kubelet_facts = None if observed is None else kubelet_facts(reading, observed)
        offered = () if reading.allocatable is None else reading.allocatable.devices
        self._claims = {} if observed is None else claimed_percents(self._allocations(), observed.gpus, offered)

    def _allocations(self) -> tuple[DeviceAllocation, ...] | None:
        if self._allocation_report.held is None or self._state.observed is None:
            return None
        return allocations_from_devices(self._allocation_report.held, self._state.observed.gpus)

    def _nic_allocations(self) -> tuple[NicAllocation, ...] | None:
        report = self._allocation_report
        if report.held is None or self._state.observed is None:
            return None
        return nic_allocations(report.held, self._state.observed.nics, report.physical_functions)

    def _usage(self) -> tuple[GpuUsage, ...] | None:
        observed = self._state.observed
        return None if observed is None else published_usage(self._state.load, self._claims, observed.gpus)

    # -- status ---------------------------------------------------------------------------------------------------

    def _exit_reason(self, now: float) -> str | None:
        grace, since = self._settings.grace_s, self._state.failing_since
        if self._probe_hangs(now):
            return f"the probe of the machine has not ended within {PROBE_TIMEOUT_S:g} s: the driver hangs"
        if since is not None and now - since >= grace and needs_restart(self._state):
            error = self._state.failures["nvml"]
            return f"NVML has failed for {now - since:.0f} s and this process cannot recover: {error}"
        return None

    def _probe_hangs(self, now: float) -> bool:
        return self._probing_since is not None and now - self._probing_since >= PROBE_TIMEOUT_S

    def _unready_reason(self, now: float) -> str | None:
        """Return why the agent is not ready; None: it is ready, or the failure is younger than the grace period."""
        failing, grace = self._state.failing_since, self._settings.grace_s
        if not self._publication.facts_confirmed:
            return (
                f"nothing is published yet: {self._publication.error or self._state.failures.get('nvml') or 'starting'}"
            )
        if failing is not None and now - failing >= grace:
            return f"NVML fails; the published labels stay as they are: {self._state.failures['nvml']}"
        if self._publication.facts_overdue(now, grace):
            return f"a change is not published yet: {self._publication.error}"
        return self._exit_reason(now)

    def _current_status(self, now: Now) -> AgentStatus:
        epoch = now.unix - now.monotonic
        return AgentStatus(
            iterated_at=now.monotonic,
            observed=self._state.observed,
            nvml=self._state.nvml,
            load=self._state.load,
            claims=self._claims,
            failed_calls=self._state.failed_calls,
            published=self._publication.published,
            observed_at=None if self._observed_at is None else self._observed_at.timestamp(),
            failures=self._state.failures,
            good_at={source: epoch + at for source, at in self._state.good_at.items()},
            allocations=self._allocations(),
            podresources_error=self._allocation_report.error or self._publication.allocations_error,
            kept_by_others=self._publication.kept_by_others,
            pending=self._publication.pending,
            unready_reason=self._unready_reason(now.monotonic),
        )

    def _log_pass(self, probe_result: ProbeResult) -> None:
        """Log one line per pass."""
        observed = self._state.observed
        fields: dict[str, object] = {
            "outcome": "failed" if "nvml" in self._state.failures else "ok",
            "duration_s": round(probe_result.seconds, 3),
            "gpus": None if observed is None else len(observed.gpus),
            "usable": None if observed is None else len(observed.usable),
            "islands": None
            if observed is None or observed.islands is None
            else [island.size for island in observed.islands],
            "degraded": None if observed is None else [each.what for each in observed.degraded],
            "kept": dict(self._state.failures),  # sources that failed; their last good facts are used
            "failed_calls": dict(self._state.failed_calls),  # the last good result of each is used where there is one
            "changed": self._publication.facts_pending,
        }
        level = logging.INFO if fields["outcome"] == "ok" else logging.WARNING
        _log.log(level, "pass", extra={"fields": fields})
