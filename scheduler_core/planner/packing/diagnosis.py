"""Diagnosis of a gang that does not fit: the most frequent reason for each member. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gputopo.labels.reasons import Reason, reason_text
from gputopo.render.wording import part_of
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_table import state_if
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.planner.packing.groups import MemberGroup, MemberGroups
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.node_fit import FitClass
from scheduler_core.planner.packing.packings import Packing
from scheduler_core.planner.packing.search import Search
from scheduler_core.planner.packing.topology_domains import domain_of
from scheduler_core.request.pod_request import Strength

AVOIDED_REASON = "a member of the gang failed to start on the node shortly before"
OUTSIDE_DOMAIN_REASON = "fits on other nodes, but not in the same"
ON_ONE_PRODUCT = " on GPUs of one product"
OTHER_PRODUCT_REASON = f"fits on other nodes, but all members do not fit{ON_ONE_PRODUCT}"
NO_NODE_REASON = "no node has the requested devices"
OUT_OF_TIME_REASON = (
    "the members have too many different requests or node rules: a plan ended before it examined all nodes"
)

MissingReasons = tuple[tuple[str, Reason | str], ...]


def diagnosis_summary(placed: int, gang: MemberGroups) -> str:
    """Return how many members fit, in one line."""
    where = "" if gang.required is None else f" in one {gang.required}"
    where += ON_ONE_PRODUCT if gang.same_product is Strength.REQUIRED else ""
    fits = "no member fits" if gang.minimum == 1 else part_of(placed, gang.minimum, "fits", "fit")
    return f"{fits} at once{where}"


def missing_by_member(
    gang: MemberGroups, packing: Packing, search: Search, view: NodeView, options: PlanOptions
) -> MissingReasons:
    """Return each member without a node, with the most frequent reason on nodes that have such devices."""
    found: list[tuple[str, Reason | str]] = []
    for at, group in enumerate(gang.groups):
        unplaced = group.members[sum(pick.load[at] for pick in packing.picks) :]
        if unplaced and found and options.out_of_time():
            found += [(member.name, OUT_OF_TIME_REASON) for member in unplaced]
        elif unplaced:
            counts = Counter([*_of_nodes(at, gang, search, view, options), *_of_picks(at, packing, search)])
            reason = min(counts, key=lambda each: (-counts[each], reason_text(each)), default=NO_NODE_REASON)
            found += [(member.name, reason) for member in unplaced]
    return tuple(found)


def _of_nodes(
    at: int, gang: MemberGroups, search: Search, view: NodeView, options: PlanOptions
) -> Iterator[Reason | str]:
    """Yield the reason against each node that has such devices, for a member that is alone there."""
    asked = {resource for resource, _ in gang.groups[at].kind.profile.device_request.totals}
    load = tuple(int(kind == at) for kind in range(len(gang.groups)))
    lasting: dict[FitClass, Reason | str] = {}  # by class of nodes
    for name, state in view.table.states.items():
        node = view.rules.get(name)
        if node is None or asked.isdisjoint(resource for resource, _ in state.allocatable):
            continue
        rejection = (
            AVOIDED_REASON
            if name in options.avoid
            else search.node_filters[at].rejection_of(node) or _unlabelled(node, gang, options)
        )
        if rejection is not None:
            yield rejection
            continue
        of = search.candidates.class_of(name)
        if of is None:
            yield OUT_OF_TIME_REASON
            continue
        points = search.node_fit.points_of(of.node_class, load)
        if not isinstance(points, int):
            if of.node_class not in lasting:
                lasting[of.node_class] = _lasting(points, name, gang.groups[at], view, options)
            yield lasting[of.node_class]
        elif gang.required is not None:
            yield f"{OUTSIDE_DOMAIN_REASON} {gang.required}"
        elif gang.same_product is Strength.REQUIRED:
            yield OTHER_PRODUCT_REASON


def _lasting(reason: Reason | str, name: str, group: MemberGroup, view: NodeView, options: PlanOptions) -> Reason | str:
    """Return what a node with too few free GPUs lacks even when it is empty, such as NVLink; else the reason itself."""
    if reason is not Reason.TOO_FEW_GPUS or options.out_of_time():
        return reason
    record = view.table.records[name]
    records = view.table.records.set(name, after_evictions(record, record.pods))
    empty = state_if(msgspec.structs.replace(view.table, records=records), name, ())
    return rejection_reason(group.kind.profile, empty, group.kind.policy) or reason


def _unlabelled(node: FullNode, gang: MemberGroups, options: PlanOptions) -> str | None:
    """Return the reason if the node is in no domain of the required level; None: it is in one."""
    level = gang.required
    if level is None or domain_of(node.metadata.labels or {}, level, options.levels) is not None:
        return None
    return f"the node is in no {level}: it has no label {' or '.join(options.levels.get(level, (level,)))}"


def _of_picks(at: int, packing: Packing, search: Search) -> Iterator[Reason | str]:
    """Yield the reason against one more member on each node that the packing uses."""
    for pick in packing.picks:
        load = (*pick.load[:at], pick.load[at] + 1, *pick.load[at + 1 :])
        points = search.node_fit.points_of(pick.of.node_class, load) if pick.of.allowed[at] else 0
        if not isinstance(points, int):
            yield points
