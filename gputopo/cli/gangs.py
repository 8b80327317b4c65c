"""``gputopo gangs`` and ``gputopo why gang``. Heavy imports are in the functions.

Both read the cluster with the user's own rights and need no planner. ``--server`` adds the state that only a running
planner has, from its page /gangs: why a gang is still in the queue, and when the planner retries it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli import complete
from gputopo.cli.connection import (
    FILE_EPILOG,
    cluster_options,
    cluster_options_text,
    connected_cluster,
    file_option,
    listing_cluster,
)
from gputopo.cli.output import (
    fetch_pages,
    no_headers_option,
    output_option,
    print_document,
    print_table,
    print_text,
    token_option,
)
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error
from gputopo.cli.watch import Watched, check_watch, watch_option, watch_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gputopo.kube.client import Kube
    from gputopo.render.report import Table
    from scheduler_core.planner.gang.member import GangName
    from scheduler_core.planner.report.listing import GangSummary
    from scheduler_core.planner.report.model import GangExplanation
    from scheduler_core.planner.report.planner_page import PlannerGangState
    from scheduler_core.planner.report.read import GangSnapshot
    from scheduler_core.policy.profiles import Policies
    from scheduler_core.request.full_pod import FullPod

_TRIAL_PLANS_S = 5.0  # limit for all trial plans together; after it, only the results so far are printed
_NO_PERMISSION = "gputopo: no permission to read {}: what they declare about gangs is not shown"
_NOT_IN_FILE = "gputopo: the file has no {}: what they declare about gangs is not shown"
_REFUSED_HINT = (
    "gputopo: to retry a refused gang, correct the quoted value in the workload's pod template, and on existing pods "
    "with kubectl annotate --overwrite pod"
)
_WITHOUT_GATE = (
    "gputopo: {}: no scheduling gate, so their pods are placed one by one; see `gputopo why gang NAME -n NAMESPACE{}`"
)
_MAX_NAMED = 3  # gangs without gates that are listed by name


@click.command(epilog=FILE_EPILOG)
@cluster_options
@file_option
@token_option
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete.namespaces,
    help="Only this namespace; default: all namespaces.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces (default).")
@click.option(
    "--server", metavar="URL", help="Also query the leading planner: why gangs wait, and when it retries them."
)
@output_option("table", "wide", "json", "yaml")
@no_headers_option
@watch_option
def gangs(
    *,
    namespace: str | None,
    all_namespaces: bool,
    server: str | None,
    output: str,
    watch: bool,
    **connection: str | None,
) -> None:
    """List the gangs of a cluster, their phases and problems.

    Gangs with problems come first.

    MEMBERS is the number of members that exist, of the gang's size. NODES is the number of nodes of its members,
    planned or bound. GB/S is the planned ring bandwidth inside the nodes, in both directions, of the slowest node.
    WAITING is the time since the gang was complete, or since its first member was created while members are missing.
    Gangs whose pods lack gputopo's scheduling gate are not listed: the planner ignores them. A narrow terminal leaves
    out PRIORITY, GB/S, DOMAIN, NODES, GPUS, WAITING, MEMBERS, in this order; `-o wide` prints all columns, and one
    line for each row.

    \b
    Examples:
      gputopo gangs
      gputopo gangs -n team-a -o wide
      gputopo gangs -w
      gputopo gangs --from cluster.json
      gputopo gangs -o json | jq '.items[] | select(.phase == "waiting for members") | {name, there, size}'
      kubectl -n gputopo port-forward deploy/gputopo-planner 9439 & gputopo gangs --server http://127.0.0.1:9439
    """
    from gputopo.kube.rbac import GANG_READER  # noqa: PLC0415

    if namespace is not None and all_namespaces:
        raise click.UsageError(f"--namespace {namespace} and --all-namespaces exclude each other")
    check_watch(watch, output, connection["source"])
    if watch:
        with connected_cluster(**connection, role=GANG_READER) as kube:
            watch_table(_watched_gangs(kube, namespace, server, wide=output == "wide"))
    states = {} if server is None else planner_states(server)
    with listing_cluster(**connection, role=GANG_READER) as kube:
        from scheduler_core.planner.report.document import gang_list  # noqa: PLC0415
        from scheduler_core.planner.report.listing import list_gangs  # noqa: PLC0415
        from scheduler_core.planner.report.read import read_gangs  # noqa: PLC0415
        from scheduler_core.planner.report.tables import gang_table  # noqa: PLC0415

        now = kube.now()
        seen = read_gangs(kube, namespace, now)
    found = list_gangs(seen, now, states)
    if output in ("json", "yaml"):
        print_document(gang_list(found), output)
    else:
        wide = output == "wide"
        print_table(lambda: gang_table(found, wide=wide), bool(found), "no gangs found", wide=wide)
    if seen.unread:
        unread = _NO_PERMISSION if connection["source"] is None else _NOT_IN_FILE
        click.echo(unread.format(", ".join(seen.unread)), err=True)
    for line in _remarks(seen, found, now, cluster_options_text(**connection)):
        click.echo(line, err=True)


def _watched_gangs(kube: Kube, namespace: str | None, server: str | None, *, wide: bool) -> Watched:
    import time  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.planner.report.listing import list_gangs  # noqa: PLC0415
    from scheduler_core.planner.report.read import read_gangs  # noqa: PLC0415
    from scheduler_core.planner.report.tables import gang_table  # noqa: PLC0415

    def read_table() -> Table:
        states = {} if server is None else planner_states(server)
        seen = read_gangs(kube, namespace, time.time())
        return gang_table(list_gangs(seen, time.time(), states), wide=wide)

    return Watched(read_table, keys=2, ages=frozenset({"WAITING"}), if_empty="no gangs found", wide=wide)


def _remarks(seen: GangSnapshot, found: Sequence[GangSummary], now: float, source: str) -> Iterator[str]:
    """Yield the remarks that go to standard error, below the table. ``source``: the options that name the cluster."""
    from gputopo.render.report import listed  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.planner.gang.gang import GangPhase  # noqa: PLC0415
    from scheduler_core.planner.report.leadership import no_planner_reason  # noqa: PLC0415
    from scheduler_core.planner.report.listing import gangs_without_gates  # noqa: PLC0415

    no_planner = no_planner_reason(seen, now)
    if no_planner is not None:
        yield f"gputopo: {no_planner}"
    if any(each.phase == GangPhase.REFUSED.value for each in found):
        yield _REFUSED_HINT
    ungated = gangs_without_gates(seen)
    if ungated:
        yield _WITHOUT_GATE.format(listed(ungated, _MAX_NAMED), source)


class GangQuery(NamedTuple):
    """The gang to explain, and the connection."""

    name: str
    namespace: str
    connection: dict[str, str | None]
    server: str | None
    policies: Policies


def why_gang(query: GangQuery, output: str, new_pods: Sequence[FullPod] = ()) -> None:
    """Explain a gang. Exit with an error if no gang has that name.

    ``new_pods``: of a manifest; they count as if they were created now, unless the gang exists.
    """
    import time  # noqa: PLC0415  start-up of all other commands

    from gputopo.kube.rbac import GANG_READER  # noqa: PLC0415
    from scheduler_core.planner.gang.member import GangName  # noqa: PLC0415

    name = GangName(query.namespace, query.name)
    state = None if query.server is None else planner_states(query.server).get(name)
    with listing_cluster(**query.connection, role=GANG_READER) as kube:
        from scheduler_core.planner.gang.gang import GangPhase  # noqa: PLC0415
        from scheduler_core.planner.packing.model import LEVELS  # noqa: PLC0415
        from scheduler_core.planner.report.explain import GangQuestion, NoGangError, explain_gang  # noqa: PLC0415
        from scheduler_core.planner.report.leadership import planner_levels  # noqa: PLC0415
        from scheduler_core.planner.report.prospects import PlanRules  # noqa: PLC0415
        from scheduler_core.planner.report.read import read_all, read_opted_in  # noqa: PLC0415

        now = kube.now()
        seen = read_all(kube, query.policies, now)
        gang = seen.view.gang_members.get_gang(name)
        if new_pods:
            _add_new_pods(seen, query, new_pods, now)
        elsewhere = gang is not None and gang.phase is GangPhase.ELSEWHERE
        opted_in = read_opted_in(kube, query.namespace) if elsewhere else None
    deadline = time.monotonic() + _TRIAL_PLANS_S
    rules = PlanRules(query.policies, planner_levels(seen) or LEVELS, lambda: time.monotonic() > deadline)
    try:
        explanation = explain_gang(
            seen, GangQuestion(name, rules, state, opted_in, cluster_options_text(**query.connection)), now
        )
    except NoGangError as error:
        exit_with_error(str(error), NO_CLUSTER)
    _print(explanation, output)


def _add_new_pods(seen: GangSnapshot, query: GangQuery, pods: Sequence[FullPod], now: float) -> None:
    """Add pods of a manifest to the snapshot, unless pods of their gang exist: then only these are explained."""
    from scheduler_core.planner.gang.member import GangName  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.planner.report.manifest_gang import new_pods  # noqa: PLC0415

    if seen.view.gang_members.get_gang(GangName(query.namespace, query.name)) is not None:
        click.echo(
            f"gputopo: the gang {query.namespace}/{query.name} exists already: its pods are explained, and not "
            "those of the file",
            err=True,
        )
        return
    seen.view.apply_batch(new_pods(pods, query.namespace, now, query.policies.parse_pod), now)


def planner_states(server: str, option: str = "--server") -> Mapping[GangName, PlannerGangState]:
    """Return the states of all gangs, from the page of a running planner."""
    from scheduler_core.planner.report.planner_page import NotAPlannerError, parse_planner_page  # noqa: PLC0415

    if not server.startswith(("http://", "https://")):
        raise click.UsageError(f"{option} {server!r} is not a URL; example: http://127.0.0.1:9439")
    url = f"{server.rstrip('/')}/gangs"
    try:
        return {name: state for text in fetch_pages(url) for name, state in parse_planner_page(text).items()}
    except NotAPlannerError as error:
        exit_with_error(f"{url}: {error}", NO_CLUSTER)


def _print(explanation: GangExplanation, output: str) -> None:
    from scheduler_core.planner.report.document import gang_explanation_document  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.planner.report.text import gang_explanation_text  # noqa: PLC0415

    if output != "text":
        print_document(gang_explanation_document(explanation), output)
        return
    print_text(lambda width, ascii_only: gang_explanation_text(explanation, width, ascii_only=ascii_only))
