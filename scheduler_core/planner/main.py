"""``gputopo planner``: settings -> the parts -> the loop."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import uvloop

from gputopo.crd.reservations import POOL
from gputopo.kube.client import Kube
from gputopo.kube.rbac import PLANNER
from gputopo.process.daemon import bound, fail
from scheduler_core.cache.watch import KEPT, watching
from scheduler_core.planner.gang.pod_source import planner_sources
from scheduler_core.planner.leader.context import Settled
from scheduler_core.planner.leader.writer import Writer
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.service import Parts, Service
from scheduler_core.planner.settings import Settings
from scheduler_core.planner.status_page import pages
from scheduler_core.policy.cached_reader import Reader
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.bootstrap import connected, elected, new_name, policy_of
from scheduler_core.runtime.event_loop import Deliver, Watching, run
from scheduler_core.runtime.event_writer import MANY, Announcer
from scheduler_core.runtime.http_connection import PAGES
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.leader_election import Leader

_WRITE_S = 10.0  # for one answer of the API server
_log = logging.getLogger(__name__)


def plan_forever(read: Settings) -> None:
    """Until the process is told to end."""
    with ExitStack() as parts:
        kube = connected(PLANNER)
        parts.callback(kube.close)
        leader = parts.enter_context(elected(read.lease, new_name()))
        policy = policy_of(read.policy)
        metrics = Metrics()
        announcer = Announcer(kube.within(_WRITE_S), "gputopo-planner", MANY, metrics.note_event)
        parts.callback(announcer.close)
        service = Service(_settled(read), _parts(kube, leader, policy, announcer, metrics))
        metrics.expose(service.status)
        listeners = listeners_of(read, service, metrics)
        uvloop.run(run(service, listeners, service.watching))
        if service.broken is not None:
            raise service.broken


def _parts(kube: Kube, leader: Leader, policy: PolicyReload, announcer: Announcer, metrics: Metrics) -> Parts:
    def watch(deliver: Deliver) -> Watching:
        sources = {**planner_sources(Reader(lambda: policy.current)), **KEPT}
        return watching(kube, deliver, time.monotonic, sources=sources)

    writer = Writer(kube.within(_WRITE_S), lambda: leader.holds, time.monotonic)
    return Parts(leader.me, writer, leader, policy, watch, announcer.announce, metrics)


def _settled(read: Settings) -> Settled:
    return Settled(
        POOL, read.lease.namespace, read.terms, read.pace, read.levels, read.release_after_s, read.gate_timeout_s
    )


def listeners_of(read: Settings, service: Service, metrics: Metrics) -> tuple[Listener, ...]:
    """That of the pages, where there is to be one; ends the process where there cannot be."""
    if read.listen is None:
        return ()
    try:
        made = Listener(pages(service, metrics.registry), bound(read.listen), limits=PAGES)
    except OSError as error:
        fail(f"cannot listen on {read.listen[0]}:{read.listen[1]}: {error}")
    _log.info("listening", extra={"fields": {"pages": made.port}})
    return (made,)
