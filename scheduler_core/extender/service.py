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
from scheduler_core.cache.cluster_cache import Knowledge
from scheduler_core.cache.events import Batch, LedgerSeen, ReservationSeen, WatchStatus
from scheduler_core.cache.watch import silence, stuck
from scheduler_core.cache.watch_log import Troubles
from scheduler_core.evaluation.prediction_check import settled_pods
from scheduler_core.explain import document, explain, with_keepers
from scheduler_core.extender.decision_log import DecisionFile, Decisions
from scheduler_core.extender.extender import Extender, Record
from scheduler_core.extender.handlers import verbs
from scheduler_core.extender.http import verbs_app
from scheduler_core.extender.ledger_registration import Registration, Say
from scheduler_core.extender.metrics import Metrics, Status
from scheduler_core.extender.pages import Job, Pages, pages_app
from scheduler_core.extender.pod_events import of_broken
from scheduler_core.extender.settings import Settings
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.request.pod_request import PodRequest
from scheduler_core.runtime.clock import Steady
from scheduler_core.runtime.event_loop import Watching
from scheduler_core.runtime.event_writer import Announcer
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import Elected

_KEPT = {RESERVATIONS, LEDGERS}
_RETIRE_STEP_S = 0.05
_RETIRE_S = 5.0  # a pod that was let in is bound by then, as a rule
_log = logging.getLogger(__name__)


class Writes(Protocol):
    """``registrar.Registrar``."""

    trouble: str | None

    @property
    def say(self) -> Say:
        """Have a ledger show that."""
        ...


