"""Builds and runs ``gputopo ui``, from a cluster or from a file."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial

from gputopo.kube.client import Kube
from gputopo.kube.cluster_file import EXPECTED, ClusterFileError, FileKube
from gputopo.kube.page_reviews import may_list_pods, review_reader
from gputopo.kube.rbac import NODE_GPUS, PAGE_REVIEWER, PODS, UI
from gputopo.process.daemon import bind_socket, ignore_sigpipe
from gputopo.process.settings import is_loopback, parse_address
from scheduler_core.cache.watch import HEARTBEAT_SOURCES, RESERVATION_SOURCES, Sources, list_kind, make_watches
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_sources
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.event_loop import Deliver, NoWatches, WatchSet, run_daemon
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.page_access import PageAccess, ReviewQueue
from scheduler_core.runtime.tls import CertificateError
from scheduler_core.ui.overview import with_nodes
from scheduler_core.ui.overview_page import PageQuery, overview_page, recorded_words
from scheduler_core.ui.pending import ui_pod
from scheduler_core.ui.rows_html import Viewer
from scheduler_core.ui.server import LIMITS, style_sheet, ui_app
from scheduler_core.ui.service import UiService
from scheduler_core.ui.settings import UiServerSettings
from scheduler_core.ui.viewers import ReviewedViewers

VIEWER_ROLE = "gputopo-ui-viewer"
_REVIEW_S = 3.0  # for one answer of the API server
_VALID_S = 30.0  # of a token: 200 viewers cost 7 reviews a second
_MAX_VERDICTS = 4000  # more than are reviewed while one is valid
# In the morning all users log in at once: 400 wait, for 4 seconds at most if the API server is quick.
_LOGINS = ReviewQueue(max_waiting=400, pause_s=0.01)
_WITHOUT_PODS = "the file has no Pods: GPUs are shown as free unless a NodeGpus names their pod"
_log = logging.getLogger(__name__)


class StartError(ValueError):
    """The pages cannot be served; the message says why and what to do."""


def sources() -> Sources:
    """Return everything that the pages show."""
    planned = planner_sources(BUILT_IN.parse_pod)
    pods = planned[PlannerPod]._replace(value=partial(ui_pod, parse=BUILT_IN.parse_pod))
    return {**planned, PlannerPod: pods, **HEARTBEAT_SOURCES, **RESERVATION_SOURCES}


def file_service(text: bytes, name: str) -> UiService:
    """Return the service of a cluster as kubectl prints it. Raises ``StartError``."""
    try:
        kube = FileKube(text, UI)
    except ClusterFileError as error:
        raise StartError(f"{name}: {error}") from None
    service = list_service(kube)
    service.notice = "From standard input" if name == "-" else f"From the file {name}"
    if not kube.lists(NODE_GPUS):
        service.notice += ", which has no NodeGpus: it is not known which GPUs the pods hold, nor whether agents report"
    without_pods = () if kube.lists(PODS) else (f"{_WITHOUT_PODS}; print the file with: {EXPECTED}",)
    service.troubles = (*without_pods, *(f"{each}; it is left out" for each in kube.unreadable))
    return service


def list_service(kube: Kube) -> UiService:
    """Return the service of a cluster that is listed once: its time stands still. Raises ``KubeError``."""
    now, at = kube.now(), kube.recorded_at()
    service = UiService(clock=lambda: now)
    service.recorded = recorded_words(at)
    apply_lists(service, kube)
    return service


def apply_lists(service: UiService, kube: Kube) -> None:
    """List every object that the pages show. Raises ``KubeError``."""
    for kind, source in sources().items():
        service.apply_batch(list_kind(kube, kind, source))


def static_page(service: UiService, names: Collection[str] | None = None) -> str:
    """Return the page of the cluster as one file. ``names``: of the nodes that it shows; None: all."""
    viewer = Viewer(live=False, style=style_sheet(), recorded=service.recorded)
    found = service.overview if names is None else with_nodes(service.overview, names)
    return overview_page(found, service.history, PageQuery(), viewer)


def serve_cluster(kube: Kube, listen: str, print_line: Callable[[str], None]) -> None:
    """Serve the pages of a cluster until a signal. Raises ``StartError``."""
    serve(UiService(print_line=print_line), listen, print_line, partial(_cluster_watches, kube))


def _cluster_watches(kube: Kube, deliver: Deliver) -> WatchSet:
    return make_watches(kube, deliver, time.monotonic, sources=sources())


def serve_users(kube: Kube, settings: UiServerSettings) -> None:
    """Serve the pages of a cluster to its users until a signal. Raises ``StartError``."""
    reviewer = kube.with_role(PAGE_REVIEWER).with_timeout(_REVIEW_S)
    review = partial(review_reader, reviewer, audience=settings.token_audience, role=VIEWER_ROLE)
    access = PageAccess(review, valid_s=_VALID_S, max_verdicts=_MAX_VERDICTS, queue=_LOGINS)
    service = UiService()
    app = ui_app(service, ReviewedViewers(access, partial(may_list_pods, reviewer)))
    host, port = settings.listen
    try:
        listener = Listener(app, bind_socket((host, port)), settings.certificates, LIMITS)
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    except CertificateError as error:
        raise StartError(str(error)) from None
    _log.info("listening", extra={"fields": {"port": listener.port, "tls": settings.certificates is not None}})
    asyncio.run(run_daemon(service, (listener,), partial(_cluster_watches, kube)))


def serve(
    service: UiService,
    listen: str,
    print_line: Callable[[str], None],
    watches: Callable[[Deliver], WatchSet] = lambda _: NoWatches(),
) -> None:
    """Serve the pages until a signal. Raises ``StartError``."""
    host, port = _address(listen)
    try:
        listener = Listener(ui_app(service), bind_socket((host, port)), limits=LIMITS)
    except OSError as error:
        raise StartError(f"cannot listen on {listen}: {error.strerror}; choose another port with --listen") from None
    ignore_sigpipe()  # a browser may close a connection at any time
    print_line(f"gputopo ui: http://localhost:{listener.port}/ (Ctrl-C ends it)")
    asyncio.run(run_daemon(service, (listener,), watches))


def _address(listen: str) -> tuple[str, int]:
    try:
        found = parse_address(listen)
    except ValueError as error:
        raise StartError(f"--listen {listen!r} is invalid: {error}") from None
    if found is None or not is_loopback(found[0]):
        raise StartError(
            f"--listen {listen!r} is no loopback address: the pages show everything that you may read to anyone who "
            "can reach them; use 127.0.0.1:PORT, and ssh -L or kubectl port-forward from elsewhere"
        )
    return found
