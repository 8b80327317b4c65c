"""``gputopo observe``: the cost of the placements of the cluster's own schedulers. Heavy imports are in the functions.

Exit codes: 0 the time of --for is over, or terminated; 2 bad usage; 4 the cluster cannot be reached or denies access.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from gputopo.cli.connection import cluster_options, connected_cluster
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error, write_out
from gputopo.kube.rbac import OBSERVER
from gputopo.process.settings import command_options
from scheduler_core.observe import settings
from scheduler_core.observe.settings import ObserverSettings
from scheduler_core.runtime.bootstrap import configured

if TYPE_CHECKING:
    from gputopo.kube.client import Kube

_log = logging.getLogger(__name__)


@click.command()
@cluster_options
@command_options(ObserverSettings)
def observe(*, kubeconfig: str | None, context: str | None, **flags: str | None) -> None:
    """Report the cost of other schedulers' GPU placements.

    It watches how the cluster's own schedulers place GPU pods. It places and changes nothing: it only lists and watches
    nodes, pods and NodeGpus. First it reports the placement of the running pods. Then it prints a line for each pod
    that is bound to a node: the GPUs that the pod got, compared with the GPUs that it would have got at that moment on
    the node that gputopo prefers, in the worst case of that node's device plugin. After Ctrl-C or the time of --for it
    prints a summary. Unknown results are reported as unknown, and are not counted in any total.

    \b
    Examples:
      gputopo observe --for 0s                  the placement now
      gputopo observe --for 1h --every 10m
      gputopo observe -o jsonl | jq 'select(.verdict == "worse") | .text'
      kubectl apply -k daemonset/scheduler/observe
    """
    with configured(settings.read_settings, flags) as options, connected_cluster(kubeconfig, context, OBSERVER) as kube:
        errors = asyncio.run(_observe(kube, options))
    if errors is not None:
        exit_with_error(f"could not list all objects{errors}", NO_CLUSTER)


async def _observe(kube: Kube, options: ObserverSettings) -> str | None:
    """Run until the end. Return the errors if the cluster could not be listed."""
    # In the function, because --help works without the extra "cluster".
    from scheduler_core.cache.full_pods import FULL_POD_SOURCES  # noqa: PLC0415
    from scheduler_core.cache.watch import HEARTBEAT_SOURCES, make_watches  # noqa: PLC0415
    from scheduler_core.observe.service import ObserverService, listener_of  # noqa: PLC0415
    from scheduler_core.policy.policy import Policy  # noqa: PLC0415
    from scheduler_core.runtime.event_loop import run_daemon  # noqa: PLC0415
    from scheduler_core.runtime.page_access import page_access  # noqa: PLC0415

    sources = {**FULL_POD_SOURCES, **HEARTBEAT_SOURCES}
    service = ObserverService(options, Policy(), _print)
    listeners = []
    if options.listen is not None:
        try:
            listeners.append(listener_of(service, options.listen, page_access(options.pages, kube)))
            _log.info("listening", extra={"fields": {"port": listeners[0].port}})
        except OSError as error:
            exit_with_error(f"cannot listen on {options.listen[0]}:{options.listen[1]}: {error.strerror}")
    await run_daemon(service, listeners, lambda deliver: make_watches(kube, deliver, time.monotonic, sources=sources))
    return None if service.synced else "".join(f": {each}" for each in service.watch_errors)


def _print(text: str) -> None:
    """Print. Raise ``BrokenPipeError`` once, when the reader has closed the pipe: then nothing is left to flush."""
    try:
        write_out(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
