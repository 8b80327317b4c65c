"""The extender at work: watches tell what there is, kube-scheduler asks, and one event loop owns all that changes.

watch threads ──Batch──▶ loop: Knowledge ◀── Extender ◀── verbs ◀── kube-scheduler
                                  └──▶ metrics, decisions, Events
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from starlette.types import ASGIApp

from gputopo.crd.reservations import LEDGERS, RESERVATIONS
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate, WatchStatus
from scheduler_core.cache.watch import WatchErrorLog, silence_reason, stuck
from scheduler_core.evaluation.prediction_check import check_reports
from scheduler_core.explain import explain, explanation_document, with_reservations
from scheduler_core.extender.decision_log import DecisionFile, DecisionLog
from scheduler_core.extender.extender import DecisionRecord, Extender
from scheduler_core.extender.handlers import handlers
from scheduler_core.extender.http import extender_app
from scheduler_core.extender.ledger_registration import LedgerRegistration, WriteAck
from scheduler_core.extender.metrics import ExtenderMetrics, ExtenderStatus
from scheduler_core.extender.pages import Job, PageSources, pages_app
from scheduler_core.extender.pod_events import violated_shape_event
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.request.pod_request import PodRequest
from scheduler_core.runtime.clock import SlewedClock
from scheduler_core.runtime.event_loop import WatchSet
from scheduler_core.runtime.event_writer import EventWriter
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import Election

_KEPT_DECISIONS = {RESERVATIONS, LEDGERS}
_RETIRE_STEP_S = 0.05
_RETIRE_S = 5.0  # a pod that was let in is bound by then, as a rule
_log = logging.getLogger(__name__)


class AckWriter(Protocol):
    """``registrar.Registrar``."""

    error: str | None

    @property
    def write_ack(self) -> WriteAck:
        """Have a ledger show that."""
        ...


class ExtenderService:
    """All parts but the sockets. Lives on the loop's thread."""

    elected: Election | None = None  # None: nobody else answers
    registration: LedgerRegistration | None = None  # None: it does not look at reservations
    fit = False  # whether it could answer, but for the election; any thread may read it, a second late

    def __init__(
        self, settings: ExtenderSettings, policy: PolicyReload, announcer: EventWriter, metrics: ExtenderMetrics
    ) -> None:
        self.metrics = metrics
        common = policy.current.node_policy
        self.knowledge = ClusterCache(common, reservations=settings.reservations)
        self._now = SlewedClock()
        self.extender = Extender(self.knowledge, common, self._now, self._record)
        self.extender.policies = policy.current
        self.decisions = DecisionLog(settings.decisions)
        self.stop_requested = asyncio.Event()
        self._settings = settings
        self._policy = policy
        self._event_writer = announcer
        self._file: DecisionFile | None = None
        self._registrar: AckWriter | None = None
        self._watches: WatchSet | None = None
        self._synced = False
        self._begun = 0.0
        self._watch_errors = WatchErrorLog()

    def register_in_ledgers(self, me: str, pod: str, registrar: AckWriter) -> None:
        """Say in ledgers, under that name, what is vouched for. ``pod``: NAMESPACE/NAME of the own one, or ""."""
        self._registrar = registrar
        self.registration = LedgerRegistration(me, pod, self.knowledge, registrar.write_ack, time.monotonic)

    @contextmanager
    def running_watches(self, watches: WatchSet) -> Iterator[None]:
        """Within: what they see is taken in."""
        self._watches = watches
        with ExitStack() as parts:
            if self._settings.decisions_file is not None:
                self._file = DecisionFile(self._settings.decisions_file, self.metrics.count_file_write)
                parts.callback(self._file.close)
            parts.callback(watches.stop)
            self._begun = time.monotonic()
            watches.start()
            yield

    def apply_batch(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        news = self.knowledge.apply_batch(batch, self._now())
        for found in check_reports(news.kubelet_reports, self.knowledge.pods):
            self.metrics.count_prediction(found)
            if found.violated is not None:
                self._event_writer.write_event(violated_shape_event(found))
        if self.knowledge.synced:
            self._catch_up()
            self._update_registration(urgent=batch.kind in (LedgerUpdate, ReservationUpdate))

    def tick(self) -> None:
        """Let time pass."""
        self.knowledge.advance_time(self._now())
        self.fit = self._unfit() is None
        if self._policy.poll(time.monotonic()):
            self.extender.policies = self._policy.current
            self.knowledge.set_policy(self._policy.current.node_policy)
        if self.knowledge.synced:
            self._catch_up()
            self._update_registration()
        self._watch_errors.log_errors(self._statuses())

    def _update_registration(self, *, urgent: bool = False) -> None:
        if self.registration is not None and not self.stop_requested.is_set():
            answering = self.elected is None or self.elected.is_leader
            self.registration.update(self._policy.current, answering=answering, urgent=urgent)
            self.extender.settling = self.registration.settling

    async def drain(self) -> None:
        """Take back what ledgers show of this extender, once all that it let in was seen bound.

        Where that takes long it is left to planners, who know when nobody can be let in by it any more.
        """
        until = time.monotonic() + _RETIRE_S
        while self.registration is not None and self.registration.showing_ledgers:
            if not len(self.knowledge.assumed_pods):
                self.registration.withdraw()
                return
            if time.monotonic() > until:
                _log.info(
                    "ledger", extra={"fields": {"left_registered": True, "open": len(self.knowledge.assumed_pods)}}
                )
                return
            await asyncio.sleep(_RETIRE_STEP_S)

    def _statuses(self) -> tuple[WatchStatus, ...]:
        return () if self._watches is None else self._watches.status(time.monotonic())

    def _catch_up(self) -> None:
        """Work out now what a call would have to wait for."""
        _ = self.knowledge.table
        if not self._synced:
            self._synced = True
            known = {"nodes": len(self.knowledge.table.records), "gpu_pods": len(self.knowledge.pods)}
            _log.info("synced", extra={"fields": known | {"after_s": round(time.monotonic() - self._begun, 3)}})
            # All that is known from the start will stay: let the collector not look at it again and again.
            gc.collect()
            gc.freeze()

    def not_ready_reason(self) -> str | None:
        """Why no call can be answered; None: it can."""
        unfit = self._unfit()
        if unfit is None and self.elected is not None and not self.elected.is_leader:
            other = self.elected.holder
            return f"another extender answers: {other} holds the Lease" if other else "no extender holds the Lease yet"
        return self._unregistered() if unfit is None else unfit

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return stuck(self._statuses())

    def _unregistered(self) -> str | None:
        missing = None if self.registration is None else self.registration.not_ready_reason
        trouble = None if self._registrar is None else self._registrar.error
        return missing if missing is None or trouble is None else f"{missing}: {trouble}"

    def _unfit(self) -> str | None:
        if self.stop_requested.is_set():
            return "this extender is ending"
        if (trouble := self.knowledge.not_ready_reason) is not None:
            troubles = "".join(f"; {each.error}" for each in self._statuses() if each.error and not each.synced)
            missing = self.knowledge.missing_kinds
            advice = (
                "; where there is no planner, say --reservations off"
                if troubles and set(missing) <= _KEPT_DECISIONS
                else ""
            )
            return trouble + troubles + advice
        return silence_reason(self._statuses())

    def status(self, listener: Listener) -> ExtenderStatus:
        """What is known now, for the metrics."""
        known = self.knowledge
        doubts = len(known.assumed_pods.on_several_nodes)
        return ExtenderStatus(
            table=known.table,
            ready=self.not_ready_reason() is None,
            watches=self._statuses(),
            pods=len(known.pods),
            assumed_pods=len(known.assumed_pods) - doubts,
            in_flight_pods=doubts,
            connections_ended=listener.closed,
            policy_bad=self._policy.error is not None,
            reserved=known.reservations if self._settings.reservations else None,
            identity=None if self.registration is None else self.registration.identity,
        )

    def explanation_job(self, namespace: str, name: str) -> Job | None:
        """What the pod's explanation is worked out from; None where no such pod wants or holds GPUs."""
        known, policies = self.knowledge, self._policy.current
        seen = next((each for each in known.pods.values() if _is(each.occupant, namespace, name)), None)
        if seen is None:
            return None
        # What it was asked about last, which nodes it may go to among that; else all nodes, for the pod as watched.
        last = self.decisions.last_decision(seen.key)
        request = PodRequest(
            seen.key,
            namespace,
            name,
            seen.scheduler,
            seen.occupant.profile,
            owner=seen.occupant.owner,
            detection=() if last is None else last.request.detection,
        )
        policy = policies.profile_for(request).policy
        names, table, now = None if last is None else last.names, known.table_for_pod(seen.key), self._now()
        counting = tuple(known.reservations.active.values())

        def explained() -> dict[str, Any]:
            told = explain(request, table, names, policy, now, seen.node)
            return explanation_document(with_reservations(told, table, counting, seen.key))

        return explained

    def _record(self, record: DecisionRecord) -> None:
        self.metrics.count_decision(record)
        self.decisions.add_decision(record)
        if self._file is not None:
            self._file.append(record)


def _is(pod: Occupant, namespace: str, name: str) -> bool:
    return pod.name == name and pod.namespace == namespace


def make_applications(service: ExtenderService, settings: ExtenderSettings) -> tuple[ASGIApp, ASGIApp]:
    """What the two listeners serve: the verbs, and the pages."""
    answers = handlers(service.extender, service.metrics, time.monotonic)
    registry, decisions = service.metrics.registry, service.decisions.json_lines
    pages = PageSources(service.not_ready_reason, registry, decisions, service.explanation_job, service.unhealthy)
    return (
        extender_app(answers, service.not_ready_reason, settings.max_body, settings.prefix, time.monotonic),
        pages_app(pages),
    )
