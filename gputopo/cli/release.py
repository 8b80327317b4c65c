"""``gputopo release``: return gated pods to ordinary scheduling. Heavy imports are in the functions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli import complete
from gputopo.cli.connection import cluster_options, connected_cluster
from gputopo.cli.terminal import NO_CLUSTER
from gputopo.labels.keys import STOCK_SCHEDULER

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from gputopo.kube.objects import PartialPod

_ROUNDS = 3  # attempts for a pod that is changed or gated again meanwhile
_GATED_AGAIN = "pods/{0.namespace}/{0.name}: it was gated again; remove the planner and its admission policies first"


class _ReleaseQuery(NamedTuple):
    """The pods to release."""

    namespace: str | None  # None: all
    names: frozenset[str] = frozenset()  # of pods; empty: all pods
    gang: str | None = None


@click.command()
@cluster_options
@click.argument("pods", metavar="[POD]...", nargs=-1, shell_complete=complete.pods)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete.namespaces,
    help="Namespace of the pods; default: the context's, with --all every namespace.",
)
@click.option("--gang", metavar="NAME", shell_complete=complete.gangs, help="All gated pods of this gang.")
@click.option("--all", "everything", is_flag=True, help="All gated pods, of --namespace or of the cluster.")
@click.option("--dry-run", is_flag=True, help="Only print what would be released.")
def release(
    pods: tuple[str, ...],
    *,
    namespace: str | None,
    gang: str | None,
    everything: bool,
    dry_run: bool,
    **where: str | None,
) -> None:
    """Remove gputopo's scheduling gate from pods.

    The pods get no places: the scheduler that they name places them like all other pods. If that scheduler does not run
    any more, they wait for it; the command names it. Use it when no planner runs, and before removing the planner for
    good. Released pods of a gang are no longer a gang: some may start and others not. The gates of other projects, such
    as Kueue, stay.

    While the planner's admission policies are installed, new pods are gated again: remove the policies first.

    \b
    Examples:
      kubectl delete -k daemonset/scheduler/planner && gputopo release --all
      gputopo release -n team-a train-0 train-1
      gputopo release -n team-a --gang llm-7 --dry-run
    """
    if sum((bool(pods), gang is not None, everything)) != 1:
        raise click.UsageError("specify exactly one of POD..., --gang NAME and --all")
    from gputopo.kube.connect import default_namespace  # noqa: PLC0415
    from gputopo.kube.rbac import RELEASER  # noqa: PLC0415  start-up of all other commands

    if namespace is None and not everything:
        namespace = default_namespace(where["kubeconfig"], where["context"])
    query = _ReleaseQuery(namespace, frozenset(pods), gang)
    with connected_cluster(where["kubeconfig"], where["context"], RELEASER) as kube:
        failed = _print_dry_run(kube, query) if dry_run else _release(kube, query)
    if failed:
        sys.exit(NO_CLUSTER)


def _print_dry_run(kube: Kube, query: _ReleaseQuery) -> int:
    """Print what would be released. Return how many of the named pods are missing."""
    from gputopo.cluster.gates import ReleaseResult  # noqa: PLC0415  start-up of all other commands

    found = _gated_pods(kube, query)
    for pod in found:
        click.echo(f"would release {ReleaseResult(pod)}")
    _print_schedulers(found)
    return _print_missing(query, {pod.metadata.name for pod in found})


def _release(kube: Kube, query: _ReleaseQuery) -> int:
    """Release the pods. Return how many failed or are missing."""
    from gputopo.cluster.gates import release_pods  # noqa: PLC0415  start-up of all other commands

    seen: set[str] = set()
    released: dict[str, PartialPod] = {}  # by UID
    failed: dict[str, str] = {}  # UID -> error
    for _ in range(_ROUNDS):
        found = _gated_pods(kube, query)
        if not found:
            _print_schedulers(released.values())
            return _print_missing(query, seen)
        seen |= {pod.metadata.name for pod in found}
        failed = {}
        for each in release_pods(kube, found):
            if each.error is None:
                click.echo(f"released {each}")
                released[each.pod.metadata.uid] = each.pod
            else:
                failed[each.pod.metadata.uid] = str(each.error)
    remaining = _gated_pods(kube, query)
    gated = {pod.metadata.uid for pod in remaining}
    _print_schedulers(pod for uid, pod in released.items() if uid not in gated)
    for pod in remaining:
        click.echo(f"FAILED {failed.get(pod.metadata.uid) or _GATED_AGAIN.format(pod.metadata)}", err=True)
    return len(remaining) + _print_missing(query, seen)


def _print_schedulers(pods: Iterable[PartialPod]) -> None:
    """Print which schedulers the pods wait for, except for the scheduler that every cluster has."""
    names = Counter(pod.spec.scheduler_name for pod in pods)
    for name, count in sorted(names.items()):
        if name not in ("", STOCK_SCHEDULER):
            who = "1 pod names" if count == 1 else f"{count} pods name"
            click.echo(
                f"{who} the scheduler {name} and will wait until a scheduler of this name runs; otherwise change "
                "schedulerName in the templates and create the pods again",
                err=True,
            )


def _print_missing(query: _ReleaseQuery, seen: set[str]) -> int:
    """Print the named pods that are missing. Return their number."""
    missing = sorted(query.names - seen)
    for name in missing:
        click.echo(f"FAILED pods/{query.namespace}/{name}: no such pod with gputopo's scheduling gate", err=True)
    if not missing and not seen:
        gang = "" if query.gang is None else f" in gang {query.gang}"
        namespace = "" if query.namespace is None else f" in namespace {query.namespace}"
        click.echo(f"no pods with gputopo's scheduling gate{gang}{namespace}", err=True)
    return len(missing)


def _gated_pods(kube: Kube, query: _ReleaseQuery) -> list[PartialPod]:
    from gputopo.cluster.gates import list_gated  # noqa: PLC0415  start-up of all other commands

    return [pod for pod in list_gated(kube, query.namespace) if _matches(query, pod)]


def _matches(query: _ReleaseQuery, pod: PartialPod) -> bool:
    if query.names:
        return pod.metadata.name in query.names
    return query.gang is None or _gang(pod) == query.gang


def _gang(pod: PartialPod) -> str | None:
    """Return the name of the pod's gang, as `gputopo gangs` prints it."""
    from scheduler_core.planner.gang.conventions import named_gang  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.request.pod import Metadata  # noqa: PLC0415

    metadata, group = pod.metadata, pod.spec.scheduling_group
    found = Metadata(metadata.name, metadata.namespace, metadata.uid, metadata.labels, metadata.annotations)
    wanted = named_gang(found, None if group is None else group.pod_group_name)
    return None if wanted is None else wanted.gang.name
