"""``gputopo scheduler-config``: prints the configuration of a scheduler that calls the extender, or checks one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import click
import msgspec

from gputopo.cli.cluster import cluster_options, connected_cluster
from gputopo.cli.terminal import exit_with_error, read_bytes, write_out
from gputopo.process.decoding import decode

FINDINGS_EXIT_CODE = 1
CALLERS = ("second", "cluster")  # scheduler_core.extender.scheduler_config.Caller


class _Status(msgspec.Struct, frozen=True):
    capacity: dict[str, str | int] = {}


class _Node(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class _Nodes(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...]


@click.command("scheduler-config")
@cluster_options
@click.option(
    "--from", "source", metavar="FILE|-", help="What `kubectl get nodes -o json` printed, instead of a cluster."
)
@click.option("--resource", "named", metavar="NAME", multiple=True, help="Instead of what nodes have. May be repeated.")
@click.option(
    "--for",
    "caller",
    type=click.Choice(CALLERS),
    default=CALLERS[0],
    show_default=True,
    help="Print it for a second scheduler with the extender beside it, or for the cluster's own.",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="gputopo",
    show_default=True,
    help="Where the scheduler and its Lease, or the extender's Service, are.",
)
@click.option(
    "--check", "checked", metavar="FILE|-", help="Print what is missing or wrong in this one; 1 if anything is."
)
def scheduler_config(
    *,
    source: str | None,
    named: tuple[str, ...],
    caller: str,
    namespace: str,
    checked: str | None,
    **where: str | None,
) -> None:
    """Print the KubeSchedulerConfiguration that calls the extender, or check one that is in use.

    Which pods are sent to the extender goes by an exact list of resources: those that the nodes of the cluster have, so
    it must be made anew when nodes come to have others, as MIG profiles.

    \b
    Examples:
      gputopo scheduler-config > scheduler-config.yaml
      gputopo scheduler-config --namespace gpu-system > scheduler-config.yaml
      gputopo scheduler-config --check scheduler-config.yaml
      kubectl get nodes -o json | gputopo scheduler-config --from - --for cluster
      gputopo scheduler-config --resource nvidia.com/gpu --resource nvidia.com/mig-1g.10gb
    """
    if source is not None and named:
        raise click.UsageError("--from and --resource both say what nodes have: give one")
    if source == checked == "-":
        raise click.UsageError("standard input holds one file: name the other")
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace) is None:
        raise click.UsageError(f"--namespace {namespace!r} is no name of a namespace")
    _refuse_others(named)
    resources = frozenset(named) or _resources(
        _listed(source) if source else _nodes_of_cluster(where["kubeconfig"], where["context"])
    )
    if checked is None:
        from scheduler_core.extender.scheduler_config import Caller, render_configuration  # noqa: PLC0415  start-up of all other commands

        write_out(render_configuration(resources, Caller(caller), namespace))
        return
    findings = _findings(checked, resources)
    if findings:
        write_out("\n".join(map(str, findings)))
        sys.exit(FINDINGS_EXIT_CODE)


def _refuse_others(named: tuple[str, ...]) -> None:
    """A misspelled one would be left out, and its pods would never reach the extender."""
    from gputopo.labels.keys import GPU_RESOURCES, MIG_RESOURCE_PREFIX  # noqa: PLC0415  start-up of all other commands
    from gputopo.labels.resources import is_gpu  # noqa: PLC0415

    for name in named:
        if not is_gpu(name):
            known = f"{', '.join(GPU_RESOURCES)} and {MIG_RESOURCE_PREFIX}*"
            raise click.UsageError(f"--resource {name!r} is no resource of GPUs: those are {known}")


def _findings(name: str, resources: frozenset[str]) -> tuple[object, ...]:
    import yaml  # noqa: PLC0415  20 ms, and only a check needs it

    from scheduler_core.extender.scheduler_config_check import (  # noqa: PLC0415
        ConfigurationError,
        check_configuration,
        parse_configuration,
    )

    try:
        return check_configuration(parse_configuration(yaml.safe_load(read_bytes(name))), resources)
    except (yaml.YAMLError, ConfigurationError, ValueError, RecursionError) as error:  # ValueError: no date, no UTF-8
        exit_with_error(f"{name}: {error}")


def _resources(nodes: Iterable[_Node]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in node.status.capacity)


def _listed(name: str) -> tuple[_Node, ...]:
    try:
        return decode(read_bytes(name), _Nodes).items
    except msgspec.DecodeError as error:
        exit_with_error(f"{name}: this is no list of nodes, as `kubectl get nodes -o json` prints it: {error}")


def _nodes_of_cluster(kubeconfig: str | None, context: str | None) -> list[_Node]:
    from gputopo.kube.rbac import NODES  # noqa: PLC0415  --from needs no cluster

    with connected_cluster(kubeconfig, context) as kube:
        return kube.list_objects(NODES, _Node)
