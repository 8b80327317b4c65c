"""Builds the parts of ``gputopo planner`` from its settings, and runs it."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import uvloop
from starlette.types import ASGIApp

from gputopo.crd.reservations import POOL
from gputopo.kube.client import Kube
from gputopo.kube.rbac import PLANNER, PREEMPTOR, PROVISIONER, Role
from gputopo.process.daemon import bind_socket, fail
from scheduler_core.cache.watch import HEARTBEAT_SOURCES, RESERVATION_SOURCES, make_watches
from scheduler_core.planner.gang.pod_source import planner_sources
from scheduler_core.planner.leader.context import PlannerConfig
from scheduler_core.planner.leader.writer import ActionExecutor
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.service import PlannerService, ServiceParts
from scheduler_core.planner.settings import PlannerSettings
from scheduler_core.planner.status_page import planner_app
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.bootstrap import connect_or_exit, leader_election, load_policy, new_identity
from scheduler_core.runtime.event_loop import Deliver, NoWatches, WatchSet, run_daemon
from scheduler_core.runtime.event_writer import HIGH_RATE, EventWriter
from scheduler_core.runtime.http_connection import PAGE_LIMITS
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import LeaderElector
from scheduler_core.runtime.page_access import page_access

_WRITE_S = 10.0  # for one answer of the API server
_log = logging.getLogger(__name__)


def run_planner(settings: PlannerSettings) -> None:
    """Run the planner until the process receives a signal to stop."""
    with ExitStack() as parts:
        kube = connect_or_exit(_role(settings))
        parts.callback(kube.close)
        leader = parts.enter_context(leader_election(settings.lease, new_identity()))
        policy = load_policy(settings.policy)
        metrics = PlannerMetrics()
        event_writer = EventWriter(kube.with_timeout(_WRITE_S), "gputopo-planner", HIGH_RATE, metrics.count_event)
        parts.callback(event_writer.close)
        service = PlannerService(_planner_config(settings), _parts(kube, leader, policy, event_writer, metrics))
        metrics.register_status(service.status)
        listeners = listeners_of(settings, planner_app(service, metrics.registry, page_access(settings.pages, kube)))
        uvloop.run(run_daemon(service, listeners, lambda _: NoWatches()))  # each term starts its own
        if service.fatal_error is not None:
            raise service.fatal_error


def _role(settings: PlannerSettings) -> Role:
    """Return the calls of this planner. The policy file decides later whether pods are evicted."""
    provisioner = {} if settings.provisioning_class is None else PROVISIONER.verbs
    return Role(PLANNER.name, {**PLANNER.verbs, **PREEMPTOR.verbs, **provisioner})


def _parts(
    kube: Kube, leader: LeaderElector, policy: PolicyReload, event_writer: EventWriter, metrics: PlannerMetrics
) -> ServiceParts:
    def watch(deliver: Deliver) -> WatchSet:
        parse = MemoizedParser(lambda: policy.current)
        sources = {**planner_sources(parse), **HEARTBEAT_SOURCES, **RESERVATION_SOURCES}
        return make_watches(kube, deliver, time.monotonic, sources=sources)

    writer = ActionExecutor(kube.with_timeout(_WRITE_S), lambda: leader.is_leader, time.monotonic)
    return ServiceParts(
        identity=leader.identity,
        writer=writer,
        election=leader,
        policy=policy,
        watching=watch,
        write_event=event_writer.write_event,
        metrics=metrics,
    )


def _planner_config(settings: PlannerSettings) -> PlannerConfig:
    return PlannerConfig(
        pool=POOL,
        namespace=settings.lease.namespace,
        terms=settings.terms,
        pace=settings.pace,
        levels=settings.levels,
        release_after_s=settings.release_after_s,
        gate_timeout_s=settings.gate_timeout_s,
        provisioning_class=settings.provisioning_class,
        heartbeats=True,
    )


def listeners_of(settings: PlannerSettings, app: ASGIApp) -> tuple[Listener, ...]:
    """Return the listener of the HTTP pages, if one is configured; exit if its address cannot be used."""
    if settings.listen is None:
        return ()
    try:
        listener = Listener(app, bind_socket(settings.listen), limits=PAGE_LIMITS)
    except OSError as error:
        fail(f"cannot listen on {settings.listen[0]}:{settings.listen[1]}: {error}")
    _log.info("listening", extra={"fields": {"pages": listener.port}})
    return (listener,)
