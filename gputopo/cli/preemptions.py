"""``gputopo preemptions``. Heavy imports are in the function."""

from __future__ import annotations

import click

from gputopo.cli import complete
from gputopo.cli.connection import FILE_EPILOG, cluster_options, file_option, listing_cluster
from gputopo.cli.gangs import planner_states
from gputopo.cli.output import no_headers_option, output_option, print_document, print_table, token_option

_NO_SERVER = "gputopo: results of the dry run are on the planner's page /gangs: add --server URL to list them"
_UNREAD = "gputopo: could not read {}: the list may be incomplete"


@click.command(epilog=FILE_EPILOG)
@cluster_options
@file_option
@token_option
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete.namespaces,
    help="Only gangs of this namespace; default: all namespaces.",
)
@click.option("--server", metavar="URL", help="Also query the leading planner: what it would evict in a dry run.")
@output_option("table", "json", "yaml")
@no_headers_option
def preemptions(*, namespace: str | None, server: str | None, output: str, **connection: str | None) -> None:
    """List the pods that are evicted for gangs, and what that costs.

    UNITS are the gangs and single pods to evict. PODS LEFT is the number of their pods with GPUs that still exist, of
    all pods to evict. MODE is planned (no unit is begun), evicting, evicted (none of the pods is left), or would evict
    (dry run). GPU-HOURS and COST are the work that is lost; of several units of a dry run, UNITS has that of each one
    (-o json: of up to 32). After DEADLINE the planner evicts no further unit.
    REASON is what the planner does now, or why it evicts no more pods.

    \b
    Examples:
      gputopo preemptions
      gputopo preemptions -n team-a -o json
      gputopo preemptions --from cluster.json
      kubectl -n gputopo port-forward deploy/gputopo-planner 9439 & gputopo preemptions --server http://127.0.0.1:9439
    """
    from gputopo.kube.rbac import GANG_READER  # noqa: PLC0415
    from scheduler_core.planner.report import preemptions as listing  # noqa: PLC0415
    from scheduler_core.planner.report.read import read_gangs  # noqa: PLC0415

    states = () if server is None else tuple(planner_states(server).values())
    with listing_cluster(**connection, role=GANG_READER) as kube:
        seen = read_gangs(kube, None, kube.now())  # evicted pods may be in other namespaces
    found = (*listing.running_preemptions(seen, namespace), *listing.dry_run_preemptions(states, namespace))
    if output == "table":
        print_table(lambda: listing.preemption_table(found), bool(found), "no preemptions found")
    else:
        print_document(listing.preemption_list(found), output)
    if seen.unread:
        click.echo(_UNREAD.format(", ".join(seen.unread)), err=True)
    if server is None:
        click.echo(_NO_SERVER, err=True)
