"""``gputopo observe``: what the placements of the cluster's own scheduler cost. Heavy imports inside.

Exit codes: 0 its time is over, or it was told to end; 2 bad usage; 4 the cluster cannot be reached or refuses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from gputopo.cli.cluster import NO_CLUSTER, cluster_options, connected_cluster
from gputopo.cli.terminal import exit_with_error, write_out
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
@command_options(settings.TABLE)
def observe(*, kubeconfig: str | None, context: str | None, **flags: str | None) -> None:
    """Watch how the cluster's own schedulers place GPU pods, and tell what each placement cost.

    Nothing is placed or changed; it only lists and watches nodes, pods and NodeGpus. First it tells how the pods lie
    that run already. Then it prints a line for each pod that gets a node: what it got, next to what the node that
    gputopo would have chosen had to give at that moment, by the worst that its device plugin may have done there.
    At the end, by Ctrl-C or --for, it sums up. What is not known is said to be so, and is in no sum.

    \b
    Examples:
      gputopo observe --for 0s                  how things are now
      gputopo observe --for 1h --every 10m
      gputopo observe -o jsonl | jq 'select(.verdict == "worse") | .text'
      kubectl apply -k daemonset/scheduler/observe
    """
    with configured(settings.read_settings, flags) as read, connected_cluster(kubeconfig, context, OBSERVER) as kube:
        troubles = asyncio.run(_observe(kube, read))
    if troubles is not None:
        exit_with_error(f"not all of the cluster could be listed{troubles}", NO_CLUSTER)


async def _observe(kube: Kube, read: ObserverSettings) -> str | None:
    """Until its end. What went wrong, where nothing could be told."""
    # As for every server: --help does without the extra "cluster".
    from scheduler_core.cache.full_pods import FULL_POD_SOURCES  # noqa: PLC0415
    from scheduler_core.cache.watch import make_watches  # noqa: PLC0415
    from scheduler_core.observe.service import ObserverService, listener_of  # noqa: PLC0415
    from scheduler_core.policy.policy import Policy  # noqa: PLC0415
    from scheduler_core.runtime.event_loop import run_daemon  # noqa: PLC0415

    service = ObserverService(read, Policy(), _say)
    listeners = []
    if read.listen is not None:
        try:
            listeners.append(listener_of(service, read.listen))
            _log.info("listening", extra={"fields": {"port": listeners[0].port}})
        except OSError as error:
            exit_with_error(f"cannot listen on {read.listen[0]}:{read.listen[1]}: {error.strerror}")
    await run_daemon(
        service, listeners, lambda deliver: make_watches(kube, deliver, time.monotonic, sources=FULL_POD_SOURCES)
    )
    return None if service.synced else "".join(f": {each}" for each in service.watch_errors)


def _say(text: str) -> None:
    """Print. Raises ``BrokenPipeError`` where nobody reads any more, once: nothing is left to be flushed at the end."""
    try:
        write_out(text)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
