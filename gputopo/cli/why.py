"""``gputopo why``: why a pod goes where it goes, or nowhere. What is heavy is imported when it is asked for.

Without ``--server`` it decides by the same code and policy as an extender that has just started: it reads the cluster
with the user's own rights, and knows nothing of what a running extender has promised to pods in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli.cluster import NO_CLUSTER, cluster_options, connected_cluster, fetch_page, print_document, print_text
from gputopo.cli.terminal import exit_with_error, read_bytes

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from scheduler_core.explain import Explanation
    from scheduler_core.policy.profiles import Policies
    from scheduler_core.request.full_pod import FullPod
    from scheduler_core.request.manifest import ManifestPod

_UNREAD = "you may not list PlacementReservations and PlacementLedgers, so what planners keep for gangs is not counted"
_KINDS = {"pod": ("pod", "pods", "po"), "gang": ("gang", "gangs")}


class _Options(NamedTuple):
    """Where to ask, and about what."""

    kubeconfig: str | None
    context: str | None
    filename: str | None
    namespace: str | None
    node: str | None
    server: str | None
    policy: str | None


class PodQuery(NamedTuple):
    """What is looked at, and by which rules."""

    node: str | None  # None: all
    policies: Policies


@click.command()
@cluster_options
@click.argument("what", metavar="[pod|gang NAME]", nargs=-1)
@click.option("-f", "--filename", metavar="FILE|-", help="A pod that does not exist yet, or a Job, Deployment ...")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace, instead of the context's.")
@click.option("--node", metavar="NAME", help="Look at this node only.")
@click.option("--policy", metavar="FILE|-", help="Decide by this policy file, as the extender does; else as built in.")
@click.option("--server", metavar="URL", help="Of a pod: what a running extender says. Of a gang: what a planner adds.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="What to print.",
)
def why(what: tuple[str, ...], output: str, **options: str | None) -> None:
    """Tell why a GPU pod goes where it goes, or nowhere: each node's reason, the scores, and the nearest miss.

    Of a pod that runs it tells what it got, next to the best. With -f it tells where a pod would go, or why it would
    not; nothing is created. Of a gang it tells who is not there, who is held by what, where all would go now, or which
    member is missing what, and what would have to end.

    \b
    Examples:
      gputopo why pod train-0 -n team-a
      gputopo why gang llm-7 -n team-a
      gputopo why -f job.yaml
      gputopo why pod train-0 --node gpu-7
      gputopo why pod train-0 --policy policy.yaml
      gputopo why pod train-0 -o json | jq '.refused[] | {reason, nodes: (.nodes | length)}'
    """
    kind, name = _named(what)
    asked = _Options(**options)
    if kind == "gang" and name is not None:
        _why_gang(name, asked, output)
        return
    if (name is None) == (asked.filename is None):
        raise click.UsageError("say which: pod NAME, gang NAME, or -f FILE")
    if asked.server is not None and (name is None or asked.node is not None):
        raise click.UsageError("a running extender is asked about a pod that exists, and about all nodes")
    if asked.server is not None and not asked.server.startswith(("http://", "https://")):
        raise click.UsageError(f"--server {asked.server!r}: write a URL like http://127.0.0.1:9439")
    if asked.server is not None and asked.policy is not None:
        raise click.UsageError("a running extender has a policy of its own: leave out --policy")
    if asked.filename == asked.policy == "-":
        raise click.UsageError("standard input holds one file: name the other")
    policies = _policies(asked.policy)
    written = None if asked.filename is None else _written(asked.filename)
    namespace = asked.namespace or _namespace(asked)
    if asked.server is not None:
        told = _explanation_of_extender(f"{asked.server.rstrip('/')}/explain/{namespace}/{name}")
    else:
        with connected_cluster(asked.kubeconfig, asked.context) as kube:
            if written is not None:
                told = _explain_manifest(kube, written, namespace, PodQuery(asked.node, policies))
            else:
                told = _explain_cluster_pod(kube, (namespace, name or ""), PodQuery(asked.node, policies))
    _print(told, output)


def _named(what: tuple[str, ...]) -> tuple[str, str | None]:
    """``pod NAME`` or ``pod/NAME``, as kubectl has them, or ``gang NAME``: the kind and the name, if there is one."""
    if not what:
        return "pod", None
    word, _, name = " ".join(what).replace("/", " ", 1).partition(" ")
    kind = next((kind for kind, words in _KINDS.items() if word in words), None)
    if kind is None or not name or " " in name:
        raise click.UsageError(f"{' '.join(what)!r} is not understood: say pod NAME or gang NAME")
    return kind, name


def _why_gang(name: str, asked: _Options, output: str) -> None:
    from gputopo.cli.gangs import GangQuery, why_gang  # noqa: PLC0415  start-up of all other commands

    if asked.filename is not None or asked.node is not None:
        raise click.UsageError("a gang is asked about by its name, and all nodes are looked at: no -f, no --node")
    policies, namespace = _policies(asked.policy), asked.namespace or _namespace(asked)
    why_gang(GangQuery(name, namespace, asked.kubeconfig, asked.context, asked.server, policies), output)


def _written(filename: str) -> ManifestPod:
    """The pod in a file that asks for GPUs, of several the first."""
    from scheduler_core.request.manifest import ManifestError, parse_manifest  # noqa: PLC0415  YAML: 20 ms, and only -f needs it

    try:
        pods = parse_manifest(read_bytes(filename).decode())
    except (ManifestError, UnicodeDecodeError) as error:
        exit_with_error(f"{filename}: {error}")
    return next((pod for pod in pods if _wants_gpus(pod.pod)), pods[0])


def _policies(filename: str | None) -> Policies:
    from scheduler_core.policy.profiles import BUILT_IN  # noqa: PLC0415  start-up of all other commands

    if filename is None:
        return BUILT_IN
    from scheduler_core.policy.file import PolicyError, parse_policy_file  # noqa: PLC0415  0.2 s, and only --policy needs it

    try:
        return parse_policy_file(read_bytes(filename).decode(), filename).policies
    except UnicodeDecodeError as error:
        exit_with_error(f"{filename}: this is no text: {error}")
    except PolicyError as error:
        exit_with_error(str(error))


def _wants_gpus(pod: FullPod) -> bool:
    """Whether it is any of our business; one that asks for GPUs in a way that is not understood is."""
    from scheduler_core.request.pod_request import PodRequest, parse_request  # noqa: PLC0415  start-up of all other commands

    found = parse_request(pod)
    return not isinstance(found, PodRequest) or bool(found.profile.device_request.steps_by_resource)


def _namespace(asked: _Options) -> str:
    from gputopo.kube.connect import default_namespace  # noqa: PLC0415  start-up of all other commands

    return default_namespace(asked.kubeconfig, asked.context)


def _explain_cluster_pod(kube: Kube, named: tuple[str, str], judging: PodQuery) -> Explanation:
    from msgspec.structs import replace  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.cache.list_once import read_pod  # noqa: PLC0415
    from scheduler_core.planner.report.gates import gates_reason  # noqa: PLC0415
    from scheduler_core.planner.report.read import read_gang_pod as read_member  # noqa: PLC0415

    pod, member = read_pod(kube, *named), read_member(kube, *named)
    told = _explain(kube, pod, judging, None if pod.is_finished else pod.spec.node_name)
    ended = (f"it has ended ({pod.status.phase}), so this is about another one like it",) if pod.is_finished else ()
    before = None if member is None else gates_reason(member)
    return replace(told, beforehand=before, scheduler_said=pod.status.scheduler_message, notes=(*told.notes, *ended))


def _explain_manifest(kube: Kube, written: ManifestPod, namespace: str, judging: PodQuery) -> Explanation:
    from msgspec.structs import replace  # noqa: PLC0415  start-up of all other commands

    metadata = written.pod.metadata
    named = replace(metadata, namespace=metadata.namespace or namespace, name=metadata.name or "(without a name)")
    told = _explain(kube, replace(written.pod, metadata=named), judging, None)
    unread = (
        f"{key} is said in the metadata of what makes the pod, where nobody reads it: pods have it from the template "
        "(spec.template.metadata)"
        for key in written.left_out
    )
    return replace(told, notes=(*told.notes, *unread))


def _explain(kube: Kube, pod: FullPod, judging: PodQuery, bound: str | None) -> Explanation:
    import time  # noqa: PLC0415  start-up of all other commands

    from msgspec.structs import replace  # noqa: PLC0415

    from gputopo.labels.keys import GPU_RESOURCES, MIG_RESOURCE_PREFIX  # noqa: PLC0415
    from scheduler_core.cache.list_once import read_cluster, rejected_nodes, table_for_pod  # noqa: PLC0415
    from scheduler_core.explain import explain, explain_malformed, group_excluded, with_reservations  # noqa: PLC0415
    from scheduler_core.request.pod_request import InvalidRequest  # noqa: PLC0415

    node, policies = judging
    metadata, request = pod.metadata, policies.parse_pod(pod)
    if isinstance(request, InvalidRequest):
        return explain_malformed(metadata.namespace, metadata.name, request.reason)
    if not request.profile.device_request.steps_by_resource:
        exit_with_error(
            f"pod {metadata.namespace}/{metadata.name} asks for no GPU ({', '.join(GPU_RESOURCES)}, "
            f"{MIG_RESOURCE_PREFIX}*), so nobody asks gputopo: kubectl describe pod tells what kube-scheduler says"
        )
    now = time.time()
    cluster = read_cluster(kube, now, policies.node_policy)
    if node is not None and node not in cluster.table.records:
        exit_with_error(f"there is no node {node}", NO_CLUSTER)
    left_out = {} if bound is not None else rejected_nodes(pod.spec, cluster)
    names = [name for name in cluster.table.records if name not in left_out] if node is None else [node]
    table = table_for_pod(metadata.uid, cluster)
    told = explain(request, table, names, policies.profile_for(request).policy, now, bound)
    told = with_reservations(told, table, cluster.active_reservations or (), metadata.uid)
    unread = (_UNREAD,) if cluster.active_reservations is None else ()
    return replace(told, barred=group_excluded(left_out if node is None else {}), notes=(*told.notes, *unread))


def _explanation_of_extender(url: str) -> Explanation:
    """What a running extender says."""
    from scheduler_core.explain import NoExplanationError, parse_explanation  # noqa: PLC0415  start-up of all other commands

    try:
        return parse_explanation(fetch_page(url))
    except NoExplanationError as error:
        exit_with_error(f"{url} is no extender of this version: {error}", NO_CLUSTER)


def _print(told: Explanation, output: str) -> None:
    from scheduler_core.explain import explanation_document, explanation_text  # noqa: PLC0415  start-up of all other commands

    if output != "text":
        print_document(explanation_document(told), output)
        return
    print_text(lambda width, ascii_only: explanation_text(told, width, ascii_only=ascii_only))
