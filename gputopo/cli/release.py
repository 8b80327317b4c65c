"""``gputopo release``: pods that gputopo's gate holds go to ordinary scheduling.

What is heavy is imported when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli.cluster import NO_CLUSTER, cluster_options, connected_cluster

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from gputopo.kube.objects import PartialPod

_ROUNDS = 3  # a pod that was changed, or gated, meanwhile is tried again
_AGAIN = "pods/{0.namespace}/{0.name}: it was gated meanwhile; remove the planner and its policies first"


class _ReleaseQuery(NamedTuple):
    """Which pods."""

    namespace: str | None  # None: all
    names: frozenset[str] = frozenset()  # of pods; empty: all of them
    gang: str | None = None


@click.command()
@cluster_options
@click.argument("pods", metavar="[POD]...", nargs=-1)
@click.option(
    "-n", "--namespace", metavar="NAME", help="Of the pods or the gang, instead of the context's; or of --all."
)
@click.option("--gang", metavar="NAME", help="All pods of that gang.")
@click.option("--all", "everything", is_flag=True, help="All pods that the gate holds, of --namespace or of all.")
@click.option("--dry-run", is_flag=True, help="Only say what would be released.")
def release(
    pods: tuple[str, ...],
    *,
    namespace: str | None,
    gang: str | None,
    everything: bool,
    dry_run: bool,
    **where: str | None,
) -> None:
    """Let pods go that gputopo's gate holds, without a place: their scheduler takes them as it takes any others.

    For when no planner is there to do it, and before it is removed for good. Pods of a gang that are released are no
    gang any more: some of them may start and others not. Gates of others, such as Kueue's, stay.

    Where a planner and its policies are installed, pods that are made from then on are gated again: remove them first.

    \b
    Examples:
      kubectl delete -k daemonset/scheduler/planner && gputopo release --all
      gputopo release -n team-a train-0 train-1
      gputopo release -n team-a --gang llm-7 --dry-run
    """
    if sum((bool(pods), gang is not None, everything)) != 1:
        raise click.UsageError("say which: POD..., --gang NAME or --all")
    from gputopo.kube.connect import default_namespace  # noqa: PLC0415
    from gputopo.kube.rbac import RELEASER  # noqa: PLC0415  start-up of all other commands

    if namespace is None and not everything:
        namespace = default_namespace(where["kubeconfig"], where["context"])
    asked = _ReleaseQuery(namespace, frozenset(pods), gang)
    with connected_cluster(where["kubeconfig"], where["context"], RELEASER) as kube:
        failed = _print_dry_run(kube, asked) if dry_run else _release(kube, asked)
    if failed:
        sys.exit(NO_CLUSTER)


def _print_dry_run(kube: Kube, asked: _ReleaseQuery) -> int:
    """A dry run; how many are not as they were asked for."""
    from gputopo.cluster.gates import ReleaseResult  # noqa: PLC0415  start-up of all other commands

    found = _gated_pods(kube, asked)
    for pod in found:
        click.echo(f"would release {ReleaseResult(pod)}")
    return _nothing(asked, {pod.metadata.name for pod in found})


def _release(kube: Kube, asked: _ReleaseQuery) -> int:
    """Release them; how many could not be, or are not as they were asked for."""
    from gputopo.cluster.gates import release_pods as let_go  # noqa: PLC0415  start-up of all other commands

    seen: set[str] = set()
    failed: dict[str, str] = {}  # UID -> why
    for _ in range(_ROUNDS):
        found = _gated_pods(kube, asked)
        if not found:
            return _nothing(asked, seen)
        seen |= {pod.metadata.name for pod in found}
        failed = {}
        for each in let_go(kube, found):
            if each.error is None:
                click.echo(f"released {each}")
            else:
                failed[each.pod.metadata.uid] = str(each.error)
    left = _gated_pods(kube, asked)
    for pod in left:
        click.echo(f"FAILED {failed.get(pod.metadata.uid) or _AGAIN.format(pod.metadata)}")
    return len(left) + _nothing(asked, seen)


def _nothing(asked: _ReleaseQuery, seen: set[str]) -> int:
    """Say what was not there; how many that were named."""
    missing = sorted(asked.names - seen)
    for name in missing:
        click.echo(f"FAILED pods/{asked.namespace}/{name}: there is no such pod that gputopo's gate holds")
    if not missing and not seen:
        where = "" if asked.namespace is None else f" of {asked.namespace}"
        of = "" if asked.gang is None else f" of the gang {asked.gang}"
        click.echo(f"gputopo's gate holds no pod{of}{where}", err=True)
    return len(missing)


def _gated_pods(kube: Kube, asked: _ReleaseQuery) -> list[PartialPod]:
    from gputopo.cluster.gates import list_gated  # noqa: PLC0415  start-up of all other commands

    belongs = _belongs(asked)
    return [pod for pod in list_gated(kube, asked.namespace) if belongs(pod)]


def _belongs(asked: _ReleaseQuery) -> Callable[[PartialPod], bool]:
    if asked.names:
        return lambda pod: pod.metadata.name in asked.names
    return (lambda _: True) if asked.gang is None else (lambda pod: _gang(pod) == asked.gang)


def _gang(pod: PartialPod) -> str | None:
    """The name of the pod's gang, as `gputopo gangs` has it."""
    from scheduler_core.planner.gang.conventions import named_gang  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.request.pod import Metadata  # noqa: PLC0415

    metadata, group = pod.metadata, pod.spec.scheduling_group
    found = Metadata(metadata.name, metadata.namespace, metadata.uid, metadata.labels, metadata.annotations)
    wanted = named_gang(found, None if group is None else group.pod_group_name)
    return None if wanted is None else wanted.gang.name
