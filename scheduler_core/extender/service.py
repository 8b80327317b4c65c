"""The extender service: watches fill the cluster cache, kube-scheduler calls, one event loop owns all state.

watch threads ──Batch──▶ loop: ClusterCache ◀── Extender ◀── handlers ◀── kube-scheduler
                                   └──▶ metrics, decisions, Events
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from gputopo.recent_results import ResultExpiry
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate, ReportedNode, ReservationUpdate, WatchStatus
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.watch import WatchErrorLog, restart_reason, silence_reason
from scheduler_core.evaluation.extensions import CALLS
from scheduler_core.evaluation.prediction_check import check_predictions
from scheduler_core.explain import explain, explanation_document, with_reservations
from scheduler_core.extender.decision_lines import DecisionLogger
from scheduler_core.extender.decision_log import DecisionFile, DecisionLog
from scheduler_core.extender.extender import DecisionRecord, EvaluationLimits, Extender
from scheduler_core.extender.handlers import handlers
from scheduler_core.extender.http import extender_app
from scheduler_core.extender.ledger_registration import LedgerRegistration
from scheduler_core.extender.ledger_writer import LedgerWriter
from scheduler_core.extender.metrics import ExtenderMetrics, ExtenderStatus
from scheduler_core.extender.pages import Job, PageSources, pages_app
from scheduler_core.extender.pod_events import violated_shape_event
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.background_work import BackgroundWork
from scheduler_core.runtime.calls_in_progress import CallPause, CallsInProgress
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import WatchSet
from scheduler_core.runtime.event_writer import EventWriter
from scheduler_core.runtime.garbage import GarbageCollection
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import Election
from scheduler_core.runtime.page_access import PageAccess

_RESERVATION_KINDS = {RESERVATIONS, LEDGERS}
# A call evaluates nodes for 5 ms. Until 15 ms after its start it continues while no node fits, or for the first eight
# evaluations. The rest is done between calls, or in the next.
_LIMITS = EvaluationLimits(enough_s=0.005, most_s=0.015, min_evaluations=8)
_REMOVALS_PER_S = 25  # of unused results: some milliseconds each
_AHEAD_S, _AHEAD_PAUSE_S = 0.002, 0.006  # a quarter of a core
_MAX_REPORTS = 10_000  # whose predictions are not checked yet; the oldest are dropped
_CHECKS_PAUSE_S = 0.001  # after each report; with 16 GPUs a check may take as long as an event
_COLLECTION_DELAY_S = 0.005  # from other work to the search of its objects for garbage
_DRAIN_POLL_S = 0.05
_DRAIN_S = 5.0  # accepted pods are usually bound within this time
_log = logging.getLogger(__name__)


class ExtenderParts(NamedTuple):
    """The parts of an extender."""

    settings: ExtenderSettings
    policy: PolicyReload
    cache: ClusterCache
    event_writer: EventWriter
    metrics: ExtenderMetrics
    can_answer: threading.Event  # set while it could answer as the leader; the election reads it
    registration: LedgerRegistration | None = None  # None: --reservations off
    ledger_writer: LedgerWriter | None = None  # of the registration
    election: Election | None = None  # None: the only extender of its kube-scheduler


class ExtenderService:
    """The service without its sockets. For the thread of the event loop."""

    def __init__(self, parts: ExtenderParts) -> None:
        self.metrics = parts.metrics
        self.cache = parts.cache
        self.stop_requested = asyncio.Event()
        self._lines = DecisionLogger()
        self._now = SlewedClock()
        self.extender = Extender(self.cache, parts.policy.current.node_policy, self._now, self._record, _LIMITS)
        self.extender.policies = parts.policy.current
        self._parts = parts
        self._file: DecisionFile | None = None
        self._watches: WatchSet | None = None
        self._synced = False
        self._started = 0.0
        self._watch_errors = WatchErrorLog()
        self._garbage = GarbageCollection()
        self._expiry = ResultExpiry(_REMOVALS_PER_S)
        self.calls = CallsInProgress()
        self._removal = BackgroundWork(self.calls, self._remove_results, 1 / _REMOVALS_PER_S)
        self._reports: deque[tuple[ReportedNode, frozenset[str]]] = deque(maxlen=_MAX_REPORTS)  # with the known pods
        self._checks = BackgroundWork(self.calls, self._check_report, _CHECKS_PAUSE_S)
        self._ahead = BackgroundWork(self.calls, self._evaluate_ahead, _AHEAD_PAUSE_S)
        self._collection = BackgroundWork(self.calls, self._collect_new, _COLLECTION_DELAY_S)
        self.call_pause = CallPause(self.calls)
        self.decisions = DecisionLog(parts.settings.decisions, wait_for_calls=self.call_pause)

    @contextmanager
    def running_watches(self, watches: WatchSet) -> Iterator[None]:
        """Run the watches within the context."""
        self._watches = watches
        with ExitStack() as stack:
            if (file := self._parts.settings.decisions_file) is not None:
                self._file = DecisionFile(file, self.metrics.count_file_write, wait_for_calls=self.call_pause)
                stack.callback(self._file.close)
            stack.callback(watches.stop)
            self._started = time.monotonic()
            watches.start()
            yield

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply a batch of a watch to the cache."""
        changes = self.cache.apply_batch(batch, self._now())
        if changes.kubelet_reports:
            self._reports += [(each, self._known_pods(each.after)) for each in changes.kubelet_reports]
            self._checks.start_later()
        if self.cache.synced:
            self._catch_up()
            self._update_registration(urgent=batch.kind in (LedgerUpdate, ReservationUpdate))
        self._schedule_collection()

    def tick(self) -> None:
        """Do the periodic work, once a second."""
        self.cache.advance_time(self._now())
        if self._own_not_ready_reason() is None:
            self._parts.can_answer.set()
        else:
            self._parts.can_answer.clear()
        policy = self._parts.policy
        if policy.poll(time.monotonic()):
            self.extender.policies = policy.current
            self.cache.set_policy(policy.current.node_policy)
        if self.cache.synced:
            self._catch_up()
            self._update_registration()
        self._watch_errors.log_errors(self._statuses())
        self._removal.start()
        self._garbage.tick(time.monotonic())
        self._ahead.start()

    def _remove_results(self) -> bool:
        """Remove some of the cached results that are not used any more. Return whether some are left."""
        self._expiry.tick(time.monotonic(), self.cache.snapshot.states_in_use)
        return not self._expiry.is_idle

    def _known_pods(self, record: NodeRecord) -> frozenset[str]:
        return frozenset([pod.uid for pod in record.pods if pod.uid in self.cache.pods])

    def _check_report(self) -> bool:
        """Check the predictions for the pods of a report. Return whether reports are left."""
        report, known = self._reports.popleft()
        for found in check_predictions(*report, known):
            self.metrics.count_prediction(found)
            if found.violated is not None:
                self._parts.event_writer.write_event(violated_shape_event(found))
        return bool(self._reports)

    def _evaluate_ahead(self) -> bool:
        """Evaluate some nodes for profiles that were requested before. Return whether some are left."""
        is_left = self.extender.evaluate_ahead(_AHEAD_S)
        self._schedule_collection()
        return is_left

    def _schedule_collection(self) -> None:
        """Schedule a search of the new objects for garbage if it is due: a piece of work of its own, after calls."""
        if self._garbage.due:
            self._collection.start_later()

    def _collect_new(self) -> bool:
        self._garbage.collect_new()
        return False

    def _update_registration(self, *, urgent: bool = False) -> None:
        registration, election = self._parts.registration, self._parts.election
        if registration is not None and not self.stop_requested.is_set():
            answering = election is None or election.is_leader
            registration.update(self._parts.policy.current, answering=answering, urgent=urgent)
            self.extender.settling = registration.settling

    async def drain(self) -> None:
        """Withdraw from the ledgers after all accepted pods are bound.

        If this takes long, planners remove the registration when no pod of this extender can be in flight any more.
        """
        registration, until = self._parts.registration, time.monotonic() + _DRAIN_S
        while registration is not None and registration.showing_ledgers:
            in_flight = len(self.cache.assumed_pods)
            if not in_flight:
                registration.withdraw()
                return
            if time.monotonic() > until:
                _log.info("ledger", extra={"fields": {"left_registered": True, "in_flight": in_flight}})
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    def _statuses(self) -> tuple[WatchStatus, ...]:
        return () if self._watches is None else self._watches.status(time.monotonic())

    def _catch_up(self) -> None:
        """Build the snapshot now, so that no call waits for it."""
        _ = self.cache.snapshot
        if not self._synced:
            self._synced = True
            self.extender.evaluate_ahead(0.0)
            self._garbage.start(time.monotonic())
            counts = {"nodes": len(self.cache.snapshot.records), "gpu_pods": len(self.cache.pods)}
            _log.info("synced", extra={"fields": counts | {"after_s": round(time.monotonic() - self._started, 3)}})

    def not_ready_reason(self) -> str | None:
        """Return why calls cannot be answered; None if they can."""
        election = self._parts.election
        if (reason := self._own_not_ready_reason()) is not None:
            return reason
        if election is not None and not election.is_leader:
            holder = election.holder
            return f"another extender leads: {holder} holds the Lease" if holder else "no extender holds the Lease"
        return self._not_registered_reason()

    def unhealthy(self) -> str | None:
        """Return why this process needs a restart; None if it does not."""
        return restart_reason(self._statuses())

    def _not_registered_reason(self) -> str | None:
        reason = None if self._parts.registration is None else self._parts.registration.not_ready_reason
        error = None if self._parts.ledger_writer is None else self._parts.ledger_writer.error
        return reason if reason is None or error is None else f"{reason}: {error}"

    def _own_not_ready_reason(self) -> str | None:
        """Return why this process cannot answer, apart from election and registration."""
        if self.stop_requested.is_set():
            return "this extender is shutting down"
        if (reason := self.cache.not_ready_reason) is not None:
            errors = "".join(f"; {each.error}" for each in self._statuses() if each.error and not each.synced)
            only_reservations = errors and set(self.cache.missing_kinds) <= _RESERVATION_KINDS
            return reason + errors + ("; without a planner, set --reservations off" if only_reservations else "")
        return silence_reason(self._statuses())

    def status(self, listener: Listener) -> ExtenderStatus:
        """Return the current state, for the metrics."""
        cache, registration = self.cache, self._parts.registration
        in_flight = len(cache.assumed_pods.on_several_nodes)
        return ExtenderStatus(
            ready=self.not_ready_reason() is None,
            watches=self._statuses(),
            pods=len(cache.pods),
            assumed_pods=len(cache.assumed_pods) - in_flight,
            in_flight_pods=in_flight,
            connections_ended=listener.closed,
            policy_invalid=self._parts.policy.error is not None,
            reservations=cache.reservations if self._parts.settings.reservations else None,
            identity=None if registration is None else registration.identity,
            extension_failures=dict(CALLS.failures),
            extensions_disabled=frozenset(CALLS.disabled),
        )

    async def update_snapshot_metrics(self) -> None:
        """Compute the metrics of the snapshot on another thread."""
        await asyncio.to_thread(self.metrics.update_snapshot_samples, self.cache.snapshot, self.call_pause)

    def explanation_job(self, namespace: str, name: str) -> Job | None:
        """Return a function that explains a pod, for another thread; None if no such pod requests GPUs."""
        cache, policies = self.cache, self._parts.policy.current
        wanted, pods = (namespace, name), cache.pods.values()
        pod = next((each for each in pods if (each.occupant.namespace, each.occupant.name) == wanted), None)
        if pod is None:
            return None
        # The last decision knows the nodes that kube-scheduler considered; without it, explain all nodes.
        last = self.decisions.last_decision(pod.key)
        request = pod.request if last is None else pod.request._replace(detection=last.request.detection)
        policy = policies.policy_for(request)
        names, now = None if last is None else last.names, self._now()
        table = cache.snapshot_for_pod(pod.key, cache.reservations.holds_below(pod.priority))
        active = tuple(cache.reservations.active.values())

        def job() -> dict[str, Any]:
            explanation = explain(request, table, names, policy, now, pod.node)
            return explanation_document(with_reservations(explanation, table, active, pod.key))

        return job

    def _record(self, record: DecisionRecord) -> None:
        self._garbage.note_call(time.monotonic())
        if record.victims is None:
            self.metrics.count_decision(record)
        self._lines.write(record)
        self.decisions.add_decision(record)
        if self._file is not None:
            self._file.append(record)
        self._schedule_collection()


def make_applications(
    service: ExtenderService, settings: ExtenderSettings, access: PageAccess | None = None
) -> tuple[ASGIApp, ASGIApp]:
    """Return the applications of the two listeners: the verbs and the pages."""
    by_verb = handlers(service.extender, service.metrics, time.monotonic, service.calls)
    pages = PageSources(
        service.not_ready_reason,
        service.metrics.registry,
        service.decisions.json_lines,
        service.explanation_job,
        service.unhealthy,
        service.update_snapshot_metrics,
    )
    return (
        extender_app(by_verb, service.not_ready_reason, settings.max_body, settings.prefix, time.monotonic),
        pages_app(pages, access),
    )
