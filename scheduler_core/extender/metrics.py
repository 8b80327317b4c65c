"""The extender's metrics. What is known comes from a ``Status`` at the moment of a scrape.

``CATALOGUE`` goes into docs/metrics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.crd.reservations import EntryPhase, ExtenderAck
from gputopo.labels.reasons import Reason
from gputopo.process.metrics import BUILD, HistogramHelp, MetricCatalogue, MetricHelp, Sample, cached_samples
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, table_samples, watch_samples
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.reservations import ReservationIndex
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.evaluation.refusals import distinct_reasons
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.request.device_request import WHOLE

RESERVATION_GAUGES = {
    "gputopo_reserved_gpus": MetricHelp(
        ("phase",),
        "Whole GPUs that planners keep for pods that are not on their nodes yet: held (for a gang that does not fit "
        "yet), proposed, committed.",
    ),
    "gputopo_ledger_registered": MetricHelp(
        ("ledger",), "1 where the ledger shows this extender; calls get 503 where one does not."
    ),
    "gputopo_vouching_lag": MetricHelp(
        ("ledger",), "Generations of a ledger with proposals that this extender has not vouched for yet."
    ),
    "gputopo_proposals_blocked": MetricHelp(
        ("ledger",), "Proposals that this extender does not vouch for as it is now."
    ),
}


def reservation_samples(reserved: ReservationIndex, me: str | None) -> Iterator[Sample]:
    """``me``: by which name the ledgers know this extender; None: they do not."""
    kept = Counter[EntryPhase]()
    for each in reserved.active.values():
        kept[each.entry.phase] += sum(room.gpus for room in each.holdings if room.resource == WHOLE)
        waiting = (seat for seat in each.seats if reserved.nodes_for(seat.uid))
        kept[each.entry.phase] += sum(dict(seat.gpus).get(WHOLE, 0) for seat in waiting)
    for phase in EntryPhase:
        yield "gputopo_reserved_gpus", (phase.value.lower(),), kept[phase]
    if me is None:
        return
    for name, ledger in reserved.ledgers.items():
        proposed = {entry.uid for entry in ledger.spec.entries if entry.phase is EntryPhase.PROPOSED}
        said = ledger.extenders.get(me, ExtenderAck())
        yield "gputopo_ledger_registered", (name,), me in ledger.extenders
        yield "gputopo_vouching_lag", (name,), max(0, ledger.generation - said.generation) if proposed else 0
        yield "gputopo_proposals_blocked", (name,), len(proposed.intersection(said.blocked))


UNSPECIFIED = "unspecified"
_REASONS = {reason.value: reason for reason in Reason}
# A call takes a fraction of a millisecond; from 50 ms on it is slow, at 5 s kube-scheduler gives up.
_CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


COUNTERS = {
    "ai_scheduler_attempts": MetricHelp(
        ("workload_type", "result"),
        "Filter calls by what the pod says it is (training, inference, batch, unspecified) and what came of it: "
        "passed, refused by every node, malformed.",
    ),
    "gputopo_extender_calls": MetricHelp(("verb", "status"), "Calls by verb and HTTP status."),
    "gputopo_extender_slow_calls": MetricHelp(("verb",), "Calls that took more than 50 ms; the log has their phases."),
    "gputopo_extender_surprises": MetricHelp(("verb",), "Calls that failed by an error of the extender's own."),
    "gputopo_rejections": MetricHelp(
        ("reason",),
        "Filter calls that no node passed, by each reason that one of the nodes was refused for.",
    ),
    "gputopo_predictions": MetricHelp(
        ("outcome",),
        "Pods whose GPUs the kubelet has named since, by whether these were what was predicted: hit, miss, ambiguous "
        "(one of several that were predicted), unpredicted (nothing could be said).",
    ),
    "gputopo_promises_broken": MetricHelp(("reason",), "Pods whose required shape the GPUs they got do not have."),
    "gputopo_events_written": MetricHelp(
        ("outcome",), "Events for such pods: written, failed, dropped (too many at once)."
    ),
    "gputopo_decisions_written": MetricHelp(
        ("outcome",), "Decisions for the file: written, failed, dropped (too many)."
    ),
}
TIMES = {
    "gputopo_extender_call_seconds": HistogramHelp(
        ("verb",), "Duration of a call, from its head to its answer.", _CALL_SECONDS
    )
}
TALLIES = {
    "gputopo_extender_connections_ended": MetricHelp(
        ("why",),
        "Connections of the verbs ended by the extender: capacity (too many), slow (a request that does not arrive in "
        "time), head (too large), stuck (an answer that is not read).",
    ),
}
GAUGES = {
    "gputopo_extender_info": MetricHelp(("version", "python"), "Always 1; what this extender is."),
    "gputopo_extender_ready": MetricHelp((), "1 where calls are answered, 0 where they get 503."),
    "gputopo_assumptions": MetricHelp((), "Pods that are taken to be on the one node that they were answered."),
    "gputopo_policy_bad": MetricHelp(
        (), "1 where the policy file was changed to what cannot be read: the old one holds."
    ),
    "gputopo_doubts": MetricHelp((), "Pods that may be on the way to any of several nodes."),
}
CATALOGUE = MetricCatalogue(COUNTERS, GAUGES | CLUSTER_GAUGES | RESERVATION_GAUGES, TALLIES | CLUSTER_TALLIES, TIMES)


class ExtenderStatus(NamedTuple):
    """How the extender is, and what it knows, at one moment."""

    table: Snapshot
    ready: bool
    watches: tuple[WatchStatus, ...] = ()
    pods: int = 0
    assumed_pods: int = 0
    in_flight_pods: int = 0
    connections_ended: Mapping[str, int] = {}  # read only
    policy_bad: bool = False
    reserved: ReservationIndex | None = None  # None: it does not look at reservations
    identity: str | None = None  # as ledgers know it


class ExtenderMetrics:
    """Counters that are bumped where things happen, and what a status says."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(CATALOGUE.counter, self.registry)
        self.attempts = counter("ai_scheduler_attempts")
        self.calls = counter("gputopo_extender_calls")
        self.slow_calls = counter("gputopo_extender_slow_calls")
        self.internal_errors = counter("gputopo_extender_surprises")
        self.rejections = counter("gputopo_rejections")
        self.predictions = counter("gputopo_predictions")
        self.shapes_violated = counter("gputopo_promises_broken")
        self.events = counter("gputopo_events_written")
        self.decisions = counter("gputopo_decisions_written")
        self.call_seconds = CATALOGUE.histogram(self.registry, "gputopo_extender_call_seconds")

    def count_rejections(self, failed: Mapping[str, str]) -> None:
        """No node passed; ``failed`` says why not."""
        for text in distinct_reasons(failed):
            reason = _REASONS.get(text, Reason.MALFORMED)  # the only one whose text varies
            self.rejections.labels(reason.name.lower()).inc()
            if reason is Reason.MALFORMED:
                self.attempts.labels(UNSPECIFIED, "malformed").inc()

    def count_decision(self, record: DecisionRecord) -> None:
        """A pod whose request could be understood was decided about."""
        workload = record.request.profile.constraints.workload
        kind = UNSPECIFIED if workload is None else workload.value
        self.attempts.labels(kind, "passed" if record.answer.nodes else "refused").inc()

    def count_prediction(self, found: PredictionCheck) -> None:
        """The kubelet has named a pod's GPUs."""
        self.predictions.labels("unpredicted" if found.check is None else found.check.value).inc()
        if found.violated is not None:
            self.shapes_violated.labels(found.violated.name.lower()).inc()

    def count_event(self, outcome: str) -> None:
        """An Event was written, or was not."""
        self.events.labels(outcome).inc()

    def count_file_write(self, outcome: str) -> None:
        """A decision was written to the file, or was not."""
        self.decisions.labels(outcome).inc()

    def register_status(self, status: Callable[[], ExtenderStatus]) -> None:
        """Add what a status says, which is asked for at every scrape."""
        of_table_now = cached_samples(table_samples)

        def told() -> Iterator[Sample]:
            now = status()
            yield from status_samples(now)
            yield from of_table_now(now.table)

        CATALOGUE.register_samples(self.registry, told)


def status_samples(status: ExtenderStatus) -> Iterator[Sample]:
    """Every sample of a status but those of its table. Pure."""
    yield "gputopo_extender_info", BUILD, 1
    yield "gputopo_extender_ready", (), status.ready
    yield from watch_samples(status.watches)
    yield "gputopo_gpu_pods", (), status.pods
    yield "gputopo_assumptions", (), status.assumed_pods
    yield "gputopo_doubts", (), status.in_flight_pods
    yield "gputopo_policy_bad", (), status.policy_bad
    if status.reserved is not None:
        yield from reservation_samples(status.reserved, status.identity)
    for why, times in sorted(status.connections_ended.items()):
        yield "gputopo_extender_connections_ended", (why,), times
