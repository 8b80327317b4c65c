"""``gputopo planner``: settings -> the parts -> the loop."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import uvloop

from gputopo.crd.reservations import POOL
from gputopo.kube.client import Kube
from gputopo.kube.rbac import PLANNER
from gputopo.process.daemon import bind_socket, fail
from scheduler_core.cache.watch import RESERVATION_SOURCES, make_watches
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
from scheduler_core.runtime.event_loop import Deliver, WatchSet, run_daemon
from scheduler_core.runtime.event_writer import HIGH_RATE, EventWriter
from scheduler_core.runtime.http_connection import PAGES
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import LeaderElector

_WRITE_S = 10.0  # for one answer of the API server
_log = logging.getLogger(__name__)


def plan_forever(read: PlannerSettings) -> None:
    """Until the process is told to end."""
    with ExitStack() as parts:
        kube = connect_or_exit(PLANNER)
        parts.callback(kube.close)
        leader = parts.enter_context(leader_election(read.lease, new_identity()))
        policy = load_policy(read.policy)
        metrics = PlannerMetrics()
        announcer = EventWriter(kube.with_timeout(_WRITE_S), "gputopo-planner", HIGH_RATE, metrics.count_event)
        parts.callback(announcer.close)
        service = PlannerService(_settled(read), _parts(kube, leader, policy, announcer, metrics))
        metrics.register_status(service.status)
        listeners = listeners_of(read, service, metrics)
        uvloop.run(run_daemon(service, listeners, service.idle_watches))
        if service.broken is not None:
            raise service.broken


def _parts(
    kube: Kube, leader: LeaderElector, policy: PolicyReload, announcer: EventWriter, metrics: PlannerMetrics
) -> ServiceParts:
    def watch(deliver: Deliver) -> WatchSet:
        sources = {**planner_sources(MemoizedParser(lambda: policy.current)), **RESERVATION_SOURCES}
        return make_watches(kube, deliver, time.monotonic, sources=sources)

    writer = ActionExecutor(kube.with_timeout(_WRITE_S), lambda: leader.is_leader, time.monotonic)
    return ServiceParts(leader.identity, writer, leader, policy, watch, announcer.write_event, metrics)


def _settled(read: PlannerSettings) -> PlannerConfig:
    return PlannerConfig(
        POOL, read.lease.namespace, read.terms, read.pace, read.levels, read.release_after_s, read.gate_timeout_s
    )


def listeners_of(read: PlannerSettings, service: PlannerService, metrics: PlannerMetrics) -> tuple[Listener, ...]:
    """That of the pages, where there is to be one; ends the process where there cannot be."""
    if read.listen is None:
        return ()
    try:
        made = Listener(planner_app(service, metrics.registry), bind_socket(read.listen), limits=PAGES)
    except OSError as error:
        fail(f"cannot listen on {read.listen[0]}:{read.listen[1]}: {error}")
    _log.info("listening", extra={"fields": {"pages": made.port}})
    return (made,)
