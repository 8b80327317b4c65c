"""``gputopo why``: why a pod is placed where it is, or is not placed. Heavy imports are in the functions.

Without ``--server`` it decides by the same code and policy as an extender that has just started: it reads the cluster
with the user's own rights, without the in-flight pods of a running extender.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli import complete
from gputopo.cli.connection import FILE_EPILOG, cluster_options, cluster_options_text, file_option, listing_cluster
from gputopo.cli.manifest import explain_manifest_gang, manifest_gang, read_manifest_pods
from gputopo.cli.output import fetch_page, output_option, print_document, print_text, token_option
from gputopo.cli.policy import read_policy_file
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error, near_names_text

if TYPE_CHECKING:
    from gputopo.cli.gangs import GangQuery
    from gputopo.kube.client import Kube
    from scheduler_core.explain import Explanation
    from scheduler_core.planner.gang.member import GangName
    from scheduler_core.policy.profiles import Policies
    from scheduler_core.request.full_pod import FullPod
    from scheduler_core.request.manifest import ManifestPod

_NO_PERMISSION = (
    "no permission to list PlacementReservations and PlacementLedgers: reservations of gangs are not counted"
)
_POD_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,252}")  # no name that a field selector does not take
_QUOTED = 60  # characters of a name that is refused
_KINDS = {"pod": ("pod", "pods", "po"), "gang": ("gang", "gangs")}


class _Options(NamedTuple):
    """The options of ``gputopo why``."""

    kubeconfig: str | None
    context: str | None
    source: str | None
    filename: str | None
    namespace: str | None
    node: str | None
    server: str | None
    planner: str | None
    policy: str | None


class PodQuery(NamedTuple):
    """The nodes to explain, and the policies."""

    node: str | None  # None: all nodes
    policies: Policies
    source: str = ""  # the options that name the cluster, for commands in hints
    planner: str | None = None  # URL of the leading planner, for its dry run


@click.command(epilog=FILE_EPILOG)
@cluster_options
@file_option
@token_option
@click.argument("what", metavar="[pod|gang NAME]", nargs=-1, shell_complete=complete.kind_and_name)
@click.option(
    "-f",
    "--filename",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="A Pod, Job, Deployment ... that does not exist yet.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete.namespaces,
    help="Namespace of the pod or the gang; default: the context's.",
)
@click.option("--node", metavar="NAME", shell_complete=complete.nodes, help="Explain this node only.")
@click.option(
    "--policy",
    metavar="FILE|-",
    shell_complete=complete.files,
    help="The extender's policy file; default: the built-in policy.",
)
@click.option("--server", metavar="URL", help="pod: query a running extender. gang: also query the leading planner.")
@click.option("--planner", metavar="URL", help="pod: also query the leading planner: what it would evict in a dry run.")
@output_option("text", "json", "yaml")
def why(what: tuple[str, ...], output: str, **flags: str | None) -> None:
    """Explain why a GPU pod or a gang is placed, or is not.

    For a pod: the rejection reason of each node, the scores, and the node that nearly fits. For a running pod: its
    GPUs, compared with the best GPUs. If the pod is evicted for a gang, or pods are evicted for it: for which gang, by
    which rule. With -f: where the pod would be placed, or why it would not; nothing is created. If several pods of the
    file form a gang: where the planner would place the gang.
    For a gang: missing members, gates that hold members, where all members would be placed now, or which member
    does not fit and which pods would have to end.

    \b
    Examples:
      gputopo why pod train-0 -n team-a
      gputopo why gang llm-7 -n team-a
      gputopo why -f job.yaml
      gputopo why pod train-0 --node gpu-7
      gputopo why pod train-0 -n team-a --from cluster.json
      gputopo why pod train-0 --policy policy.yaml
      gputopo why pod train-0 -o json | jq '.refused[] | {reason, nodes: (.nodes | length)}'
    """
    kind, name = _parse_what(what)
    options = _Options(**flags)
    if kind == "gang" and name is not None:
        _why_gang(name, options, output)
        return
    if (name is None) == (options.filename is None):
        raise click.UsageError("specify pod NAME, gang NAME, or -f FILE")
    if options.server is not None and (name is None or options.node is not None):
        raise click.UsageError("--server needs pod NAME, and excludes -f and --node")
    if options.server is not None and not options.server.startswith(("http://", "https://")):
        raise click.UsageError(f"--server {options.server!r} is not a URL; example: http://127.0.0.1:9439")
    if options.planner is not None and (name is None or options.server is not None):
        raise click.UsageError("--planner needs pod NAME, and excludes --server")
    if options.server is not None and options.source is not None:
        raise click.UsageError("--from and --server exclude each other")
    if options.server is not None and options.policy is not None:
        raise click.UsageError("--policy and --server exclude each other: a running extender has its own policy")
    if [options.filename, options.policy, options.source].count("-") > 1:
        raise click.UsageError("only one of -f, --from and --policy can be standard input")
    policies = _policies(options.policy)
    manifest = None if options.filename is None else read_manifest_pods(options.filename)
    namespace = options.namespace or namespace_of(options.kubeconfig, options.context, options.source)
    if manifest is not None:
        gang = manifest_gang(manifest, namespace, alone=options.node is not None)
        if gang is not None:
            explain_manifest_gang(manifest, gang, _gang_query(gang.name, options, policies), output)
            return
    if options.server is not None:
        explanation = _explanation_of_extender(f"{options.server.rstrip('/')}/explain/{namespace}/{name}")
    else:
        with listing_cluster(options.kubeconfig, options.context, source=options.source) as kube:
            if manifest is not None:
                explanation = _explain_manifest(kube, manifest.pod, namespace, PodQuery(options.node, policies))
            else:
                hinted = cluster_options_text(options.kubeconfig, options.context, options.source)
                query = PodQuery(options.node, policies, hinted, options.planner)
                explanation = _explain_cluster_pod(kube, (namespace, name or ""), query)
    _print(explanation, output)


def _parse_what(what: tuple[str, ...]) -> tuple[str, str | None]:
    """Return kind and name of ``pod NAME``, ``pod/NAME`` or ``gang NAME``; the name is None without arguments."""
    if not what:
        return "pod", None
    word, _, name = " ".join(what).replace("/", " ", 1).partition(" ")
    kind = next((kind for kind, words in _KINDS.items() if word in words), None)
    if kind is None or not name or " " in name or "/" in name:
        namespace, _, rest = name.replace("/", " ").partition(" ")
        hint = f"; for one of the namespace {namespace}: {kind} {rest} -n {namespace}" if kind and rest else ""
        raise click.UsageError(f"{' '.join(what)!r} is invalid: expected pod NAME or gang NAME{hint}")
    if kind == "pod" and _POD_NAME.fullmatch(name) is None:
        quoted = repr(name if len(name) <= _QUOTED else f"{name[:_QUOTED]}...")
        raise click.UsageError(
            f"{quoted} is not the name of a pod; expected at most 253 characters of a-z, 0-9, - and ."
        )
    return kind, name


def _why_gang(name: str, options: _Options, output: str) -> None:
    from gputopo.cli.gangs import why_gang  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.planner.gang.member import GangName  # noqa: PLC0415

    if options.filename is not None or options.node is not None:
        raise click.UsageError("gang NAME excludes -f and --node")
    if options.planner is not None:
        raise click.UsageError("--planner needs pod NAME: for a gang use --server")
    policies, namespace = (
        _policies(options.policy),
        options.namespace or namespace_of(options.kubeconfig, options.context, options.source),
    )
    why_gang(_gang_query(GangName(namespace, name), options, policies), output)


def _gang_query(name: GangName, options: _Options, policies: Policies) -> GangQuery:
    from gputopo.cli.gangs import GangQuery  # noqa: PLC0415  start-up of all other commands

    connection = {"kubeconfig": options.kubeconfig, "context": options.context, "source": options.source}
    return GangQuery(name.name, name.namespace, connection, options.server, policies)


def _policies(filename: str | None) -> Policies:
    from scheduler_core.policy.profiles import BUILT_IN  # noqa: PLC0415  start-up of all other commands

    return BUILT_IN if filename is None else read_policy_file(filename).policies


def namespace_of(kubeconfig: str | None, context: str | None, source: str | None) -> str:
    """Return the namespace of objects without one: of the context, or of a file ``default``."""
    if source is not None:
        return "default"
    from gputopo.kube.connect import default_namespace  # noqa: PLC0415  start-up of all other commands

    return default_namespace(kubeconfig, context)


def _explain_cluster_pod(kube: Kube, named: tuple[str, str], query: PodQuery) -> Explanation:
    from msgspec.structs import replace  # noqa: PLC0415  start-up of all other commands

    from gputopo.kube.errors import NotFoundError  # noqa: PLC0415
    from scheduler_core.cache.list_once import read_pod  # noqa: PLC0415
    from scheduler_core.planner.report.gates import gates_reason, unhandled_reason  # noqa: PLC0415

    try:
        pod = read_pod(kube, *named)
    except NotFoundError as error:
        exit_with_error(f"{error}{_near_pods_text(kube, *named)}", NO_CLUSTER)
    explanation = _explain(kube, pod, query, None if pod.is_finished else pod.spec.node_name)
    ended = (
        (f"the pod has ended ({pod.status.phase}): this explains a new pod with the same spec",)
        if pod.is_finished
        else ()
    )
    return replace(
        explanation,
        beforehand="; ".join(filter(None, (gates_reason(pod, query.source), unhandled_reason(pod)))) or None,
        scheduler_said=pod.status.scheduler_message,
        notes=(*explanation.notes, *ended),
    )


def _near_pods_text(kube: Kube, namespace: str, name: str) -> str:
    """Return "; did you mean NAME?" for the pods of the namespace."""
    from gputopo.cluster.read import read_pod_names  # noqa: PLC0415  only for a message

    return near_names_text(name, read_pod_names(kube, namespace))


def _explain_manifest(kube: Kube, manifest_pod: ManifestPod, namespace: str, query: PodQuery) -> Explanation:
    from msgspec.structs import replace  # noqa: PLC0415  start-up of all other commands

    metadata = manifest_pod.pod.metadata
    named = replace(metadata, namespace=metadata.namespace or namespace, name=metadata.name or "(without a name)")
    explanation = _explain(kube, replace(manifest_pod.pod, metadata=named), query, None)
    unread = (
        f"{key} is in the metadata of the workload, where it has no effect: set it in the pod template "
        "(spec.template.metadata)"
        for key in manifest_pod.left_out
    )
    return replace(explanation, notes=(*explanation.notes, *unread))


def _explain(kube: Kube, pod: FullPod, query: PodQuery, bound: str | None) -> Explanation:
    from msgspec.structs import replace  # noqa: PLC0415  start-up of all other commands

    from gputopo.cli.gangs import planner_states  # noqa: PLC0415
    from gputopo.labels.keys import GPU_RESOURCES, MIG_RESOURCE_PREFIX  # noqa: PLC0415
    from scheduler_core.cache.list_once import ListedFor, read_cluster, rejected_nodes, snapshot_for_pod  # noqa: PLC0415
    from scheduler_core.explain import explain, explain_malformed, group_excluded, with_reservations  # noqa: PLC0415
    from scheduler_core.planner.report.preemption_notes import gang_of_gated_pod, pod_preemption_notes  # noqa: PLC0415
    from scheduler_core.policy.cached_reader import MemoizedParser  # noqa: PLC0415
    from scheduler_core.request.pod_request import InvalidRequest  # noqa: PLC0415

    node, policies, _, planner = query
    metadata, request = pod.metadata, policies.parse_pod(pod)
    if isinstance(request, InvalidRequest):
        return explain_malformed(metadata.namespace, metadata.name, request.reason)
    if not request.profile.device_request.steps_by_resource:
        exit_with_error(
            f"pod {metadata.namespace}/{metadata.name} requests no GPU ({', '.join(GPU_RESOURCES)}, "
            f"{MIG_RESOURCE_PREFIX}*), so gputopo is not involved: see kubectl describe pod"
        )
    now = kube.now()
    parse = MemoizedParser(lambda: policies)
    cluster = read_cluster(
        kube, now, ListedFor(policies.node_policy, pod.spec.priority or 0, parse, gang_of_gated_pod(pod))
    )
    if node is not None and node not in cluster.snapshot.records:
        exit_with_error(f"node {node} not found{near_names_text(node, cluster.snapshot.records)}", NO_CLUSTER)
    rejected = {} if bound is not None else rejected_nodes(pod.spec, cluster)
    names = [name for name in cluster.snapshot.records if name not in rejected] if node is None else [node]
    table = snapshot_for_pod(metadata.uid, cluster)
    explanation = explain(request, table, names, policies.policy_for(request), now, bound)
    explanation = with_reservations(explanation, table, cluster.active_reservations or (), metadata.uid)
    unread = (_NO_PERMISSION,) if cluster.active_reservations is None else ()
    states = () if planner is None else planner_states(planner, "--planner").values()
    evictions = pod_preemption_notes(pod, (each.reservation for each in cluster.active_reservations or ()), states)
    return replace(
        explanation,
        barred=group_excluded(rejected if node is None else {}),
        notes=(*explanation.notes, *evictions, *unread),
    )


def _explanation_of_extender(url: str) -> Explanation:
    """Return the explanation of a running extender."""
    from scheduler_core.explain import NoExplanationError, parse_explanation  # noqa: PLC0415  start-up of all other commands

    try:
        return parse_explanation(fetch_page(url))
    except NoExplanationError as error:
        exit_with_error(f"{url}: not an extender of this version: {error}", NO_CLUSTER)


def _print(explanation: Explanation, output: str) -> None:
    from scheduler_core.explain import explanation_document, explanation_text  # noqa: PLC0415  start-up of all other commands

    if output != "text":
        print_document(explanation_document(explanation), output)
        return
    print_text(lambda width, ascii_only: explanation_text(explanation, width, ascii_only=ascii_only))
