"""``gputopo ui``: the GPUs of a cluster as web pages on this machine. Heavy imports are in the functions."""

from __future__ import annotations

import click

from gputopo.cli import complete
from gputopo.cli.connection import FILE_EPILOG, cluster_options, connected_cluster
from gputopo.cli.progress import input_progress
from gputopo.cli.terminal import exit_with_error, read_packed


@click.command(epilog=FILE_EPILOG)
@cluster_options
@click.option(
    "--from",
    "source",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="Instead of the cluster of the kubeconfig: a file of its objects; the command that prints it is below.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8480",
    show_default=True,
    help="The address of the pages; port 0: any free port. It must be a loopback address.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["pages", "html"], case_sensitive=False),
    default="pages",
    show_default=True,
    help="html: print the page of the cluster as one file, and exit.",
)
def ui(kubeconfig: str | None, context: str | None, source: str | None, listen: str, output: str) -> None:
    """Show the GPUs of a cluster in a browser.

    Each node is a row: its GPUs by NVLink island, the pods that hold them, and the free GPUs of one island. Below are
    the waiting gangs with their reasons, reserved GPUs, and the last hour. The command reads the cluster with your own
    rights, changes nothing, and serves the pages on a loopback address only.

    \b
    Examples:
      gputopo ui
      gputopo ui --from cluster.json
      gputopo ui -o html > cluster.html
    """
    from scheduler_core.ui.main import StartError, file_service, list_service, serve, serve_cluster, static_page  # noqa: PLC0415  start-up of all other commands

    try:
        if source is not None:
            text = read_packed(source)
            with input_progress(source, len(text)):
                service = file_service(text, source)
            if output == "html":
                click.echo(static_page(service), nl=False)
            else:
                serve(service, listen, click.echo)
            return
        from gputopo.kube.rbac import UI  # noqa: PLC0415

        with connected_cluster(kubeconfig, context, UI) as kube:
            if output == "html":
                click.echo(static_page(list_service(kube)), nl=False)
            else:
                serve_cluster(kube, listen, click.echo)
    except StartError as error:
        exit_with_error(str(error))
