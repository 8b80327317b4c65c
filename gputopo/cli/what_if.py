"""``gputopo what-if``: where a pod would be placed now. Heavy imports are in the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gputopo.cli import complete
from gputopo.cli.connection import FILE_EPILOG, cluster_options, cluster_options_text, file_option, listing_cluster
from gputopo.cli.manifest import explain_manifest_gang, manifest_gang, read_manifest_pods
from gputopo.cli.output import output_option, print_document
from gputopo.cli.policy import read_policy_file
from gputopo.cli.terminal import exit_with_error, write_out
from gputopo.cli.why import namespace_of

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from scheduler_core.policy.profiles import Policies
    from scheduler_core.request.full_pod import FullPod
    from scheduler_core.request.pod_request import PodRequest
    from scheduler_core.simulation.what_if import WhatIf


@click.command("what-if", epilog=FILE_EPILOG)
@cluster_options
@click.option(
    "-f",
    "--filename",
    metavar="FILE|-",
    required=True,
    shell_complete=complete.files,
    help="A Pod, Job, Deployment ...",
)
@file_option
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="The extender's policy file; the profile that matches the pod applies. Default: the built-in policy.",
)
@output_option("text", "json", "yaml")
def what_if(
    *,
    kubeconfig: str | None,
    context: str | None,
    filename: str,
    source: str | None,
    policy_file: str | None,
    output: str,
) -> None:
    """Show where a pod would be placed now, and on which GPUs.

    Nothing is created. CPU, memory and volumes are ignored. `gputopo why` explains the reasons. If several pods of the
    file form a gang, this is the answer of `gputopo why -f`: where the planner would place the gang.

    \b
    Examples:
      gputopo what-if -f pod.yaml
      gputopo what-if -f pod.yaml --policy policy.yaml
      gputopo what-if -f pod.yaml --from cluster.json
    """
    if [filename, source, policy_file].count("-") > 1:
        raise click.UsageError("only one of -f, --from and --policy can be standard input")
    from scheduler_core.policy.profiles import BUILT_IN  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.request.pod_request import InvalidRequest  # noqa: PLC0415

    policies = BUILT_IN if policy_file is None else read_policy_file(policy_file).policies
    manifest = read_manifest_pods(filename)
    request = policies.parse_pod(manifest.pod.pod)
    if isinstance(request, InvalidRequest):
        exit_with_error(f"{filename}: {request.reason}")
    if not request.profile.device_request.steps_by_resource:
        exit_with_error(f"{filename}: pod {manifest.pod.pod.metadata.name} requests no GPU")
    connection = {"kubeconfig": kubeconfig, "context": context, "source": source}
    if len(manifest.pods) > 1 and (gang := manifest_gang(manifest, namespace_of(**connection))) is not None:
        from gputopo.cli.gangs import GangQuery  # noqa: PLC0415  only for a gang

        query = GangQuery(gang.name.name, gang.name.namespace, connection, None, policies)
        explain_manifest_gang(manifest, gang, query, output)
        return
    with listing_cluster(kubeconfig, context, source=source) as kube:
        answer = _placements(kube, manifest.pod.pod, request, policies)
    if output != "text":
        from msgspec import to_builtins  # noqa: PLC0415

        print_document(to_builtins(answer), output)
        return
    from shlex import quote  # noqa: PLC0415

    from scheduler_core.simulation.what_if import render_text  # noqa: PLC0415

    options = cluster_options_text(**connection)
    options += "" if policy_file is None else f" --policy {quote(policy_file)}"
    write_out(render_text(answer, f"gputopo why -f {quote(filename)}{options}"))


def _placements(kube: Kube, pod: FullPod, request: PodRequest, policies: Policies) -> WhatIf:
    from scheduler_core.cache.list_once import ListedFor, read_cluster, rejected_nodes  # noqa: PLC0415
    from scheduler_core.policy.cached_reader import MemoizedParser  # noqa: PLC0415
    from scheduler_core.simulation.what_if import what_if as possible_placements  # noqa: PLC0415

    listed_for = ListedFor(policies.node_policy, pod.spec.priority or 0, MemoizedParser(lambda: policies))
    cluster = read_cluster(kube, kube.now(), listed_for)
    rejected = rejected_nodes(pod.spec, cluster)
    names = [name for name in cluster.snapshot.records if name not in rejected]
    return possible_placements(request, cluster.snapshot, names, policies.policy_for(request))
