"""``gputopo ui-server``: the pages of ``gputopo ui`` for the users of a cluster. Heavy imports are in the functions."""

from __future__ import annotations

import click

from gputopo.cli.connection import cluster_options, connected_cluster
from gputopo.cli.terminal import exit_with_error
from gputopo.kube.rbac import UI
from gputopo.process.settings import command_options
from scheduler_core.runtime.bootstrap import configured
from scheduler_core.ui import settings
from scheduler_core.ui.settings import UiServerSettings


@click.command("ui-server")
@cluster_options
@command_options(UiServerSettings)
def ui_server(*, kubeconfig: str | None, context: str | None, **flags: str | None) -> None:
    """Serve the pages of `gputopo ui` to the users of a cluster.

    Every page needs a token whose account may `get` the non-resource URL /map (ClusterRole gputopo-ui-viewer). Names of
    pods and gangs are shown in the namespaces whose pods that account may list. Browsers log in with the token once;
    a proxy may send it as `Authorization: Bearer`. The program only reads the cluster.

    \b
    Examples:
      kubectl apply -k daemonset/scheduler/ui
      kubectl -n gputopo port-forward deploy/gputopo-ui 8480
      kubectl create token NAME --audience gputopo
    """
    from scheduler_core.ui.main import StartError, serve_users  # noqa: PLC0415  start-up of all other commands

    with configured(settings.read_settings, flags) as options, connected_cluster(kubeconfig, context, UI) as kube:
        try:
            serve_users(kube, options)
        except StartError as error:
            exit_with_error(str(error))
