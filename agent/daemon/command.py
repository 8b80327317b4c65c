"""``gputopo agent``: its options, read into settings. ``agent.daemon.main`` is imported when the command runs.

Exit codes: 0 told to end, or `--once` published; 1 cannot go on, or `--once` could not publish; 2 bad usage.
"""

from __future__ import annotations

import os
import sys

import click

from agent.daemon import settings
from gputopo.process import logs
from gputopo.process.daemon import fail, outlive_peers
from gputopo.process.settings import SettingError, options

FAILED = 1


@click.command()
@click.option("--once", is_flag=True, help="Look once, publish, and end.")
@options(settings.TABLE)
def agent(*, once: bool, **flags: str | None) -> None:
    """Publish this node's GPUs: labels on the Node, and who holds which GPU.

    \b
    Examples:
      gputopo agent                                              as the DaemonSet runs it
      gputopo agent --once --publish stdout                      see what it would write
      gputopo agent --node gpu-7 --node-source machine.json      publish a recorded machine
    """
    from agent.daemon.main import publish_forever, publish_once  # noqa: PLC0415  needs the extra "agent", --help does not

    try:
        read = settings.read(flags, os.environ)
    except SettingError as error:
        fail(str(error))
    if not once:
        outlive_peers()
    handler = logs.start(read.log, sys.stderr, ("agent", "gputopo"), {"node": read.node})
    try:
        trouble = publish_once(read) if once else publish_forever(read)
    finally:
        logs.stop(handler)
    if trouble is not None:
        fail(trouble, FAILED)
