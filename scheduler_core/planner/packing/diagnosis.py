"""Why a gang has no place: which member is missing what. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gputopo.labels.reasons import Reason
from gputopo.render.wording import part
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.planner.packing.groups import MemberGroups
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.search import Search
from scheduler_core.planner.packing.stock import Packing
from scheduler_core.planner.packing.topology_domains import domain_of

AVOIDED_REASON = "a member of the gang did not start there shortly before"
OUTSIDE_DOMAIN_REASON = "there is room on other nodes, but not in the same"
NO_NODE_REASON = "no node offers what it asks for"

MissingReasons = tuple[tuple[str, Reason | str], ...]


def diagnosis_summary(placed: int, crew: MemberGroups) -> str:
    """In one line."""
    where = "" if crew.required is None else f" in one {crew.required}"
    fits = "no member fits" if crew.minimum == 1 else part(placed, crew.minimum, "fits", "fit")
    return f"{fits} at once{where}"


def missing_by_member(
    crew: MemberGroups, packing: Packing, search: Search, view: NodeView, options: PlanOptions
) -> MissingReasons:
    """The members without a place, and what most nodes lack that have such devices at all."""
    found: list[tuple[str, Reason | str]] = []
    for at, group in enumerate(crew.groups):
        left = group.members[sum(pick.load[at] for pick in packing.picks) :]
        if left:
            counts = Counter([*_of_nodes(at, crew, search, view, options), *_of_picks(at, packing, search)])
            why = min(counts, key=lambda each: (-counts[each], _text(each)), default=NO_NODE_REASON)
            found += [(member.name, why) for member in left]
    return tuple(found)


def _of_nodes(
    at: int, crew: MemberGroups, search: Search, view: NodeView, options: PlanOptions
) -> Iterator[Reason | str]:
    """What stands against each node that has such devices, with nobody else of the gang there."""
    class_of = {site.name: site.of for site in search.sites}
    asked = {resource for resource, _ in crew.groups[at].kind.profile.device_request.totals}
    one = tuple(int(kind == at) for kind in range(len(crew.groups)))
    for name, state in view.table.states.items():
        node = view.rules.get(name)
        if node is None or asked.isdisjoint(resource for resource, _ in state.allocatable):
            continue
        bar = (
            AVOIDED_REASON
            if name in options.avoid
            else search.node_filters[at].rejection_of(node) or _unlabelled(node, crew, options)
        )
        if bar is not None:
            yield bar
            continue
        points = search.node_fit.points_of(class_of[name].node_class, one)
        if not isinstance(points, int):
            yield points
        elif crew.required is not None:
            yield f"{OUTSIDE_DOMAIN_REASON} {crew.required}"


def _unlabelled(node: FullNode, crew: MemberGroups, options: PlanOptions) -> str | None:
    """Whether the node is in no domain of the level that is required."""
    level = crew.required
    if level is None or domain_of(node.metadata.labels or {}, level, options.levels) is not None:
        return None
    return f"the node is in no {level}: it has no label {' or '.join(options.levels.get(level, (level,)))}"


def _of_picks(at: int, packing: Packing, search: Search) -> Iterator[Reason | str]:
    """What stands against one more on each node that others of the gang are to go to."""
    for pick in packing.picks:
        more = (*pick.load[:at], pick.load[at] + 1, *pick.load[at + 1 :])
        points = search.node_fit.points_of(pick.of.node_class, more) if pick.of.allowed[at] else 0
        if not isinstance(points, int):
            yield points


def _text(reason: Reason | str) -> str:
    return reason.value if isinstance(reason, Reason) else reason
