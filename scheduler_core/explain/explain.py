"""Explains where a pod fits, by the same code that decides. Pure.

It evaluates all nodes once and details three of them. Where no node fits, it evaluates each node state again for each
constraint that could be dropped, and tries a bounded number of evictions (``evictions``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from heapq import nsmallest
from typing import TypeVar

from gputopo.labels.reasons import Reason
from gputopo.render.report import listed
from gputopo.render.wording import counted_noun
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import ExactSets, certainly_free, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.colocation import Proximity
from scheduler_core.cache.domain_index import DomainIndex
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.owner_pods import siblings_in, with_owner
from scheduler_core.cache.sibling_proximity import with_near_siblings
from scheduler_core.evaluation.evaluate import Decision, evaluate
from scheduler_core.evaluation.shape_rules import first_violation
from scheduler_core.explain.advice import ADVICE
from scheduler_core.explain.candidates import candidate_node
from scheduler_core.explain.extension_notes import extension_notes
from scheduler_core.explain.gpu_wording import gpu_set, gpus_held_by
from scheduler_core.explain.hindrances import impossible_advice, staleness_notes
from scheduler_core.explain.kubelet_notes import unknown_policy_notes
from scheduler_core.explain.label_notes import label_notes
from scheduler_core.explain.model import (
    CandidateNode,
    CurrentPlacement,
    ExcludedNodes,
    ExplainedPod,
    Explanation,
    RejectedNodes,
)
from scheduler_core.explain.near_misses import NearMissSearch
from scheduler_core.explain.requirements import hard_fields, quoted_field, requirements
from scheduler_core.explain.what_if_changes import without_own_pod
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import Constraints, PodProfile, PodRequest

R = TypeVar("R", bound=Hashable)
_BEST = 3  # nodes in detail
_KUBE_SCHEDULER = (
    "kube-scheduler's own filters (CPU, memory, volumes, pod affinity ...) run first and are not evaluated here: "
    "kubectl describe pod shows their result"
)
_SINGLE = "the pod requires a shape, so Filter answers a single node and reserves it until the pod is bound"


def explain(
    request: PodRequest,
    table: ClusterSnapshot,
    names: Collection[str] | None,
    policy: Policy,
    now: float,
    bound: str | None = None,
) -> Explanation:
    """Return the explanation. ``names``: only these nodes; None: all. ``bound``: the node of a bound pod.

    A bound pod is evaluated as if it were scheduled again, with its own GPUs free.
    """
    pod = (request.namespace, request.name)
    without = table if bound is None else without_own_pod(table, bound, pod, now, policy)
    siblings = siblings_in(without, request)
    request, snapshot = with_owner(request, siblings, without)
    domains = DomainIndex(without.records.values()) if siblings else DomainIndex()
    request, snapshot, near = with_near_siblings(request, siblings, snapshot, domains)
    profile = request.profile
    considered = sorted(snapshot.states if names is None else names)
    offering = [name for name in considered if offers_devices(snapshot, name, profile)]
    decision = evaluate(request, snapshot, offering, policy)
    refused = decision.rejected
    return Explanation(
        pod=ExplainedPod(request.namespace, request.name, request.scheduler),
        asks=requirements(profile),
        held=None if bound is None else _current_placement(request, table, snapshot, bound),
        nodes=len(offering),
        other_nodes=len(considered) - len(offering),
        suited=tuple(sorted(decision.scores)),
        best=_best(decision, profile, snapshot),
        refused=_rejected_nodes(profile, refused, snapshot),
        nearest=() if decision.scores else NearMissSearch(profile, refused, snapshot, policy, now).find_near_misses(),
        notes=(
            *_notes(decision, snapshot, bound),
            *_sibling_notes(near),
            *staleness_notes(refused, snapshot, now, policy),
            *label_notes(decision, profile, snapshot),
            *unknown_policy_notes(decision, profile, snapshot),
            *extension_notes(profile, refused, snapshot, policy),
            *map(_class_note, request.detection),
        ),
    )


def _class_note(reason: str) -> str:
    """Return why the pod has its workload class, and what the class requires."""
    rule, _, because = reason.partition(": ")
    return f"the rule {rule} applies: {because} (gputopo policy show)"


def explain_malformed(namespace: str, name: str, reason: str) -> Explanation:
    """Return the explanation of a pod with an invalid request (``Refused.reason``)."""
    return Explanation(pod=ExplainedPod(namespace, name), malformed=reason)


def group_excluded(left_out: Mapping[str, str]) -> tuple[ExcludedNodes, ...]:
    """Return the nodes by the reason that excludes them, most nodes first."""
    return tuple(ExcludedNodes(text, names) for text, names in _by_reason(left_out, str))


def offers_devices(table: ClusterSnapshot, name: str, profile: PodProfile) -> bool:
    """Return whether a node has such devices, healthy or not; an unknown node may have them."""
    record = table.records.get(name)
    if record is None:
        return True
    offered = dict(record.machine.allocatable)
    return any(resource in offered for resource, _ in profile.device_request.totals)


def _best(decision: Decision, profile: PodProfile, table: ClusterSnapshot) -> tuple[CandidateNode, ...]:
    """Return the nodes that Filter answers, then the next best nodes."""
    scores = decision.scores
    following = nsmallest(_BEST, scores, key=lambda name: (-scores[name].points, name))
    names = list(dict.fromkeys((*decision.nodes[:_BEST], *following)))[:_BEST]
    return tuple(candidate_node(name, profile, table.states[name], scores[name]) for name in names)


def _rejected_nodes(
    profile: PodProfile, refused: Mapping[str, Reason], table: ClusterSnapshot
) -> tuple[RejectedNodes, ...]:
    found = []
    for reason, names in _by_reason(refused, lambda reason: reason.name):
        advice = impossible_advice(profile, reason, names, table) or ADVICE[reason]
        found.append(RejectedNodes(reason.name, reason.value, advice.means, advice.do, names))
    return tuple(found)


def _by_reason(reasons: Mapping[str, R], order: Callable[[R], str]) -> list[tuple[R, tuple[str, ...]]]:
    """Return the nodes of each reason, most nodes first."""
    names: defaultdict[R, list[str]] = defaultdict(list)
    for name in sorted(reasons):
        names[reasons[name]].append(name)
    return [(each, tuple(names[each])) for each in sorted(names, key=lambda each: (-len(names[each]), order(each)))]


def _current_placement(
    request: PodRequest, table: ClusterSnapshot, without: ClusterSnapshot, node: str
) -> CurrentPlacement:
    """Return the GPUs of a bound pod, and the best set of its own and the free GPUs there."""
    record, state = table.records.get(node), table.states.get(node)
    if record is None or state is None or state.shape is None or not request.profile.gpus:
        return CurrentPlacement(node=node, spot=None)
    shape, mask = state.shape, gpus_held_by(record, request.namespace, request.name)
    if mask is None:
        return CurrentPlacement(node=node, spot=None)
    free = without.states[node].free
    best = None if free is None else best_set(shape, certainly_free(free), mask.bit_count())
    return CurrentPlacement(
        node=node,
        spot=gpu_set(shape, mask),
        broken=_violated_constraints(request.profile, shape, mask),
        best=None if best is None else gpu_set(shape, best.mask),
    )


def _violated_constraints(profile: PodProfile, shape: MachineShape, mask: int) -> tuple[str, ...]:
    """Return the required constraints on the shape that are known to be violated."""
    found = []
    for field in hard_fields(profile):
        alone = Constraints(**{field: getattr(profile.constraints, field)})
        if first_violation(alone, shape, ExactSets((mask,))) not in (None, Reason.UNKNOWN_TOPOLOGY):
            found.append(quoted_field(profile, field))
    return tuple(found)


def _notes(decision: Decision, table: ClusterSnapshot, bound: str | None) -> tuple[str, ...]:
    if decision.scores:
        return () if bound is not None else (_KUBE_SCHEDULER, _SINGLE) if decision.single else (_KUBE_SCHEDULER,)
    if Reason.MODEL in decision.rejected.values():
        return (f"products in the cluster: {_products(decision.rejected, table)}",)
    return ()


def _sibling_notes(near: Mapping[str, Proximity]) -> tuple[str, ...]:
    """Return where the siblings of the pod are, if nodes near them score higher."""
    names = [name for name, proximity in near.items() if proximity is Proximity.NODE]
    if not names:
        return ()
    counts = Counter(near.values())
    levels = ((Proximity.CLIQUE, "of their cliques"), (Proximity.RACK, "of their racks"))
    near_them = [f"{counted_noun(counts[level], 'more node')} {words}" for level, words in levels if counts[level]]
    also = f"; then {' and '.join(near_them)}" if near_them else ""
    verb = "these nodes score" if len(names) > 1 else "this node scores"
    return (f"other pods of its owner or job are on {listed(names, _BEST)}; {verb} higher{also} (proximity)",)


def _products(names: Collection[str], table: ClusterSnapshot) -> str:
    """``NVIDIA-A100-SXM4-80GB on 12, Tesla-V100 on 3``."""
    counts = Counter[str]()
    for name in names:
        state = table.states.get(name)
        if state is not None and state.shape is not None:
            usable = state.shape.whole | state.shape.partitioned
            counts.update({state.shape.gpus[place].product or "unknown" for place in member_places(usable)})
    by_count = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{product} on {count}" for product, count in by_count) or "none with a known topology"
