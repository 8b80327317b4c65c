"""``gputopo extender``: builds the parts from the settings and runs the event loop."""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

import uvloop

from gputopo.kube.rbac import EXTENDER
from gputopo.process.daemon import bind_socket, fail
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.watch import HEARTBEAT_SOURCES, RESERVATION_SOURCES, make_watches, sources_with_parser
from scheduler_core.extender.ledger_registration import LedgerRegistration
from scheduler_core.extender.ledger_writer import LedgerWriter
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.service import ExtenderParts, ExtenderService, make_applications
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.policy import Policy
from scheduler_core.runtime.bootstrap import connect_or_exit, leader_election, load_policy, new_identity
from scheduler_core.runtime.event_loop import Deliver, WatchSet, run_daemon
from scheduler_core.runtime.event_writer import LOW_RATE, EventWriter
from scheduler_core.runtime.http_connection import PAGE_LIMITS, ConnectionLimits
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.page_access import PageAccess, page_access
from scheduler_core.runtime.tls import CertificateError

_OPEN_FILES = 4 * ConnectionLimits().connections  # connections of two listeners, handshakes, watches
_SWITCH_S = 0.0005  # watches decode and pages are encoded on other threads: a call waits for each so long, not 5 ms
_log = logging.getLogger(__name__)


def serve_forever(settings: ExtenderSettings) -> None:
    """Serve until a signal ends the process."""
    _raise_open_file_limit()
    sys.setswitchinterval(_SWITCH_S)
    identity = new_identity()
    with ExitStack() as stack:
        kube = connect_or_exit(EXTENDER)
        stack.callback(kube.close)
        metrics = ExtenderMetrics()
        event_writer = EventWriter(kube, "gputopo-extender", LOW_RATE, metrics.count_event)
        stack.callback(event_writer.close)
        policy = load_policy(settings.policy, Policy(shortlist=settings.shortlist))
        cache = ClusterCache(
            policy.current.node_policy, heartbeats=True, reservations=settings.reservations, report_bound_pods=False
        )
        parts = ExtenderParts(settings, policy, cache, event_writer, metrics, threading.Event())
        sources = {**sources_with_parser(MemoizedParser(lambda: policy.current)), **HEARTBEAT_SOURCES}
        if settings.reservations:
            writer = LedgerWriter(kube, identity)
            stack.callback(writer.close)
            pod = own_pod_name(os.environ)
            registration = LedgerRegistration(identity, pod, cache, writer.write_ack, time.monotonic)
            parts = parts._replace(registration=registration, ledger_writer=writer)
            sources = {**sources, **RESERVATION_SOURCES}
        if settings.lease is not None:
            election = stack.enter_context(leader_election(settings.lease, identity, parts.can_answer.is_set))
            parts = parts._replace(election=election)
        service = ExtenderService(parts)
        listeners = listeners_of(settings, service, page_access(settings.pages, kube))
        metrics.register_status(partial(service.status, listeners[0]))

        def start_watches(deliver: Deliver) -> WatchSet:
            return make_watches(kube, deliver, time.monotonic, sources=sources, pause=service.call_pause)

        uvloop.run(
            run_daemon(service, listeners, start_watches, service.drain, service.cache.split_batch, service.calls)
        )


def own_pod_name(environ: Mapping[str, str]) -> str:
    """Return the pod of this process from the variables of its manifest, NAMESPACE/NAME; "" without them."""
    namespace, name = environ.get("POD_NAMESPACE"), environ.get("POD_NAME")
    return f"{namespace}/{name}" if namespace and name else ""


def listeners_of(
    settings: ExtenderSettings, service: ExtenderService, access: PageAccess | None = None
) -> tuple[Listener, ...]:
    """Return the listener of the verbs, and the listener of the pages unless it is off. Exit if this fails."""
    verbs, pages = make_applications(service, settings, access)
    try:
        listeners = [Listener(verbs, bind_socket(settings.verbs), settings.certificates, calls=service.calls)]
        if settings.listen is not None:
            listeners.append(Listener(pages, bind_socket(settings.listen), limits=PAGE_LIMITS))
    except CertificateError as error:
        fail(str(error))
    except OSError as error:
        addresses = (address for address in (settings.verbs, settings.listen) if address is not None)
        fail(f"cannot listen on {' and '.join(f'{host}:{port}' for host, port in addresses)}: {error}")
    page_port = listeners[1].port if len(listeners) > 1 else None
    fields = {"verbs": listeners[0].port, "pages": page_port, "tls": bool(settings.certificates)}
    _log.info("listening", extra={"fields": fields})
    return tuple(listeners)


def _raise_open_file_limit() -> None:
    """Allow as many open files as the connection limits need; shells allow 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
