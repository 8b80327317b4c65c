"""The command ``gputopo agent``: reads the settings. ``agent.daemon.main`` is imported only when the command runs.

Exit codes: 0 stopped by a signal, or `--once` published; 1 cannot continue, or `--once` could not publish; 2 bad usage.
"""

from __future__ import annotations

import os
import sys

import click

from agent.daemon.settings import AgentSettings, read_settings
from gputopo.process import logs
from gputopo.process.daemon import fail, ignore_sigpipe
from gputopo.process.settings import SettingError, command_options

EXIT_FAILED = 1


@click.command()
@click.option("--once", is_flag=True, help="Run one pass, publish, and exit.")
@command_options(AgentSettings)
def agent(*, once: bool, **flags: str | None) -> None:
    """Publish this node's GPUs: labels on the Node, and the GPUs allocated to each pod.

    The cluster is that of KUBECONFIG or ~/.kube/config if that file exists, also in a pod; else, in a pod, that of its
    ServiceAccount. For another context, set the kubeconfig's current context.

    \b
    Examples:
      gputopo agent                                              as the DaemonSet runs it
      gputopo agent --once --publish stdout                      print what it would write
      gputopo agent --node gpu-7 --node-source machine.json      publish a recorded machine
    """
    from agent.daemon.main import publish_forever, publish_once  # noqa: PLC0415  needs the extra "agent"

    try:
        settings = read_settings(flags, os.environ)
    except SettingError as error:
        fail(str(error))
    if not once:
        ignore_sigpipe()
    handler = logs.start_logging(settings.log, sys.stderr, ("agent", "gputopo"), {"node": settings.node})
    try:
        problem = publish_once(settings) if once else publish_forever(settings)
    finally:
        logs.stop_logging(handler)
    if problem is not None:
        fail(problem, EXIT_FAILED)
