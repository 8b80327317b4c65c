"""Command line of ``gputopo planner``: parses options into settings, and imports ``main`` only when it runs.

Exit codes: 0 stopped by a signal; 1 internal error; 2 invalid usage, no credentials, or an address that cannot be used.
"""

from __future__ import annotations

import click

from gputopo.process.settings import command_options
from scheduler_core.planner import settings
from scheduler_core.runtime.bootstrap import configured


@click.command()
@command_options(settings.PlannerSettings)
def planner(**flags: str | None) -> None:
    """Plan gangs: pods that start together or not at all, each pinned to its place and ungated.

    The planner watches pods with gputopo's gate, plans all members of a gang on one snapshot of the cluster, writes the
    plan as a PlacementReservation, commits it in the PlacementLedger, and removes the gates. The scheduler of the pods
    binds them. Of several planners, only the holder of the Lease plans.

    The cluster is that of KUBECONFIG or ~/.kube/config if that file exists, also in a pod; else, in a pod, that of its
    ServiceAccount. For another context, set the kubeconfig's current context.

    \b
    Examples:
      gputopo planner                                            in a pod
      KUBECONFIG=~/.kube/config gputopo planner --log text       try it outside the cluster
      curl localhost:9439/gangs | jq .                           waiting gangs, with reasons
    """
    from scheduler_core.planner.main import run_planner  # noqa: PLC0415  needs the extra "cluster", --help does not

    with configured(settings.read_settings, flags) as parsed:
        run_planner(parsed)