class Service:
    """All parts but the sockets. Lives on the loop's thread."""

    elected: Elected | None = None  # None: nobody else answers
    registration: Registration | None = None  # None: it does not look at reservations
    fit = False  # whether it could answer, but for the election; any thread may read it, a second late

    def __init__(self, settings: Settings, policy: PolicyReload, announcer: Announcer, metrics: Metrics) -> None:
        self.metrics = metrics
        common = policy.current.common
        self.knowledge = Knowledge(common, reservations=settings.reservations)
        self._now = Steady()
        self.extender = Extender(self.knowledge, common, self._now, self._record)
        self.extender.policies = policy.current
        self.decisions = Decisions(settings.decisions)
        self.ended = asyncio.Event()
        self._settings = settings
        self._policy = policy
        self._announcer = announcer
        self._file: DecisionFile | None = None
        self._registrar: Writes | None = None
        self._watches: Watching | None = None
        self._synced = False
        self._begun = 0.0
        self._troubles = Troubles()

    def register(self, me: str, pod: str, registrar: Writes) -> None:
        """Say in ledgers, under that name, what is vouched for. ``pod``: NAMESPACE/NAME of the own one, or ""."""
        self._registrar = registrar
        self.registration = Registration(me, pod, self.knowledge, registrar.say, time.monotonic)

    @contextmanager
    def watched(self, watches: Watching) -> Iterator[None]:
        """Within: what they see is taken in."""
        self._watches = watches
        with ExitStack() as parts:
            if self._settings.decisions_file is not None:
                self._file = DecisionFile(self._settings.decisions_file, self.metrics.note_written)
                parts.callback(self._file.close)
            parts.callback(watches.stop)
            self._begun = time.monotonic()
            watches.start()
            yield

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        news = self.knowledge.take(batch, self._now())
        for found in settled_pods(news.reports, self.knowledge.pods):
            self.metrics.note_settled(found)
            if found.broken is not None:
                self._announcer.announce(of_broken(found))
        if self.knowledge.synced:
            self._catch_up()
            self._look_at_ledgers(urgent=batch.kind in (LedgerSeen, ReservationSeen))

    def tick(self) -> None:
        """Let time pass."""
        self.knowledge.tick(self._now())
        self.fit = self._unfit() is None
        if self._policy.tick(time.monotonic()):
            self.extender.policies = self._policy.current
            self.knowledge.follow(self._policy.current.common)
        if self.knowledge.synced:
            self._catch_up()
            self._look_at_ledgers()
        self._troubles.tell(self._statuses())

    def _look_at_ledgers(self, *, urgent: bool = False) -> None:
        if self.registration is not None and not self.ended.is_set():
            answering = self.elected is None or self.elected.holds
            self.registration.look(self._policy.current, answering=answering, urgent=urgent)
            self.extender.unsure = self.registration.settling

    async def retire(self) -> None:
        """Take back what ledgers show of this extender, once all that it let in was seen bound.

        Where that takes long it is left to planners, who know when nobody can be let in by it any more.
        """
        until = time.monotonic() + _RETIRE_S
        while self.registration is not None and self.registration.shown:
            if not len(self.knowledge.assumptions):
                self.registration.leave()
                return
            if time.monotonic() > until:
                _log.info(
                    "ledger", extra={"fields": {"left_registered": True, "open": len(self.knowledge.assumptions)}}
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

    def unready(self) -> str | None:
        """Why no call can be answered; None: it can."""
        unfit = self._unfit()
        if unfit is None and self.elected is not None and not self.elected.holds:
            other = self.elected.holder
            return f"another extender answers: {other} holds the Lease" if other else "no extender holds the Lease yet"
        return self._unregistered() if unfit is None else unfit

    def unhealthy(self) -> str | None:
        """Return why this process must be restarted; None: it need not be."""
        return stuck(self._statuses())

    def _unregistered(self) -> str | None:
        missing = None if self.registration is None else self.registration.missing
        trouble = None if self._registrar is None else self._registrar.trouble
        return missing if missing is None or trouble is None else f"{missing}: {trouble}"

    def _unfit(self) -> str | None:
        if self.ended.is_set():
            return "this extender is ending"
        if (trouble := self.knowledge.unready) is not None:
            troubles = "".join(f"; {each.trouble}" for each in self._statuses() if each.trouble and not each.synced)
            missing = self.knowledge.missing
            advice = "; where there is no planner, say --reservations off" if troubles and set(missing) <= _KEPT else ""
            return trouble + troubles + advice
        return silence(self._statuses())

    def status(self, listener: Listener) -> Status:
        """What is known now, for the metrics."""
        known = self.knowledge
        doubts = len(known.assumptions.doubtful)
        return Status(
            table=known.table,
            ready=self.unready() is None,
            watches=self._statuses(),
            pods=len(known.pods),
            assumptions=len(known.assumptions) - doubts,
            doubts=doubts,
            connections_ended=listener.closed,
            policy_bad=self._policy.trouble is not None,
            reserved=known.reserved if self._settings.reservations else None,
            me=None if self.registration is None else self.registration.me,
        )

    def explain(self, namespace: str, name: str) -> Job | None:
        """What the pod's explanation is worked out from; None where no such pod wants or holds GPUs."""
        known, policies = self.knowledge, self._policy.current
        seen = next((each for each in known.pods.values() if _is(each.occupant, namespace, name)), None)
        if seen is None:
            return None
        # What it was asked about last, which nodes it may go to among that; else all nodes, for the pod as watched.
        last = self.decisions.last(seen.key)
        request = PodRequest(
            seen.key,
            namespace,
            name,
            seen.scheduler,
            seen.occupant.profile,
            owner=seen.occupant.owner,
            recognised=() if last is None else last.request.recognised,
        )
        policy = policies.placement(request).policy
        names, table, now = None if last is None else last.names, known.seen_by(seen.key), self._now()
        counting = tuple(known.reserved.counting.values())

        def explained() -> dict[str, Any]:
            told = explain(request, table, names, policy, now, seen.node)
            return document(with_keepers(told, table, counting, seen.key))

        return explained

    def _record(self, record: Record) -> None:
        self.metrics.note_decision(record)
        self.decisions.keep(record)
        if self._file is not None:
            self._file.append(record)


def _is(pod: Occupant, namespace: str, name: str) -> bool:
    return pod.name == name and pod.namespace == namespace


def applications(service: Service, settings: Settings) -> tuple[ASGIApp, ASGIApp]:
    """What the two listeners serve: the verbs, and the pages."""
    answers = verbs(service.extender, service.metrics, time.monotonic)
    registry, decisions = service.metrics.registry, service.decisions.lines
    pages = Pages(service.unready, registry, decisions, service.explain, service.unhealthy)
    return (
        verbs_app(answers, service.unready, settings.max_body, settings.prefix, time.monotonic),
        pages_app(pages),
    )
