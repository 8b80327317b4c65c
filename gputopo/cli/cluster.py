"""The commands nodes and pods. Heavy imports are in the functions.

Exit code 4: the cluster cannot be reached, denies access, or does not have the object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import click

from gputopo.cli import complete
from gputopo.cli.connection import (
    FILE_EPILOG,
    HOW_TO_INCLUDE,
    cluster_options,
    cluster_options_text,
    connected_cluster,
    file_option,
    listing_cluster,
)
from gputopo.cli.output import no_headers_option, output_option, print_document, print_table
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error, near_names_text
from gputopo.cli.watch import Watched, check_watch, watch_option, watch_table

if TYPE_CHECKING:
    from gputopo.cluster.pods import PodGpus
    from gputopo.kube.client import Kube
    from gputopo.model import NodeTopology
    from gputopo.render.report import Table

_QUOTED = 60  # characters of a name that is not found
_NO_REPORTS = f"the file has no NodeGpus: which GPUs the pods hold, and when the agents reported last, {HOW_TO_INCLUDE}"
_OUTPUTS = ("table", "wide", "json", "yaml")


@click.command(epilog=FILE_EPILOG)
@cluster_options
@file_option
@click.option("-l", "--selector", metavar="LABELS", default="", help="Only nodes with these labels, as in kubectl.")
@click.option(
    "-A", "--all-namespaces", "_", is_flag=True, expose_value=False, help="No effect, as in kubectl: nodes have none."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([*_OUTPUTS, "html"], case_sensitive=False),
    default="table",
    show_default=True,
    help="What to print. html: the page of `gputopo ui` with these nodes, as one file.",
)
@no_headers_option
@watch_option
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete.nodes)
def nodes(
    *,
    selector: str,
    output: str,
    watch: bool,
    names: tuple[str, ...],
    **connection: str | None,
) -> None:
    """List the GPU nodes of a cluster: free GPUs and faults.

    With NODE: only these. `gputopo ui` shows them in a browser.

    ISLANDS has the sizes of the NVLink islands, as the label gputopo.io/islands; 4x2 stands for 2-2-2-2.

    FREE counts the GPUs of each island that no container holds. If no agent has reported this for 15 minutes, it is
    the number of GPUs that the node's pods do not request, and it is not known which: `4/8, indices: ?`; `?` if
    pods hold shares or MIG devices. GPUs that the device plugin does not offer, for example because one is
    unhealthy, are not free. GPUs that are reserved, or of a pod that is about to start, count as free: `gputopo ui`
    shows these. A node that takes no new pods has no free GPUs, and is marked there as cordoned, not ready,
    unreachable or about to be removed; `draining` and `tainted` of `-o json` count its unused GPUs. LAST SEEN is
    the age of the agent's last report. GPU nodes without an agent are listed with what the kubelet advertises, and
    counted below the table. `-o wide` adds, among others, the memory of the GPUs that is in use (VRAM USED) and
    that containers hold (VRAM CLAIMED), and the part of the last 10 minutes in which a kernel ran (BUSY), of the
    lowest and the highest GPU, in steps of 10 %. A narrow terminal leaves out PRODUCT, LAST SEEN, ISLANDS, GPUS, in
    this order; `-o wide` prints all columns, and one line for each row.

    \b
    Examples:
      gputopo nodes
      gputopo nodes gpu-7
      gputopo nodes -w
      gputopo nodes --from cluster.json
      gputopo nodes -o wide -l pool=training
      gputopo nodes -o json | jq '.items[] | select(.degraded != [])'
      gputopo nodes -o html > nodes.html
    """
    from datetime import UTC, datetime  # noqa: PLC0415  start-up of all other commands

    from gputopo.cluster.document import node_list  # noqa: PLC0415
    from gputopo.cluster.nodes import missing_agents_text  # noqa: PLC0415
    from gputopo.cluster.read import read_nodes  # noqa: PLC0415
    from gputopo.cluster.tables import node_table  # noqa: PLC0415
    from gputopo.kube.rbac import NODE_GPUS, UI  # noqa: PLC0415

    check_watch(watch, output, connection["source"])
    if watch:
        with connected_cluster(**connection, role=None) as kube:
            watch_table(_watched_nodes(kube, selector, names, wide=output == "wide"))
    with listing_cluster(**connection, role=UI if output == "html" else None) as kube:
        found = read_nodes(kube, selector)
        now, has_reports = datetime.fromtimestamp(kube.now(), UTC), kube.lists(NODE_GPUS)
        page = _page_of(kube) if output == "html" else None
    unknown: list[str] = []
    if names:
        every = {each.name for each in found}
        unknown = sorted(set(names) - every)
        found = [each for each in found if each.name in names]
        for name in (each[:_QUOTED] for each in unknown):
            hint = (
                near_names_text(name, sorted(every))
                or f"; `gputopo nodes{cluster_options_text(**connection)}` lists all"
            )
            click.echo(f"gputopo: there is no GPU node {name!r}{hint}", err=True)
    if not names or found:
        if output in ("json", "yaml"):
            print_document(node_list(found, now), output)
        elif page is not None:
            click.echo(page({each.name for each in found}), nl=False)
        else:
            wide = output == "wide"
            table = partial(node_table, found, now, wide=wide, has_reports=has_reports)
            print_table(table, bool(found), "no GPU nodes found", wide=wide)
            if not has_reports:
                click.echo(f"gputopo: {_NO_REPORTS}", err=True)
            elif (missing := missing_agents_text(found)) is not None:
                click.echo(missing, err=True)
    if unknown:
        sys.exit(NO_CLUSTER)


def _watched_nodes(kube: Kube, selector: str, names: Sequence[str], *, wide: bool) -> Watched:
    from datetime import UTC, datetime  # noqa: PLC0415  start-up of all other commands

    from gputopo.cluster.read import read_nodes  # noqa: PLC0415
    from gputopo.cluster.tables import node_table  # noqa: PLC0415

    def read_table() -> Table:
        found = read_nodes(kube, selector)
        return node_table([each for each in found if not names or each.name in names], datetime.now(UTC), wide=wide)

    return Watched(read_table, keys=1, ages=frozenset({"LAST SEEN"}), if_empty="no GPU nodes found", wide=wide)


def _page_of(kube: Kube) -> Callable[[Collection[str]], str]:
    """Return a function that makes a page of the nodes with these names."""
    from scheduler_core.ui.main import list_service, static_page  # noqa: PLC0415  start-up of all other commands

    return partial(static_page, list_service(kube))


@click.command(epilog=FILE_EPILOG)
@cluster_options
@file_option
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete.namespaces,
    help="Only this namespace; default: all namespaces.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces (default).")
@output_option(*_OUTPUTS)
@no_headers_option
@watch_option
def pods(
    *,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
    watch: bool,
    **connection: str | None,
) -> None:
    """List running GPU pods, worst placed first.

    GPUS are the GPUs that the pod holds. RING is the bandwidth of the slowest hop, in GB/s in both directions, of the
    best ring through the pod's GPUs: it bounds an all-reduce. BEST ON NODE and BEST IN CLUSTER are the best ring
    bandwidth that as many GPUs of the same product reach on that node, and on any node, when the node is empty. % OF
    BEST compares RING with the larger of the two. ISLANDS and NUMA count the NVLink islands and the NUMA nodes of the
    pod's GPUs. `-o wide` adds the memory used and claimed, and the busy share, of the pod's GPUs, by all pods on them
    (`gputopo nodes --help`), and the memory of a shared GPU that the pod declares (`gputopo.io/vram`). A pod is
    listed once the agent has reported its GPUs, seconds after it starts. Agents that no longer report are named below
    the table, with their pods. A narrow terminal leaves out NUMA, BEST ON NODE, ISLANDS, BEST IN CLUSTER, RING, NODE,
    in this order; `-o wide` prints all columns, and one line for each row.

    \b
    Examples:
      gputopo pods | head
      gputopo pods -o wide
      gputopo pods -w
      gputopo pods -n training -o json | jq '.items[] | select((.gpusByIsland | length) > 1) | .name'
    """
    from gputopo.cluster.document import pod_list  # noqa: PLC0415  start-up of all other commands
    from gputopo.cluster.pods import silent_agents_text  # noqa: PLC0415
    from gputopo.cluster.tables import pod_table  # noqa: PLC0415

    if namespace is not None and all_namespaces:
        raise click.UsageError(f"--namespace {namespace} and --all-namespaces exclude each other")
    check_watch(watch, output, connection["source"])
    wide, none = output == "wide", "no running GPU pods found"
    if watch:
        with connected_cluster(**connection, role=None) as kube:
            watch_table(Watched(lambda: pod_table(_read_pods(kube, namespace), wide=wide), 2, frozenset(), none, wide))
    with listing_cluster(**connection, role=None) as kube:
        found = _read_pods(kube, namespace)
    if output in ("json", "yaml"):
        print_document(pod_list(found), output)
        return
    print_table(lambda: pod_table(found, wide=wide), bool(found), none, wide=wide)
    if (notes := silent_agents_text(found)) is not None:
        click.echo(notes, err=True)


def _read_pods(kube: Kube, namespace: str | None) -> list[PodGpus]:
    from datetime import UTC, datetime  # noqa: PLC0415  start-up of all other commands

    from gputopo.cluster.nodes import silent_agents  # noqa: PLC0415
    from gputopo.cluster.pods import pod_placements, with_silent_agents  # noqa: PLC0415
    from gputopo.cluster.read import pods_without_allocation, read_running  # noqa: PLC0415

    machines, running = read_running(kube, namespace)
    silent = silent_agents(machines, datetime.fromtimestamp(kube.now(), UTC))
    return with_silent_agents(
        pod_placements(machines, running), pods_without_allocation(kube, machines, namespace, silent), silent
    )


COMMANDS = (nodes, pods)


def topology_of_node(name: str, kubeconfig: str | None = None, context: str | None = None) -> NodeTopology:
    """Return the topology in the annotation of a Node. Exit with an error if it has none."""
    from gputopo.cluster.read import read_node  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.errors import NotFoundError  # noqa: PLC0415
    from gputopo.labels import AnnotationError, NoTopologyError, decode_topology  # noqa: PLC0415

    with connected_cluster(kubeconfig, context) as kube:
        try:
            metadata = read_node(kube, name)
        except NotFoundError:
            exit_without_node(kube, name)
    try:
        return decode_topology(metadata.labels, metadata.annotations)
    except (AnnotationError, NoTopologyError) as error:
        exit_with_error(f"node {name}: {error}", NO_CLUSTER)


def exit_without_node(kube: Kube, name: str) -> NoReturn:
    """Exit with the error that there is no such node, and the nodes with similar names."""
    from gputopo.cluster.read import read_node_names  # noqa: PLC0415  only for a message

    quoted = repr(name if len(name) <= _QUOTED else f"{name[:_QUOTED]}...")
    exit_with_error(f"there is no node {quoted}{near_names_text(name, read_node_names(kube), most=3)}", NO_CLUSTER)
