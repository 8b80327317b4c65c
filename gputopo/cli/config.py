"""``gputopo scheduler-config``: print or check the configuration of a scheduler that calls the extender."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
import msgspec

from gputopo.cli import complete
from gputopo.cli.connection import cluster_options, connected_cluster
from gputopo.cli.terminal import exit_with_error, read_packed, read_text, write_out
from gputopo.process.decoding import decode

FINDINGS_EXIT_CODE = 1
CALLERS = ("second", "cluster")  # scheduler_core.extender.scheduler_config.Caller


class _NodeCapacity(msgspec.Struct, frozen=True):
    capacity: dict[str, str | int] = {}


class _NodeWithCapacity(msgspec.Struct, frozen=True):
    status: _NodeCapacity = _NodeCapacity()


class _Nodes(msgspec.Struct, frozen=True):
    items: tuple[_NodeWithCapacity, ...]


def _print_policy(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from scheduler_core.policy.quality_and_cost import QUALITY_AND_COST_POLICY  # noqa: PLC0415  start-up of all other commands

        write_out(QUALITY_AND_COST_POLICY)
        context.exit()


@click.command("scheduler-config")
@cluster_options
@click.option(
    "--from",
    "source",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="Read the nodes from the output of `kubectl get nodes -o json` instead of the cluster.",
)
@click.option(
    "--resource",
    "named",
    metavar="NAME",
    multiple=True,
    help="Use this resource instead of those of the nodes. Repeatable.",
)
@click.option(
    "--for",
    "caller",
    type=click.Choice(CALLERS),
    default=CALLERS[0],
    show_default=True,
    help="second: a second scheduler, with the extender in its pod. cluster: the cluster's own scheduler.",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="gputopo",
    show_default=True,
    help="Namespace of the scheduler and its Lease, or of the extender's Service.",
)
@click.option(
    "--quality-and-cost",
    is_flag=True,
    help="Add the scheduler names gpu-aware-scheduler (fast) and cost-optimized-scheduler (cheap).",
)
@click.option(
    "--policy",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_policy,
    help="Print the policy file for --quality-and-cost instead, and exit.",
)
@click.option(
    "--check",
    "checked",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="Check this file instead and print its errors; exit code 1 if it has any.",
)
def scheduler_config(
    *,
    source: str | None,
    named: tuple[str, ...],
    caller: str,
    namespace: str,
    quality_and_cost: bool,
    checked: str | None,
    **where: str | None,
) -> None:
    """Print or check the KubeSchedulerConfiguration.

    This is the configuration of a scheduler that calls the extender. The scheduler calls it for pods that request a
    resource of an exact list: the GPU resources of the cluster's nodes. Print the configuration again when nodes get
    other resources, such as MIG profiles.

    One scheduler can serve several names. With --quality-and-cost, a pod chooses between fast and cheap placement by
    its schedulerName; the extender needs the policy file that --policy prints.

    \b
    Examples:
      gputopo scheduler-config > scheduler-config.yaml
      gputopo scheduler-config --namespace gpu-system > scheduler-config.yaml
      gputopo scheduler-config --check scheduler-config.yaml
      gputopo scheduler-config --quality-and-cost > scheduler-config.yaml
      gputopo scheduler-config --policy > policy.yaml
      kubectl get nodes -o json | gputopo scheduler-config --from - --for cluster
      gputopo scheduler-config --resource nvidia.com/gpu --resource nvidia.com/mig-1g.10gb
    """
    if source is not None and named:
        raise click.UsageError("--from and --resource exclude each other")
    if source == checked == "-":
        raise click.UsageError("--from and --check cannot both be standard input")
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace) is None:
        raise click.UsageError(f"--namespace {namespace!r} is not a valid namespace name")
    _reject_other_resources(named)
    # Before the cluster is read: an error in the name of the file needs no cluster.
    text = None if checked is None else read_text(checked, "a KubeSchedulerConfiguration in YAML or JSON")
    resources = frozenset(named) or _resources(
        _nodes_of_file(source) if source else _nodes_of_cluster(where["kubeconfig"], where["context"])
    )
    if checked is None or text is None:
        from scheduler_core.extender.scheduler_config import Caller, render_configuration  # noqa: PLC0415  start-up of all other commands

        write_out(render_configuration(resources, Caller(caller), namespace, quality_and_cost=quality_and_cost))
        return
    findings = _findings(checked, text, resources)
    if findings:
        write_out("\n".join(map(str, findings)))
        errors = "1 error" if len(findings) == 1 else f"{len(findings)} errors"
        exit_with_error(f"{checked}: {errors}", FINDINGS_EXIT_CODE)


def _reject_other_resources(named: tuple[str, ...]) -> None:
    """Reject a misspelled resource: kube-scheduler would not send its pods to the extender."""
    from gputopo.labels.keys import GPU_RESOURCES, MIG_RESOURCE_PREFIX  # noqa: PLC0415  start-up of all other commands
    from gputopo.labels.resources import is_gpu  # noqa: PLC0415

    for name in named:
        if not is_gpu(name):
            expected = f"{', '.join(GPU_RESOURCES)} and {MIG_RESOURCE_PREFIX}*"
            raise click.UsageError(f"--resource {name!r} is not a GPU resource; expected: {expected}")


def _findings(name: str, text: str, resources: frozenset[str]) -> tuple[object, ...]:
    import yaml  # noqa: PLC0415  20 ms, and only a check needs it

    from gputopo.process.yaml_loader import load_yaml  # noqa: PLC0415
    from scheduler_core.extender.scheduler_config_check import (  # noqa: PLC0415
        ConfigurationError,
        check_configuration,
        parse_configuration,
    )

    try:
        return check_configuration(parse_configuration(load_yaml(text)), resources)
    except (yaml.YAMLError, ConfigurationError, ValueError, RecursionError) as error:  # ValueError: not a date
        exit_with_error(f"{name}: {error}")


def _resources(nodes: Iterable[_NodeWithCapacity]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in node.status.capacity)


def _nodes_of_file(name: str) -> tuple[_NodeWithCapacity, ...]:
    try:
        return decode(read_packed(name), _Nodes).items
    except msgspec.DecodeError as error:
        exit_with_error(f"{name}: not the output of `kubectl get nodes -o json`: {error}")


def _nodes_of_cluster(kubeconfig: str | None, context: str | None) -> list[_NodeWithCapacity]:
    from gputopo.kube.rbac import NODES  # noqa: PLC0415  --from needs no cluster

    with connected_cluster(kubeconfig, context) as kube:
        return kube.list_objects(NODES, _NodeWithCapacity)
