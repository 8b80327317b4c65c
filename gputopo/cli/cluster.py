"""The commands that need a cluster. ``gputopo.cli.main`` adds them; what is heavy is imported by the one that needs it.

Exit code 4: the cluster cannot be reached, refuses, or does not have what was asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from gputopo.kube.objects import Unreadable
    from gputopo.kube.rbac import Role
    from gputopo.model import NodeTopology

NO_CLUSTER = 4
_TOLD = 10  # objects that cannot be read
_UNSEEN = 120  # columns where nobody looks
_Command = TypeVar("_Command", bound=Callable[..., Any])
_OUTPUT = click.Choice(["table", "json", "yaml"])


def cluster_options(command: _Command) -> _Command:
    """``--kubeconfig`` and ``--context``, as kubectl has them."""
    for option in (
        click.option("--context", metavar="NAME", help="Context of the kubeconfig, instead of its current one."),
        click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG, ~/.kube/config or a pod's account."),
    ):
        command = option(command)
    return command


@click.command()
@cluster_options
@click.option("-l", "--selector", metavar="LABELS", default="", help="Only nodes with these labels, as for kubectl.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="What to print.",
)
def nodes(kubeconfig: str | None, context: str | None, selector: str, output: str) -> None:
    """List the GPU nodes of a cluster: what is in them, what is free in which island, and what is broken.

    FREE counts GPUs that no container holds, island by island; `?` where no agent says who holds what. LAST SEEN is
    how long ago the agent last confirmed this.

    \b
    Examples:
      gputopo nodes
      gputopo nodes -o wide -l pool=training
      gputopo nodes -o json | jq '.items[] | select(.degraded != [])'
    """
    from datetime import UTC, datetime  # noqa: PLC0415  start-up of all other commands

    from gputopo.cluster.document import node_list  # noqa: PLC0415
    from gputopo.cluster.read import read_nodes  # noqa: PLC0415
    from gputopo.cluster.tables import node_table  # noqa: PLC0415

    with connected_cluster(kubeconfig, context) as kube:
        found = read_nodes(kube, selector)
    now = datetime.now(UTC)
    if output in ("json", "yaml"):
        print_document(node_list(found, now), output)
        return
    print_table(lambda: node_table(found, now, wide=output == "wide"), bool(found), "there is no node with GPUs")


@click.command()
@cluster_options
@click.option("-n", "--namespace", metavar="NAME", help="Only this namespace, instead of all.")
@click.option("-o", "--output", type=_OUTPUT, default="table", show_default=True, help="What to print.")
def pods(kubeconfig: str | None, context: str | None, namespace: str | None, output: str) -> None:
    """List the running GPU pods with the GPUs they really hold and how well these are joined, the worst first.

    RING is the weakest hop, in GB/s both ways, of the best ring through the pod's GPUs: what sums gradients runs at
    its pace. BEST is what as many GPUs of that product form at best, on that node and on any node, when nothing else
    runs there. % OF BEST is the lower of the pod's shares of the two. ISLANDS and NUMA tell into how many pieces its
    GPUs are split.

    \b
    Examples:
      gputopo pods | head
      gputopo pods -n training -o json | jq '.items[] | select((.gpusByIsland | length) > 1) | .name'
    """
    from gputopo.cluster.document import pod_list  # noqa: PLC0415  start-up of all other commands
    from gputopo.cluster.pods import pod_placements  # noqa: PLC0415
    from gputopo.cluster.read import pods_without_allocation, read_nodes, running_pods  # noqa: PLC0415
    from gputopo.cluster.tables import pod_table  # noqa: PLC0415

    with connected_cluster(kubeconfig, context) as kube:
        machines = read_nodes(kube)
        found = pod_placements(machines, running_pods(kube, namespace)) + pods_without_allocation(
            kube, machines, namespace
        )
    if output in ("json", "yaml"):
        print_document(pod_list(found), output)
        return
    print_table(lambda: pod_table(found), bool(found), "no pod with GPUs is running")


@click.command()
@cluster_options
@click.option("--node", metavar="NAME", help="Clean up this node.")
@click.option("--all", "everything", is_flag=True, help="Clean up all nodes.")
@click.option("--crd", is_flag=True, help="With --all: remove the CustomResourceDefinitions too, and planners' plans.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def cleanup(
    *, kubeconfig: str | None, context: str | None, node: str | None, everything: bool, crd: bool, dry_run: bool
) -> None:
    """Remove what gputopo's agents left in a cluster: exactly what they own, and nothing else.

    Labels and annotations go where the API server's managed fields say that an agent set them and nobody else did.
    Delete the agent's DaemonSet first: an agent that runs puts its labels back.

    With --crd, what planners wrote down goes too. That is refused while pods wait for a planner: without one, nobody
    would let them go.

    \b
    Examples:
      kubectl delete -k daemonset/overlays/default && gputopo cleanup --all
      gputopo cleanup --node gpu-7 --dry-run
    """
    from gputopo.cluster.cleanup import apply_removals, find_definitions, find_planner_objects, find_removals  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.rbac import CLEANER  # noqa: PLC0415

    if (node is None) != everything:
        raise click.UsageError("say which: --node NAME or --all")
    if crd and not everything:
        raise click.UsageError("--crd takes the NodeGpus of all nodes away: it goes with --all only")
    failed = 0
    with connected_cluster(kubeconfig, context, CLEANER) as kube:
        if crd:
            _refuse_while_gated(kube)
        removals = (find_planner_objects(kube) if crd else []) + find_removals(kube, node)
        for batch in (removals, find_definitions(kube) if crd else []):
            for removal, error in ((each, None) for each in batch) if dry_run else apply_removals(kube, batch):
                failed += error is not None
                click.echo(
                    f"{'would remove' if dry_run else 'removed'} {removal}" if error is None else f"FAILED {error}"
                )
    if not removals:
        click.echo("nothing of gputopo's is there", err=True)
    if failed:
        sys.exit(NO_CLUSTER)


def _refuse_while_gated(kube: Kube) -> None:
    from gputopo.cluster.gates import list_gated  # noqa: PLC0415  start-up of all other commands

    held = list_gated(kube)
    if held:
        first = held[0].metadata
        several = f", {len(held)} in all," if len(held) > 1 else ""
        click.echo(
            f"gputopo: the pod {first.namespace}/{first.name}{several} waits for a planner, and would wait for ever: "
            "remove the planner and its policies, then `gputopo release --all`",
            err=True,
        )
        sys.exit(NO_CLUSTER)


COMMANDS = (nodes, pods, cleanup)


def topology_of_node(name: str, kubeconfig: str | None = None, context: str | None = None) -> NodeTopology:
    """The topology that a node of the cluster carries, or the end of the program with advice."""
    from gputopo.cluster.read import read_node  # noqa: PLC0415  start-up of all other commands
    from gputopo.labels import AnnotationError, NoTopologyError, decode_topology  # noqa: PLC0415

    with connected_cluster(kubeconfig, context) as kube:
        metadata = read_node(kube, name)
    try:
        return decode_topology(metadata.labels, metadata.annotations)
    except (AnnotationError, NoTopologyError) as error:
        click.echo(f"gputopo: node {name}: {error}", err=True)
        sys.exit(NO_CLUSTER)


@contextmanager
def connected_cluster(kubeconfig: str | None, context: str | None, role: Role | None = None) -> Iterator[Kube]:
    """A connection; what goes wrong on it ends the program with its message."""
    from gputopo.kube.connect import connect  # noqa: PLC0415
    from gputopo.kube.errors import ForbiddenError, KubeError  # noqa: PLC0415
    from gputopo.kube.rbac import READER  # noqa: PLC0415  start-up of all other commands

    wanted = role or READER
    try:
        kube = connect(wanted, kubeconfig, context)
        try:
            yield kube
        finally:
            kube.close()
            _tell_unreadable(kube.unreadable)
    except KubeError as error:
        click.echo(f"gputopo: {error}", err=True)
        if isinstance(error, ForbiddenError):
            click.echo(f"ask for a ClusterRole with {_rights(wanted)}", err=True)
        sys.exit(NO_CLUSTER)


def _tell_unreadable(found: Sequence[Unreadable]) -> None:
    """Say on standard error which objects were left out."""
    told = dict.fromkeys(map(str, found))
    for each in list(told)[:_TOLD]:
        click.echo(f"gputopo: {each}; it is left out", err=True)
    if len(told) > _TOLD:
        click.echo(f"gputopo: {len(told) - _TOLD} more objects cannot be read; they are left out", err=True)


def _rights(role: Role) -> str:
    """What it takes, as RBAC spells it: "get, list of nodes; list of pods"."""
    rights = ((", ".join(verbs), each.named, each.group) for each, verbs in role.verbs.items())
    return "; ".join(f"{verbs} of {plural}{f'.{group}' if group else ''}" for verbs, plural, group in rights)


def print_table(table: Callable[[], Any], there: bool, otherwise: str) -> None:
    """A table on standard output; where there is nothing, that on standard error."""
    if not there:
        click.echo(otherwise, err=True)
        return
    import os  # noqa: PLC0415  start-up of all other commands

    from gputopo.render.report import table_lines  # noqa: PLC0415

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    printed = table_lines(table(), lambda _, text: click.style(text, fg="red") if colour else text)
    click.echo("\n".join(printed))


def print_document(document: dict[str, Any], output: str) -> None:
    import json  # noqa: PLC0415  one of two

    if output == "json":
        click.echo(json.dumps(document, indent=2))
        return
    import yaml  # noqa: PLC0415  20 ms, and only this output needs it

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=1_000_000), nl=False)


def pages(url: str) -> Iterator[bytes]:
    """What a running extender or planner answers, page after page; the program ends where it does not."""
    from gputopo.cli.terminal import exit_with_error  # noqa: PLC0415
    from gputopo.process.page_reader import PageError, read_pages  # noqa: PLC0415  start-up of all other commands

    try:
        yield from read_pages(url)
    except PageError as error:
        exit_with_error(str(error), NO_CLUSTER)


def fetch_page(url: str) -> bytes:
    """What a running extender or planner answers on one page; the program ends where it does not."""
    return b"".join(pages(url))


def print_text(text: Callable[[int, bool], str]) -> None:
    """A text on standard output. ``text``: of a width in columns, and whether only ASCII may be in it."""
    import os  # noqa: PLC0415  start-up of all other commands

    from gputopo.cli.terminal import supports_unicode, write_out  # noqa: PLC0415

    width = os.get_terminal_size().columns if sys.stdout.isatty() else _UNSEEN
    write_out(text(width, not supports_unicode()))
