"""The places that a gang of equal pods would get now, by the planner's own code. Pure; nothing is created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gputopo.kube.taints import is_pool_taint
from gputopo.labels.keys import GPU_RESOURCES, POD_ISLAND
from gputopo.labels.reasons import reason_text
from gputopo.render.wording import counted_noun
from scheduler_core.cache.full_pods import CheckedRules, scheduling_rules
from scheduler_core.explain.advice import SEE
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import NodeView, PlanOptions, Unplaced
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.policy.profiles import Policies
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.pod_request import InvalidRequest

OutOfTime = Callable[[], bool]
MAX_PODS = 1024
MAX_GPUS = 64


class WhereQuery(NamedTuple):
    """The pods to place."""

    pods: int = 2
    gpus: int = 8  # of each pod
    island: bool = True  # the GPUs of a pod must be in one NVLink island
    model: str = ""  # GPU model; "": any


class WhereAnswer(NamedTuple):
    """The result, and the nodes with (pods, GPUs) that they would take."""

    words: str
    seats: tuple[tuple[str, int, int], ...] = ()


def prepare_where(view: PlannerView, policies: Policies, query: WhereQuery) -> Callable[[OutOfTime], WhereAnswer]:
    """Return the search for the places of the pods now. It may run on another thread while the view changes.

    The pods tolerate the taints of GPU pools, but no taint of Kubernetes.
    """
    members = _members(query, policies, _pool_taints(view))
    if isinstance(members, InvalidRequest):
        refused = WhereAnswer(members.reason)
        return lambda _: refused
    nodes = NodeView(view.cache.snapshot, view.rules, policies.policy_for, others=view.loads.by_node)
    placed = view.placed_members()
    return lambda out_of_time: _answer(
        query, members, nodes, PlanOptions(out_of_time=out_of_time, placed_members=placed)
    )


def _answer(query: WhereQuery, members: tuple[Member, ...], nodes: NodeView, options: PlanOptions) -> WhereAnswer:
    found = plan_gang(members, nodes, options)
    asked = f"{query.pods} x {query.gpus} GPUs"
    if isinstance(found, Unplaced):
        late = "; the search ran out of time" if options.out_of_time() else ""
        reasons = Counter(reason_text(reason).removesuffix(SEE) for _, reason in found.missing).most_common(1)
        why = f" ({reasons[0][0]})" if reasons and reasons[0][0] not in found.reason else ""
        return WhereAnswer(f"{asked} do not fit now: {found.reason}{why}{late}.")
    pods = Counter(seat.node for seat in found.seats if seat.node is not None)
    domain = "" if found.domain is None else f", all in {found.domain}"
    rate = "" if found.gbps is None else f", {found.gbps:g} GB/s inside the nodes"
    return WhereAnswer(
        f"{asked} fit now on {counted_noun(len(pods), 'node')}{domain}{rate}.",
        tuple((node, number, number * query.gpus) for node, number in sorted(pods.items())),
    )


def _pool_taints(view: PlannerView) -> list[str]:
    """Return the keys of the taints that administrators have set."""
    return sorted(
        {each.key for node in view.rules.values() for each in node.spec.taints or () if is_pool_taint(each.key)}
    )


def _members(query: WhereQuery, policies: Policies, tolerated: Sequence[str]) -> tuple[Member, ...] | InvalidRequest:
    pod = _pod(query, tolerated)
    request = policies.parse_pod(pod)
    if isinstance(request, InvalidRequest):
        return request
    gang = GangRequest(GangName("", "where"), size=query.pods)
    rules = scheduling_rules(pod.spec, CheckedRules(anti_affinity=True))
    return tuple(
        Member(
            uid=f"where-{number}",
            namespace="",
            name=f"pod-{number}",
            version="",
            gang_request=gang,
            request=request,
            created=0.0,
            rules=rules,
        )
        for number in range(query.pods)
    )


def _pod(query: WhereQuery, tolerated: Sequence[str]) -> FullPod:
    limits = {GPU_RESOURCES[0]: str(query.gpus)}
    document = {
        "metadata": {
            "name": "where",
            "annotations": {POD_ISLAND.key: "required"} if query.island else {},
            "labels": {"gpu-model": query.model} if query.model else {},
        },
        "spec": {
            "containers": [{"name": "gpu", "resources": {"limits": limits}}],
            "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        },
    }
    return msgspec.convert(document, FullPod)
