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
from gputopo.process.daemon import bound, fail
from scheduler_core.cache.watch import KEPT, Sources, reading, watching
from scheduler_core.extender.ledger_writer import Registrar
from scheduler_core.extender.metrics import Metrics
from scheduler_core.extender.service import Service, applications
from scheduler_core.extender.settings import Settings
from scheduler_core.policy.cached_reader import Reader
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.bootstrap import connected, elected, new_name, policy_of
from scheduler_core.runtime.event_loop import Deliver, Watching, run
from scheduler_core.runtime.event_writer import FEW, Announcer
from scheduler_core.runtime.http_connection import PAGES, Limits
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.tls import CertificateError

_FILES = 4 * Limits().connections  # open files: two listeners' connections, handshakes, watches
_log = logging.getLogger(__name__)


def serve_forever(read: Settings) -> None:
    """Until the process is told to end."""
    _allow_files(_FILES)
    me = new_name()
    with ExitStack() as parts:
        kube = connected(EXTENDER)
        parts.callback(kube.close)
        metrics = Metrics()
        announcer = Announcer(kube, "gputopo-extender", FEW, metrics.note_event)
        parts.callback(announcer.close)
        policy = policy_of(read.policy, Policy(shortlist=read.shortlist))
        service = Service(read, policy, announcer, metrics)
        listeners = listeners_of(read, service)
        if read.lease is not None:
            service.elected = parts.enter_context(elected(read.lease, me, lambda: service.fit))
        sources = _sources(policy)
        if read.reservations:
            registrar = Registrar(kube, me)
            parts.callback(registrar.close)
            service.register(me, own_pod(os.environ), registrar)
            sources = {**sources, **KEPT}
        metrics.expose(partial(service.status, listeners[0]))

        def watched(deliver: Deliver) -> Watching:
            return watching(kube, deliver, time.monotonic, sources=sources)

        uvloop.run(run(service, listeners, watched, service.retire))


def own_pod(environ: Mapping[str, str]) -> str:
    """In which pod this process runs, as its manifest tells: NAMESPACE/NAME; "" where it does not."""
    namespace, name = environ.get("POD_NAMESPACE"), environ.get("POD_NAME")
    return f"{namespace}/{name}" if namespace and name else ""


def _sources(policy: PolicyReload) -> Sources:
    return reading(Reader(lambda: policy.current))


def listeners_of(read: Settings, service: Service) -> tuple[Listener, ...]:
    """The verbs' listener, and that of the pages where there is to be one; ends the process where there cannot be."""
    verbs, pages = applications(service, read)
    try:
        made = [Listener(verbs, bound(read.verbs), read.certificates)]
        if read.listen is not None:
            made.append(Listener(pages, bound(read.listen), limits=PAGES))
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
