"""``gputopo gangs`` and ``gputopo why gang``. What is heavy is imported when it is asked for.

Both read the cluster with the user's own rights and need no planner. What only a running planner knows, why it left a
gang in the queue and when it tries again, its page /gangs adds (``--server``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli.cluster import (
    NO_CLUSTER,
    cluster_options,
    connected_cluster,
    pages,
    print_document,
    print_table,
    print_text,
)
from gputopo.cli.terminal import exit_with_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scheduler_core.planner.gang.member import GangName
    from scheduler_core.planner.report.listing import GangSummary
    from scheduler_core.planner.report.model import GangExplanation
    from scheduler_core.planner.report.planner_page import PlannerGangState
    from scheduler_core.planner.report.read import GangSnapshot
    from scheduler_core.policy.profiles import Policies

_TRIALS_S = 5.0  # for all plans that are tried; what was found until then is told
_UNREAD = "gputopo: you may not read {}, so what these say of gangs is not shown"
_REFUSED = (
    "gputopo: what is refused is looked at again once what is quoted is put right: in what makes the pods, and on "
    "those that are there by kubectl annotate --overwrite pod"
)
_UNGATED = "gputopo: nobody gated {}, so their pods are placed one by one: gputopo why gang tells what to do"
_NAMED = 3  # gangs that nobody gated


@click.command()
@cluster_options
@click.option("-n", "--namespace", metavar="NAME", help="Only this namespace, instead of all.")
@click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces, as when nothing is said.")
@click.option(
    "--server", metavar="URL", help="Ask the planner that leads too: why gangs wait, and when it tries again."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="What to print.",
)
def gangs(
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    server: str | None,
    output: str,
) -> None:
    """List the gangs of a cluster: who gathers, waits, has places or runs; those in trouble first.

    MEMBERS is how many are there, of how many there will be. NODES are those that they are on or are to go to. GB/S is
    the bottleneck of the rings inside the nodes, both ways, as planned. WAITING is the time since the first member was
    created. A gang of pods without the gate, which the planner leaves alone, is not listed.

    \b
    Examples:
      gputopo gangs
      gputopo gangs -n team-a -o wide
      gputopo gangs -o json | jq '.items[] | select(.phase == "gathering") | {name, there, size}'
      kubectl -n gputopo port-forward deploy/gputopo-planner 9439 & gputopo gangs --server http://127.0.0.1:9439
    """
    import time  # noqa: PLC0415  start-up of all other commands

    from gputopo.kube.rbac import GANG_READER  # noqa: PLC0415
    from scheduler_core.planner.report.document import gang_list  # noqa: PLC0415
    from scheduler_core.planner.report.listing import list_gangs  # noqa: PLC0415
    from scheduler_core.planner.report.read import read_gangs  # noqa: PLC0415
    from scheduler_core.planner.report.tables import gang_table  # noqa: PLC0415
    from scheduler_core.policy.profiles import BUILT_IN  # noqa: PLC0415

    if namespace is not None and all_namespaces:
        raise click.UsageError(f"both --namespace {namespace} and --all-namespaces: give one of the two")
    said = {} if server is None else _planner_states(server)
    with connected_cluster(kubeconfig, context, GANG_READER) as kube:
        seen = read_gangs(kube, namespace, BUILT_IN, time.time())
    found = list_gangs(seen, time.time(), said)
    if output in ("json", "yaml"):
        print_document(gang_list(found), output)
    else:
        print_table(lambda: gang_table(found, wide=output == "wide"), bool(found), "there is no gang")
    for line in _remarks(seen, found):
        click.echo(line, err=True)


def _remarks(seen: GangSnapshot, found: Sequence[GangSummary]) -> Iterator[str]:
    """What a table of gangs does not show."""
    import time  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.planner.gang.gang import GangPhase  # noqa: PLC0415
    from scheduler_core.planner.report.leadership import no_planner_reason  # noqa: PLC0415
    from scheduler_core.planner.report.listing import gangs_without_gates  # noqa: PLC0415

    if seen.unread:
        yield _UNREAD.format(", ".join(seen.unread))
    absent = no_planner_reason(seen, time.time())
    if absent is not None:
        yield f"gputopo: {absent}"
    if any(each.phase == GangPhase.REFUSED.value for each in found):
        yield _REFUSED
    left = gangs_without_gates(seen)
    if left:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        yield _UNGATED.format(", ".join(left[:_NAMED]) + more)


class GangQuery(NamedTuple):
    """Which gang, and where to ask."""

    name: str
    namespace: str
    kubeconfig: str | None
    context: str | None
    server: str | None
    policies: Policies


def why_gang(asked: GangQuery, output: str) -> None:
    """Tell why a gang is where it is, or is nowhere; ends the program where there is none of that name."""
    import time  # noqa: PLC0415  start-up of all other commands

    from gputopo.kube.rbac import GANG_READER  # noqa: PLC0415
    from scheduler_core.planner.gang.gang import GangPhase  # noqa: PLC0415
    from scheduler_core.planner.gang.member import GangName  # noqa: PLC0415
    from scheduler_core.planner.packing.model import LEVELS  # noqa: PLC0415
    from scheduler_core.planner.report.explain import GangQuestion, NoGangError, explain_gang  # noqa: PLC0415
    from scheduler_core.planner.report.leadership import planner_levels  # noqa: PLC0415
    from scheduler_core.planner.report.prospects import PlanRules  # noqa: PLC0415
    from scheduler_core.planner.report.read import read_all, read_opted_in  # noqa: PLC0415

    name = GangName(asked.namespace, asked.name)
    said = None if asked.server is None else _planner_states(asked.server).get(name)
    with connected_cluster(asked.kubeconfig, asked.context, GANG_READER) as kube:
        seen = read_all(kube, asked.policies, time.time())
        gang = seen.view.gang_members.get_gang(name)
        elsewhere = gang is not None and gang.phase is GangPhase.ELSEWHERE
        opted_in = read_opted_in(kube, asked.namespace) if elsewhere else None
    until = time.monotonic() + _TRIALS_S
    rules = PlanRules(asked.policies, planner_levels(seen) or LEVELS, lambda: time.monotonic() > until)
    try:
        told = explain_gang(seen, GangQuestion(name, rules, said, opted_in), time.time())
    except NoGangError as error:
        exit_with_error(str(error), NO_CLUSTER)
    _print(told, output)


def _planner_states(server: str) -> Mapping[GangName, PlannerGangState]:
    """What a running planner says of all gangs."""
    # As everywhere here: start-up of all other commands.
    from scheduler_core.planner.report.planner_page import NotAPlannerError, parse_planner_page  # noqa: PLC0415

    if not server.startswith(("http://", "https://")):
        raise click.UsageError(f"--server {server!r}: write a URL like http://127.0.0.1:9439")
    url = f"{server.rstrip('/')}/gangs"
    try:
        return {name: said for text in pages(url) for name, said in parse_planner_page(text).items()}
    except NotAPlannerError as error:
        exit_with_error(f"{url}: {error}", NO_CLUSTER)


def _print(told: GangExplanation, output: str) -> None:
    from scheduler_core.planner.report.document import gang_explanation_document  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.planner.report.text import gang_explanation_text  # noqa: PLC0415

    if output != "text":
        print_document(gang_explanation_document(told), output)
        return
    print_text(lambda width, ascii_only: gang_explanation_text(told, width, ascii_only=ascii_only))
