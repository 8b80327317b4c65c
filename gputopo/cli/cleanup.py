"""``gputopo cleanup``. Heavy imports are in the functions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gputopo.cli import complete
from gputopo.cli.cluster import exit_without_node
from gputopo.cli.connection import cluster_options, connected_cluster
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error

if TYPE_CHECKING:
    from gputopo.cluster.cleanup import Removal
    from gputopo.kube.client import Kube


@click.command()
@cluster_options
@click.option("--node", metavar="NAME", shell_complete=complete.nodes, help="Clean up this Node.")
@click.option("--all", "everything", is_flag=True, help="Clean up all Nodes.")
@click.option(
    "--crd", is_flag=True, help="With --all: also remove the CustomResourceDefinitions and the planner's objects."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def cleanup(
    *, kubeconfig: str | None, context: str | None, node: str | None, everything: bool, crd: bool, dry_run: bool
) -> None:
    """Remove from a cluster everything that the agents wrote.

    It removes nothing else: only labels and annotations that, by the managedFields of the Node, an agent set and no
    other client did.
    Delete the agent's DaemonSet first: a running agent publishes its labels again.

    --all also removes the Leases gputopo-planner, gputopo-scheduler and gputopo-extender of leader elections, unless a
    running program holds them. Namespaces stay: kubectl delete namespace gputopo.

    --crd also removes the PlacementReservations and PlacementLedgers. It is refused while pods have gputopo's
    scheduling gate: without a planner nothing would remove the gate.

    \b
    Examples:
      kubectl delete -k daemonset/overlays/default && gputopo cleanup --all
      gputopo cleanup --node gpu-7 --dry-run
    """
    from gputopo.cluster.cleanup import find_definitions, find_planner_objects, find_removals  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.errors import NotFoundError  # noqa: PLC0415
    from gputopo.kube.rbac import CLEANER  # noqa: PLC0415

    if (node is None) != everything:
        raise click.UsageError("specify exactly one of --node NAME and --all")
    if crd and not everything:
        raise click.UsageError("--crd removes the NodeGpus of all nodes: it requires --all")
    with connected_cluster(kubeconfig, context, CLEANER) as kube:
        if crd:
            _refuse_while_gated(kube)
        removals = find_planner_objects(kube) if crd else []
        try:
            removals += find_removals(kube, node)
        except NotFoundError:
            if node is None:
                raise
            exit_without_node(kube, node)
        failed = _remove(kube, removals, dry_run=dry_run)
        if crd:
            failed += _remove(kube, find_definitions(kube), dry_run=dry_run)
        leases, held = _leader_leases(kube) if everything else ([], [])
        failed += _remove(kube, leases, dry_run=dry_run)
    for each in held:
        click.echo(f"{each}: remove that program, then run `gputopo cleanup --all` again", err=True)
    if not (removals or leases or held):
        click.echo("nothing to remove", err=True)
    if failed:
        sys.exit(NO_CLUSTER)


def _remove(kube: Kube, removals: list[Removal], *, dry_run: bool) -> int:
    """Remove each, or only print it. Return how many failed."""
    from gputopo.cluster.cleanup import apply_removals  # noqa: PLC0415  start-up of all other commands

    failed = 0
    for removal, error in ((each, None) for each in removals) if dry_run else apply_removals(kube, removals):
        failed += error is not None
        done = f"{'would remove' if dry_run else 'removed'} {removal}"
        click.echo(done if error is None else f"FAILED {error}", err=error is not None)
    return failed


def _leader_leases(kube: Kube) -> tuple[list[Removal], list[str]]:
    """Return the Leases of programs that have ended, and in words those that a program holds."""
    from gputopo.cluster.cleanup import Removal, find_leader_leases, held_words  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.rbac import LEASES  # noqa: PLC0415

    removals, held, now = [], [], kube.now()
    for lease in find_leader_leases(kube):
        removal, holder = Removal(LEASES, lease.metadata), held_words(lease, now)
        if holder is None:
            removals.append(removal)
        else:
            held.append(f"{removal} stays: {holder}")
    return removals, held


def _refuse_while_gated(kube: Kube) -> None:
    from gputopo.cluster.gates import list_gated  # noqa: PLC0415  start-up of all other commands

    gated = list_gated(kube)
    if gated:
        first = gated[0].metadata
        more = f" and {len(gated) - 1} more" if len(gated) > 1 else ""
        exit_with_error(
            f"the pod {first.namespace}/{first.name}{more} would wait for a planner forever: remove the planner and "
            "its admission policies, then run `gputopo release --all`",
            NO_CLUSTER,
        )
