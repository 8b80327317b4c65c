"""The extender's metrics. What is known comes from a ``Status`` at the moment of a scrape.

``CATALOGUE`` goes into docs/metrics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gputopo.crd.reservations import Phase, Vouching
from gputopo.labels.reasons import Reason
from gputopo.process.metrics import BUILD, About, Catalogue, Sample, Times, once_each
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.metrics import CLUSTER_GAUGES, CLUSTER_TALLIES, of_table, of_watches
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.cache.reservations import Reserved
from scheduler_core.evaluation.prediction_check import Settled
from scheduler_core.evaluation.refusals import reasons
from scheduler_core.extender.extender import Record
from scheduler_core.request.device_request import WHOLE

RESERVATION_GAUGES = {
    "gputopo_reserved_gpus": About(
        ("phase",),
        "Whole GPUs that planners keep for pods that are not on their nodes yet: held (for a gang that does not fit "
        "yet), proposed, committed.",
    ),
    "gputopo_ledger_registered": About(
        ("ledger",), "1 where the ledger shows this extender; calls get 503 where one does not."
    ),
    "gputopo_vouching_lag": About(
        ("ledger",), "Generations of a ledger with proposals that this extender has not vouched for yet."
    ),
    "gputopo_proposals_blocked": About(("ledger",), "Proposals that this extender does not vouch for as it is now."),
}


def of_reservations(reserved: Reserved, me: str | None) -> Iterator[Sample]:
    """``me``: by which name the ledgers know this extender; None: they do not."""
    kept = Counter[Phase]()
    for each in reserved.counting.values():
        kept[each.entry.phase] += sum(room.gpus for room in each.held if room.resource == WHOLE)
        waiting = (seat for seat in each.seats if reserved.places(seat.uid))
        kept[each.entry.phase] += sum(dict(seat.gpus).get(WHOLE, 0) for seat in waiting)
    for phase in Phase:
        yield "gputopo_reserved_gpus", (phase.value.lower(),), kept[phase]
    if me is None:
        return
    for name, ledger in reserved.ledgers.items():
        proposed = {entry.uid for entry in ledger.spec.entries if entry.phase is Phase.PROPOSED}
        said = ledger.extenders.get(me, Vouching())
        yield "gputopo_ledger_registered", (name,), me in ledger.extenders
        yield "gputopo_vouching_lag", (name,), max(0, ledger.generation - said.generation) if proposed else 0
        yield "gputopo_proposals_blocked", (name,), len(proposed.intersection(said.blocked))


UNSPECIFIED = "unspecified"
_REASONS = {reason.value: reason for reason in Reason}
# A call takes a fraction of a millisecond; from 50 ms on it is slow, at 5 s kube-scheduler gives up.
_CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


COUNTERS = {
    "ai_scheduler_attempts": About(
        ("workload_type", "result"),
        "Filter calls by what the pod says it is (training, inference, batch, unspecified) and what came of it: "
        "passed, refused by every node, malformed.",
    ),
    "gputopo_extender_calls": About(("verb", "status"), "Calls by verb and HTTP status."),
    "gputopo_extender_slow_calls": About(("verb",), "Calls that took more than 50 ms; the log has their phases."),
    "gputopo_extender_surprises": About(("verb",), "Calls that failed by an error of the extender's own."),
    "gputopo_rejections": About(
        ("reason",),
        "Filter calls that no node passed, by each reason that one of the nodes was refused for.",
    ),
    "gputopo_predictions": About(
        ("outcome",),
        "Pods whose GPUs the kubelet has named since, by whether these were what was predicted: hit, miss, ambiguous "
        "(one of several that were predicted), unpredicted (nothing could be said).",
    ),
    "gputopo_promises_broken": About(("reason",), "Pods whose required shape the GPUs they got do not have."),
    "gputopo_events_written": About(("outcome",), "Events for such pods: written, failed, dropped (too many at once)."),
    "gputopo_decisions_written": About(("outcome",), "Decisions for the file: written, failed, dropped (too many)."),
}
TIMES = {
    "gputopo_extender_call_seconds": Times(("verb",), "Duration of a call, from its head to its answer.", _CALL_SECONDS)
}
TALLIES = {
    "gputopo_extender_connections_ended": About(
        ("why",),
        "Connections of the verbs ended by the extender: capacity (too many), slow (a request that does not arrive in "
        "time), head (too large), stuck (an answer that is not read).",
    ),
}
GAUGES = {
    "gputopo_extender_info": About(("version", "python"), "Always 1; what this extender is."),
    "gputopo_extender_ready": About((), "1 where calls are answered, 0 where they get 503."),
    "gputopo_assumptions": About((), "Pods that are taken to be on the one node that they were answered."),
    "gputopo_policy_bad": About((), "1 where the policy file was changed to what cannot be read: the old one holds."),
    "gputopo_doubts": About((), "Pods that may be on the way to any of several nodes."),
}
CATALOGUE = Catalogue(COUNTERS, GAUGES | CLUSTER_GAUGES | RESERVATION_GAUGES, TALLIES | CLUSTER_TALLIES, TIMES)


class Status(NamedTuple):
    """How the extender is, and what it knows, at one moment."""

    table: NodeTable
    ready: bool
    watches: tuple[WatchStatus, ...] = ()
    pods: int = 0
    assumptions: int = 0
    doubts: int = 0
    connections_ended: Mapping[str, int] = {}  # read only
    policy_bad: bool = False
    reserved: Reserved | None = None  # None: it does not look at reservations
    me: str | None = None  # as ledgers know it


class Metrics:
    """Counters that are bumped where things happen, and what a status says."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(CATALOGUE.counter, self.registry)
        self.attempts = counter("ai_scheduler_attempts")
        self.calls = counter("gputopo_extender_calls")
        self.slow_calls = counter("gputopo_extender_slow_calls")
        self.surprises = counter("gputopo_extender_surprises")
        self.rejections = counter("gputopo_rejections")
        self.predictions = counter("gputopo_predictions")
        self.promises_broken = counter("gputopo_promises_broken")
        self.events = counter("gputopo_events_written")
        self.decisions = counter("gputopo_decisions_written")
        self.call_seconds = CATALOGUE.histogram(self.registry, "gputopo_extender_call_seconds")

    def note_refused(self, failed: Mapping[str, str]) -> None:
        """No node passed; ``failed`` says why not."""
        for text in reasons(failed):
            reason = _REASONS.get(text, Reason.MALFORMED)  # the only one whose text varies
            self.rejections.labels(reason.name.lower()).inc()
            if reason is Reason.MALFORMED:
                self.attempts.labels(UNSPECIFIED, "malformed").inc()

    def note_decision(self, record: Record) -> None:
        """A pod whose request could be understood was decided about."""
        workload = record.request.profile.wishes.workload
        kind = UNSPECIFIED if workload is None else workload.value
        self.attempts.labels(kind, "passed" if record.answer.nodes else "refused").inc()

    def note_settled(self, found: Settled) -> None:
        """The kubelet has named a pod's GPUs."""
        self.predictions.labels("unpredicted" if found.check is None else found.check.value).inc()
        if found.broken is not None:
            self.promises_broken.labels(found.broken.name.lower()).inc()

    def note_event(self, outcome: str) -> None:
        """An Event was written, or was not."""
        self.events.labels(outcome).inc()

    def note_written(self, outcome: str) -> None:
        """A decision was written to the file, or was not."""
        self.decisions.labels(outcome).inc()

    def expose(self, status: Callable[[], Status]) -> None:
        """Add what a status says, which is asked for at every scrape."""
        of_table_now = once_each(of_table)

        def told() -> Iterator[Sample]:
            now = status()
            yield from samples(now)
            yield from of_table_now(now.table)

        CATALOGUE.tell(self.registry, told)


def samples(status: Status) -> Iterator[Sample]:
    """Every sample of a status but those of its table. Pure."""
    yield "gputopo_extender_info", BUILD, 1
    yield "gputopo_extender_ready", (), status.ready
    yield from of_watches(status.watches)
    yield "gputopo_gpu_pods", (), status.pods
    yield "gputopo_assumptions", (), status.assumptions
    yield "gputopo_doubts", (), status.doubts
    yield "gputopo_policy_bad", (), status.policy_bad
    if status.reserved is not None:
        yield from of_reservations(status.reserved, status.me)
    for why, times in sorted(status.connections_ended.items()):
        yield "gputopo_extender_connections_ended", (why,), times
