"""The planner's metrics. To add a metric, add it to ``CATALOGUE``; docs/metrics.md is generated from it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry

from gputopo.crd.reservations import Preemption, ReservationState
from gputopo.process.metrics import BUILD, HistogramHelp, MetricCatalogue, MetricHelp, Sample, cached_samples
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, snapshot_samples, watch_samples
from scheduler_core.evaluation.extension_metrics import EXTENSION_GAUGES, EXTENSION_TALLIES, extension_samples
from scheduler_core.evaluation.extensions import CALLS
from scheduler_core.planner.commit.actions import ReleasePod, WriteStatus
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.status import PlannerStatus
from scheduler_core.policy.limits import LIMITS

# A gang that fits waits a fraction of a second; a gang that waits for capacity, hours.
_WAIT_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 7200, 43200)
_PLAN_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2)
_WRITE_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 10)
PHASES = (
    "refused", "waiting for members", "waiting", "queued", "held", "proposed", "committed", "ungated", "bound",
    "running", "rolling back", "failed", "ended", "elsewhere",
)  # fmt: skip

COUNTERS = {
    "gputopo_planner_writes": MetricHelp(
        ("kind", "outcome"),
        "Writes by kind and outcome: done, conflict (the object had changed), gone (it does not exist), unanswered, "
        "refused, deposed (not sent: another planner leads).",
    ),
    "gputopo_planner_events": MetricHelp(
        ("outcome",), "Events by outcome: written, failed, dropped (too many at once)."
    ),
    "gputopo_planner_rollbacks": MetricHelp((), "Placements that were rolled back because not all members were bound."),
    "gputopo_planner_preemptions": MetricHelp(
        ("outcome",),
        "Preemptions by outcome: dry-run (pods would have been evicted; once for the same pods), over-limit (the limit "
        "of evictions per hour), none (no pod is evicted; once for the same reason, which the log has), planned, "
        "yield (of backfilled pods, for the gang that the capacity is held for), "
        "begun (the first unit is evicted), won (the members of the gang are bound), in-vain "
        "(pods were evicted, and the gang got no places, or was rolled back before it was bound), "
        "stopped (it ended before the first pod was evicted), "
        "stuck (an evicted pod does not end in time; won or "
        "in-vain follows).",
    ),
    "gputopo_planner_preemption_evictions": MetricHelp((), "Pods that were evicted for gangs."),
    "gputopo_planner_preemption_repeated": MetricHelp(
        (),
        "Workloads that were evicted for a gang, and had been evicted for another one within the 24 hours before, "
        "as far as the leader knows.",
    ),
    "gputopo_planner_preemption_lost_gpu_hours": MetricHelp(
        ("outcome",),
        "GPU-hours of work that preemptions lost, as planned: also of units that were spared later. begun: of all "
        "preemptions; won, in-vain: of those with this outcome; dry-run: work that would be lost (the first "
        "result for each gang, once while it waits; a new leader counts it again).",
    ),
    "gputopo_planner_preemption_lost_cost": MetricHelp(
        ("outcome",),
        "Cost of the work that preemptions lost, or would lose, where it is known, in the unit of the nodes' "
        "cost per hour. Outcomes as of `gputopo_planner_preemption_lost_gpu_hours_total`.",
    ),
    "gputopo_planner_preemption_won_gpu_hours": MetricHelp(
        (), "GPU-hours that gangs used on GPUs that they got by preemption, as far as the leader saw it."
    ),
    "gputopo_planner_preemption_won_cost": MetricHelp(
        (),
        "Cost of the GPU-hours that gangs used on GPUs that they got by preemption, where it is known, in the unit of "
        "the nodes' cost per hour.",
    ),
    "gputopo_planner_released": MetricHelp(
        ("reason",),
        "Pods that were released to ordinary scheduling without a place: unplaceable, gate-timeout, pod-rules.",
    ),
}
TIMES = {
    "gang_scheduling_wait_seconds": HistogramHelp(
        ("outcome", "kind"),
        "Time from the creation of a gang's newest member until all members are bound, or until the gang was rolled "
        "back, failed or released; kind: gang, single.",
        _WAIT_SECONDS,
    ),
    "gputopo_planner_plan_seconds": HistogramHelp(
        ("outcome",), "Duration of a plan; outcome: placed, unplaced.", _PLAN_SECONDS
    ),
    "gputopo_planner_write_seconds": HistogramHelp(
        ("kind",), "Time until the API server answers a write.", _WRITE_SECONDS
    ),
}
GAUGES = {
    "gputopo_planner_info": MetricHelp(("version", "python"), "Always 1; versions of the planner and of Python."),
    "gputopo_planner_ready": MetricHelp((), "1 while gangs are planned, by this planner or by the leader."),
    "gputopo_planner_leader": MetricHelp((), "1 while this planner leads."),
    "gputopo_planner_cache_stale": MetricHelp(
        (), "1 while this planner leads and plans nothing: its watches are silent, or do not show its own writes."
    ),
    "gputopo_planner_gangs": MetricHelp(("phase",), "Gangs by phase, planned single pods included."),
    "gputopo_planner_reserved_gpus": MetricHelp((), "GPUs reserved or held for members without a node."),
    # Not by namespace: metrics are served to every pod, and must not name tenants.
    "gputopo_planner_capacity_hold_gpus": MetricHelp((), "GPUs in capacity holds; some may still be in use."),
    "gputopo_planner_capacity_hold_age_seconds": MetricHelp((), "Age of the oldest capacity hold; 0 if there is none."),
    "gputopo_planner_capacity_hold_higher_priority_pods": MetricHelp(
        (), "Pods of a higher priority on the nodes of capacity holds that were not there when the hold began."
    ),
    "gputopo_planner_backfilled_gpus": MetricHelp(
        (), "GPUs of running pods on capacity that is held for another gang. Its sum over time: GPU-hours of backfill."
    ),
    "gputopo_planner_limited_gangs": MetricHelp(
        ("limit",),
        "Gangs and single pods for which their namespace has reached a limit of the policy file: queuedGangs, "
        "gatedPods or startingGangs (they are not planned), heldGpus or maxHoldAge (they hold no capacity).",
    ),
    "gputopo_planner_oldest_gate_age_seconds": MetricHelp(
        (), "Age of the oldest pod with the gate of gputopo; 0 if there is none."
    ),
    "gputopo_planner_gated_pods": MetricHelp((), "Pods with the gate of gputopo."),
    "gputopo_planner_ledger_entries": MetricHelp((), "Reservations in the ledger."),
    "gputopo_planner_extenders": MetricHelp((), "Extenders registered in the ledger."),
}
_WITH_LOST_WORK = frozenset({"begun", "won", "in-vain"})  # outcomes of preemptions; "stopped": no pod was evicted
CATALOGUE = MetricCatalogue(
    COUNTERS, GAUGES | EXTENSION_GAUGES | CLUSTER_GAUGES, EXTENSION_TALLIES | CLUSTER_TALLIES, TIMES
)


class PlannerMetrics:
    """Counters and histograms of events, and gauges from the planner's status."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.writes = CATALOGUE.counter(self.registry, "gputopo_planner_writes")
        self.rollbacks = CATALOGUE.counter(self.registry, "gputopo_planner_rollbacks")
        self.preemptions = CATALOGUE.counter(self.registry, "gputopo_planner_preemptions")
        self.evictions = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_evictions")
        self.repeated_evictions = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_repeated")
        self.lost_gpu_hours = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_lost_gpu_hours")
        self.lost_cost = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_lost_cost")
        self.won_gpu_hours = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_won_gpu_hours")
        self.won_cost = CATALOGUE.counter(self.registry, "gputopo_planner_preemption_won_cost")
        self.released = CATALOGUE.counter(self.registry, "gputopo_planner_released")
        self.events = CATALOGUE.counter(self.registry, "gputopo_planner_events")
        self.wait_seconds = CATALOGUE.histogram(self.registry, "gang_scheduling_wait_seconds")
        self.plan_seconds = CATALOGUE.histogram(self.registry, "gputopo_planner_plan_seconds")
        self.write_seconds = CATALOGUE.histogram(self.registry, "gputopo_planner_write_seconds")
        self._table_samples = cached_samples(snapshot_samples)

    def register_status(self, status: Callable[[], PlannerStatus]) -> None:
        """Read the status at every scrape."""
        CATALOGUE.register_samples(self.registry, lambda: self._samples(status()))

    def count_answer(self, answer: WriteAnswer) -> None:
        """Count the answer to a write."""
        kind = type(answer.write).__name__
        self.writes.labels(kind, answer.outcome.value).inc()
        self.write_seconds.labels(kind).observe(answer.seconds)
        if answer.outcome is WriteOutcome.DONE:
            if isinstance(answer.write, ReleasePod):
                self.released.labels(answer.write.policy).inc()
            elif isinstance(answer.write, WriteStatus) and _is_rollback(answer.write):
                self.rollbacks.inc()

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:
        """Count a preemption that has begun, or ended."""
        self.preemptions.labels(outcome).inc()
        if outcome in _WITH_LOST_WORK:
            self._count_lost_work(outcome, preemption.gpu_hours, preemption.cost)

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Count the work that a gang's preemption would lose. ``cost``: None: unknown."""
        self._count_lost_work("dry-run", gpu_hours, cost)

    def _count_lost_work(self, outcome: str, gpu_hours: float, cost: float | None) -> None:
        self.lost_gpu_hours.labels(outcome).inc(gpu_hours)
        if cost is not None:
            self.lost_cost.labels(outcome).inc(cost)

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Count what gangs have used of GPUs that they got by preemption. ``cost``: None: unknown."""
        self.won_gpu_hours.inc(gpu_hours)
        self.won_cost.inc(cost or 0.0)

    def count_eviction(self, *, again: bool) -> None:
        """Count an evicted pod. ``again``: its workload was evicted not long ago, and it is the first pod of it."""
        self.evictions.inc()
        if again:
            self.repeated_evictions.inc()

    def count_wait(self, outcome: str, seconds: float, *, alone: bool) -> None:
        """Record how long a gang waited."""
        self.wait_seconds.labels(outcome, "single" if alone else "gang").observe(seconds)

    def count_plan(self, seconds: float, *, placed: bool) -> None:
        """Record the duration of a plan; on any thread."""
        self.plan_seconds.labels("placed" if placed else "unplaced").observe(seconds)

    def count_event(self, outcome: str) -> None:
        """Count an Event by its outcome; on any thread."""
        self.events.labels(outcome).inc()

    def _samples(self, status: PlannerStatus) -> Iterator[Sample]:
        yield from status_samples(status, time.time())
        yield from extension_samples(dict(CALLS.failures), frozenset(CALLS.disabled))
        yield from self._table_samples(status.table)


def _is_rollback(action: WriteStatus) -> bool:
    """Return True if this write starts a rollback: later writes may only change its reason."""
    return ReservationState.ROLLING_BACK is action.status.state is not action.reservation.status.state


def status_samples(status: PlannerStatus, now: float) -> Iterator[Sample]:
    """Yield the samples of a status: name, label values, value. Pure."""
    yield "gputopo_planner_info", BUILD, 1
    yield "gputopo_planner_ready", (), status.not_ready_reason is None
    yield "gputopo_planner_leader", (), status.is_leader
    yield "gputopo_planner_cache_stale", (), status.is_stale
    phases = Counter(each.phase for each in status.gangs)
    yield from (("gputopo_planner_gangs", (phase,), phases[phase]) for phase in PHASES)
    yield "gputopo_planner_reserved_gpus", (), status.held_gpus
    yield "gputopo_planner_capacity_hold_gpus", (), sum(each.gpus for each in status.holds)
    age = max((now - each.since for each in status.holds), default=0.0)
    yield "gputopo_planner_capacity_hold_age_seconds", (), age
    yield "gputopo_planner_capacity_hold_higher_priority_pods", (), sum(each.users for each in status.holds)
    yield "gputopo_planner_backfilled_gpus", (), status.backfilled_gpus
    limits = Counter(each.limit for each in status.gangs)
    yield from (("gputopo_planner_limited_gangs", (limit,), limits[limit]) for limit in LIMITS)
    yield "gputopo_planner_oldest_gate_age_seconds", (), max((now - each for each in status.gated), default=0.0)
    yield "gputopo_planner_gated_pods", (), len(status.gated)
    yield "gputopo_planner_ledger_entries", (), status.entries
    yield "gputopo_planner_extenders", (), status.extenders
    yield "gputopo_gpu_pods", (), status.pods
    yield from watch_samples(status.watches)
