"""``gputopo extender``: settings -> the parts -> the loop."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import uvloop

from gputopo.kube.rbac import EXTENDER
from gputopo.process.daemon import bind_socket, fail
from scheduler_core.cache.watch import RESERVATION_SOURCES, Sources, make_watches, sources_with_parser
from scheduler_core.extender.ledger_writer import LedgerWriter
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.service import ExtenderService, make_applications
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.bootstrap import connect_or_exit, leader_election, load_policy, new_identity
from scheduler_core.runtime.event_loop import Deliver, WatchSet, run_daemon
from scheduler_core.runtime.event_writer import LOW_RATE, EventWriter
from scheduler_core.runtime.http_connection import PAGES, ConnectionLimits
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.tls import CertificateError

_FILES = 4 * ConnectionLimits().connections  # open files: two listeners' connections, handshakes, watches
_log = logging.getLogger(__name__)


def serve_forever(read: ExtenderSettings) -> None:
    """Until the process is told to end."""
    _allow_files(_FILES)
    me = new_identity()
    with ExitStack() as parts:
        kube = connect_or_exit(EXTENDER)
        parts.callback(kube.close)
        metrics = ExtenderMetrics()
        announcer = EventWriter(kube, "gputopo-extender", LOW_RATE, metrics.count_event)
        parts.callback(announcer.close)
        policy = load_policy(read.policy, Policy(shortlist=read.shortlist))
        service = ExtenderService(read, policy, announcer, metrics)
        listeners = listeners_of(read, service)
        if read.lease is not None:
            service.elected = parts.enter_context(leader_election(read.lease, me, lambda: service.fit))
        sources = _sources(policy)
        if read.reservations:
            registrar = LedgerWriter(kube, me)
            parts.callback(registrar.close)
            service.register_in_ledgers(me, own_pod_name(os.environ), registrar)
            sources = {**sources, **RESERVATION_SOURCES}
        metrics.register_status(partial(service.status, listeners[0]))

        def watched(deliver: Deliver) -> WatchSet:
            return make_watches(kube, deliver, time.monotonic, sources=sources)

        uvloop.run(run_daemon(service, listeners, watched, service.drain))


def own_pod_name(environ: Mapping[str, str]) -> str:
    """In which pod this process runs, as its manifest tells: NAMESPACE/NAME; "" where it does not."""
    namespace, name = environ.get("POD_NAMESPACE"), environ.get("POD_NAME")
    return f"{namespace}/{name}" if namespace and name else ""


def _sources(policy: PolicyReload) -> Sources:
    return sources_with_parser(MemoizedParser(lambda: policy.current))


def listeners_of(read: ExtenderSettings, service: ExtenderService) -> tuple[Listener, ...]:
    """The verbs' listener, and that of the pages where there is to be one; ends the process where there cannot be."""
    verbs, pages = make_applications(service, read)
    try:
        made = [Listener(verbs, bind_socket(read.verbs), read.certificates)]
        if read.listen is not None:
            made.append(Listener(pages, bind_socket(read.listen), limits=PAGES))
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        where = " and ".join(f"{host}:{port}" for host, port in filter(None, (read.verbs, read.listen)))
        fail(f"cannot listen on {where}: {error}")
    fields = {"verbs": made[0].port, "pages": made[1].port if len(made) > 1 else None, "tls": bool(read.certificates)}
    _log.info("listening", extra={"fields": fields})
    return tuple(made)


def _allow_files(wanted: int) -> None:
    """As many open files as connections may come to; shells allow 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
