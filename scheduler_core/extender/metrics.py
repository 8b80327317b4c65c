"""The extender's metrics. Gauges come from an ``ExtenderStatus`` at each scrape.

To add a metric, add it to ``CATALOGUE``; docs/metrics.md is generated from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.crd.reservations import EntryPhase, ExtenderAck
from gputopo.labels.reasons import Reason
from gputopo.process.metrics import BUILD, HistogramHelp, MetricCatalogue, MetricHelp, Sample
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, snapshot_samples, watch_samples
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.reservations import ReservationIndex
from scheduler_core.evaluation.extension_metrics import EXTENSION_GAUGES, EXTENSION_TALLIES, extension_samples
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.evaluation.rejections import distinct_reasons
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.extender.victims import PreemptionResult
from scheduler_core.request.device_request import WHOLE

RESERVATION_GAUGES = {
    "gputopo_reserved_gpus": MetricHelp(
        ("phase",),
        "Whole GPUs reserved by planners for pods that are not on their nodes yet: held (for a gang that does not fit "
        "yet), proposed, committed.",
    ),
    "gputopo_ledger_registered": MetricHelp(
        ("ledger",), "1 while the ledger shows this extender; without it, calls get 503."
    ),
    "gputopo_ledger_ack_lag": MetricHelp(
        ("ledger",), "Generations of a ledger with proposals that this extender has not acknowledged yet."
    ),
    "gputopo_proposals_blocked": MetricHelp(("ledger",), "Proposals that this extender cannot acknowledge now."),
}


def reservation_samples(reservations: ReservationIndex, identity: str | None) -> Iterator[Sample]:
    """Return the samples of reservations. ``identity``: of this extender in ledgers; None if it does not register."""
    reserved = Counter[EntryPhase]()
    for each in reservations.active.values():
        reserved[each.entry.phase] += sum(hold.gpus for hold in each.holdings if hold.resource == WHOLE)
        waiting = (seat for seat in each.seats if reservations.nodes_for(seat.uid))
        reserved[each.entry.phase] += sum(dict(seat.gpus).get(WHOLE, 0) for seat in waiting)
    for phase in EntryPhase:
        yield "gputopo_reserved_gpus", (phase.value.lower(),), reserved[phase]
    if identity is None:
        return
    for name, ledger in reservations.ledgers.items():
        proposed = {entry.uid for entry in ledger.spec.entries if entry.phase is EntryPhase.PROPOSED}
        ack = ledger.extenders.get(identity, ExtenderAck())
        yield "gputopo_ledger_registered", (name,), identity in ledger.extenders
        yield "gputopo_ledger_ack_lag", (name,), max(0, ledger.generation - ack.generation) if proposed else 0
        yield "gputopo_proposals_blocked", (name,), len(proposed.intersection(ack.blocked))


UNSPECIFIED = "unspecified"
_REASONS = {reason.value: reason for reason in Reason}
# A call takes a fraction of a millisecond; calls over 50 ms are slow; kube-scheduler times out after 5 s at most.
_CALL_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


COUNTERS = {
    "ai_scheduler_attempts": MetricHelp(
        ("workload_type", "result"),
        "Filter calls by the workload type of the pod (training, inference, batch, unspecified) and result: passed, "
        "refused (rejected by every node), malformed.",
    ),
    "gputopo_extender_calls": MetricHelp(("verb", "status"), "Calls by verb and HTTP status."),
    "gputopo_extender_slow_calls": MetricHelp(("verb",), "Calls over 50 ms; the log has their phases."),
    "gputopo_extender_internal_errors": MetricHelp(("verb",), "Calls that failed by an internal error."),
    "gputopo_rejections": MetricHelp(
        ("reason",),
        "Filter calls without a suitable node, by each reason for which nodes were rejected.",
    ),
    "gputopo_preemption_nodes": MetricHelp(
        ("outcome",),
        "Nodes that kube-scheduler's preemption offered: kept, or the cause for which the node was dropped: the "
        "reason for which the pod would not fit without the victims, no_victims, unknown_victim, other_node, "
        "part_of_gang, protected (by the policy), unsettled, out_of_time.",
    ),
    "gputopo_predictions": MetricHelp(
        ("outcome",),
        "Pods by the comparison of the predicted GPUs with the GPUs that the kubelet allocated: hit, miss, ambiguous "
        "(one of several predictions), unpredicted (no prediction was possible).",
    ),
    "gputopo_required_shapes_violated": MetricHelp(("reason",), "Pods whose GPUs violate their required shape."),
    "gputopo_events_written": MetricHelp(
        ("outcome",),
        "Events on pods whose GPUs violate their required shape: written, failed, dropped (too many at once).",
    ),
    "gputopo_decisions_written": MetricHelp(
        ("outcome",), "Decisions for the decisions file: written, failed, dropped (too many at once)."
    ),
}
TIMES = {
    "gputopo_extender_call_duration_seconds": HistogramHelp(
        ("verb",), "Duration of a call, from its headers to its answer.", _CALL_BUCKETS
    )
}
TALLIES = {
    "gputopo_extender_connections_ended": MetricHelp(
        ("reason",),
        "Connections of kube-scheduler's listener closed by the extender: capacity (too many), slow (a request did not "
        "arrive in time), head (headers too large), stuck (the peer did not read its answer), "
        "client (its certificate has another name than --client-name).",
    ),
}
GAUGES = {
    "gputopo_extender_info": MetricHelp(("version", "python"), "Always 1; version and Python of this extender."),
    "gputopo_extender_ready": MetricHelp((), "1 while calls are answered, 0 while they get 503."),
    "gputopo_assumed_pods": MetricHelp((), "Assumed pods with one possible node, which no watch has confirmed yet."),
    "gputopo_policy_invalid": MetricHelp(
        (), "1 after an invalid change of the policy file: the previous policy stays in force."
    ),
    "gputopo_in_flight_pods": MetricHelp((), "Assumed pods that may be on any of several nodes."),
}
CATALOGUE = MetricCatalogue(
    COUNTERS,
    GAUGES | EXTENSION_GAUGES | CLUSTER_GAUGES | RESERVATION_GAUGES,
    TALLIES | EXTENSION_TALLIES | CLUSTER_TALLIES,
    TIMES,
)


class ExtenderStatus(NamedTuple):
    """The state of the extender at one moment."""

    ready: bool
    watches: tuple[WatchStatus, ...] = ()
    pods: int = 0
    assumed_pods: int = 0
    in_flight_pods: int = 0
    connections_ended: Mapping[str, int] = {}  # by reason
    policy_invalid: bool = False
    reservations: ReservationIndex | None = None  # None: --reservations off
    identity: str | None = None  # in ledgers
    extension_failures: Mapping[tuple[str, str, str], int] = {}  # by group, name and outcome
    extensions_disabled: frozenset[tuple[str, str]] = frozenset()  # group and name


class ExtenderMetrics:
    """The counters, and the gauges of a status and of a snapshot, which may be of slightly different moments."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(CATALOGUE.counter, self.registry)
        self.attempts = counter("ai_scheduler_attempts")
        self.calls = counter("gputopo_extender_calls")
        self.slow_calls = counter("gputopo_extender_slow_calls")
        self.internal_errors = counter("gputopo_extender_internal_errors")
        self.rejections = counter("gputopo_rejections")
        self.preemption_nodes = counter("gputopo_preemption_nodes")
        self.predictions = counter("gputopo_predictions")
        self.shapes_violated = counter("gputopo_required_shapes_violated")
        self.events = counter("gputopo_events_written")
        self.decisions = counter("gputopo_decisions_written")
        self.call_duration = CATALOGUE.histogram(self.registry, "gputopo_extender_call_duration_seconds")
        # Generation and samples of the snapshot whose samples are shown: one value, because scrapes have threads.
        self._of_snapshot: tuple[int | None, tuple[Sample, ...]] = (None, ())

    def count_rejections(self, rejected: Mapping[str, str]) -> None:
        """Count a pod without a suitable node. ``rejected``: reason by node."""
        for text in distinct_reasons(rejected):
            reason = _REASONS.get(text, Reason.MALFORMED)  # the only reason with a variable text
            self.rejections.labels(reason.name.lower()).inc()
            if reason is Reason.MALFORMED:
                self.attempts.labels(UNSPECIFIED, "malformed").inc()

    def count_preemption(self, result: PreemptionResult) -> None:
        """Count the nodes that kube-scheduler's preemption offered."""
        self.preemption_nodes.labels("kept").inc(len(result.kept))
        for cause, count in Counter(result.dropped.values()).items():
            self.preemption_nodes.labels(cause.name.lower()).inc(count)
        for text, count in Counter(result.rejected.values()).items():
            self.preemption_nodes.labels(_REASONS.get(text, Reason.MALFORMED).name.lower()).inc(count)

    def count_decision(self, record: DecisionRecord) -> None:
        """Count a decision about a pod with a valid request."""
        workload = record.request.profile.constraints.workload
        kind = UNSPECIFIED if workload is None else workload.value
        self.attempts.labels(kind, "passed" if record.answer.nodes else "refused").inc()

    def count_prediction(self, found: PredictionCheck) -> None:
        """Count a pod whose GPUs the kubelet has reported."""
        self.predictions.labels("unpredicted" if found.check is None else found.check.value).inc()
        if found.violated is not None:
            self.shapes_violated.labels(found.violated.name.lower()).inc()

    def count_event(self, outcome: str) -> None:
        """Count an Event by outcome."""
        self.events.labels(outcome).inc()

    def count_file_write(self, outcome: str) -> None:
        """Count a decision for the decisions file by outcome."""
        self.decisions.labels(outcome).inc()

    def update_snapshot_samples(self, snapshot: ClusterSnapshot, pause: Callable[[], None] = lambda: None) -> None:
        """Compute the gauges of the snapshot, which scrapes show until the next update. For any thread.

        ``pause``: as of ``snapshot_samples``.
        """
        if snapshot.generation != self._of_snapshot[0]:
            self._of_snapshot = snapshot.generation, tuple(snapshot_samples(snapshot, pause))

    def register_status(self, status: Callable[[], ExtenderStatus]) -> None:
        """Register the samples of a status; ``status`` is called at every scrape."""

        def samples() -> Iterator[Sample]:
            yield from status_samples(status())
            yield from self._of_snapshot[1]

        CATALOGUE.register_samples(self.registry, samples)


def status_samples(status: ExtenderStatus) -> Iterator[Sample]:
    """Return the samples of a status. Pure."""
    yield "gputopo_extender_info", BUILD, 1
    yield "gputopo_extender_ready", (), status.ready
    yield from watch_samples(status.watches)
    yield "gputopo_gpu_pods", (), status.pods
    yield "gputopo_assumed_pods", (), status.assumed_pods
    yield "gputopo_in_flight_pods", (), status.in_flight_pods
    yield "gputopo_policy_invalid", (), status.policy_invalid
    yield from extension_samples(status.extension_failures, status.extensions_disabled)
    if status.reservations is not None:
        yield from reservation_samples(status.reservations, status.identity)
    for reason, count in sorted(status.connections_ended.items()):
        yield "gputopo_extender_connections_ended", (reason,), count
