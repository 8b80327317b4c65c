"""``gputopo planner``: its options, read into settings. The program itself, ``main``, is imported when it is run.

Exit codes: 0 told to end; 1 an error of its own; 2 bad usage, no credentials, or an address that cannot be used.
"""

from __future__ import annotations

import click

from gputopo.process.settings import command_options
from scheduler_core.planner import settings
from scheduler_core.runtime.bootstrap import configured


@click.command()
@command_options(settings.TABLE)
def planner(**flags: str | None) -> None:
    """Plan gangs: pods that start together or not at all, each pinned to its place and let go at once.

    It watches pods that gputopo's gate holds, plans all members of a gang on one snapshot of the cluster, writes the
    plan down as a PlacementReservation, commits it in the PlacementLedger, and takes the gates away. The scheduler of
    the pods binds them. One of several planners works: the one that holds the Lease.

    \b
    Examples:
      gputopo planner                                            in a pod of its own
      KUBECONFIG=~/.kube/config gputopo planner --log text       try it from outside
      curl localhost:9439/gangs | jq .                           who waits, and for what
    """
    from scheduler_core.planner.main import plan_forever  # noqa: PLC0415  needs the extra "cluster", --help does not

    with configured(settings.read_settings, flags) as read:
        plan_forever(read)
