"""A pod and the nodes -> why it goes where it goes, or nowhere. Pure, by the same code that decides.

Work: one evaluation of all nodes, three nodes looked at closely; and where no node suits, each state of a node judged
once more for each wish that could be dropped, and a bounded number of pods' ends tried (``endings``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from heapq import nsmallest

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import ExactSets, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.owner_pods import for_owner, pods_of_owner
from scheduler_core.evaluation.evaluate import Decision, evaluate
from scheduler_core.evaluation.shape_rules import first_violation
from scheduler_core.explain.advice import ADVICE
from scheduler_core.explain.candidates import candidate_node
from scheduler_core.explain.gpu_wording import certainly_free, gpu_set, gpus_held_by
from scheduler_core.explain.hindrances import impossible_advice, staleness_notes
from scheduler_core.explain.model import (
    CandidateNode,
    CurrentPlacement,
    ExcludedNodes,
    ExplainedPod,
    Explanation,
    RejectedNodes,
)
from scheduler_core.explain.near_misses import UnplacedCase, near_misses
from scheduler_core.explain.requirements import hard_fields, quoted_requirement, requirements
from scheduler_core.explain.what_if_changes import without_own_pod
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import Constraints, PodProfile, PodRequest

_BEST = 3  # nodes looked at closely
_STOCK = (
    "kube-scheduler's own filters (CPU, memory, volumes, affinity among pods ...) come first and are not looked at "
    "here: kubectl describe pod shows what they said"
)


def explain(
    request: PodRequest,
    table: Snapshot,
    names: Collection[str] | None,
    policy: Policy,
    now: float,
    bound: str | None = None,
) -> Explanation:
    """Why the pod fits where it does. ``names``: only these nodes; None: all. ``bound``: the node that it is on.

    A bound pod is looked at as if it were to be placed anew, with its own GPUs free again.
    """
    pod = (request.namespace, request.name)
    there = table if bound is None else without_own_pod(table, bound, pod, now, policy)
    request, seen = for_owner(request, pods_of_owner(request.owner, there), there)
    profile = request.profile
    asked = sorted(seen.states if names is None else names)
    offering = [name for name in asked if _offers(seen, name, profile)]
    decision = evaluate(request, seen, offering, policy)
    refused = decision.rejected
    case = UnplacedCase(profile, refused, seen, policy, now)
    return Explanation(
        pod=ExplainedPod(request.namespace, request.name, request.scheduler),
        asks=requirements(profile),
        held=None if bound is None else _current_placement(request, table, seen, bound),
        nodes=len(offering),
        other_nodes=len(asked) - len(offering),
        suited=tuple(sorted(decision.scores)),
        best=_best(decision, profile, seen),
        refused=_grouped(profile, refused, seen),
        nearest=() if decision.scores else near_misses(case),
        notes=(
            *_notes(decision, seen, bound),
            *staleness_notes(refused, seen, now, policy),
            *map(_taken_for, request.detection),
        ),
    )


def _taken_for(reason: str) -> str:
    """Why a pod is taken for what it is, and what that demands."""
    rule, _, because = reason.partition(": ")
    return f"the rule {rule} counts: {because} (gputopo policy show)"


def explain_malformed(namespace: str, name: str, reason: str) -> Explanation:
    """The explanation of a pod that says what cannot be understood (``Refused.reason``)."""
    return Explanation(pod=ExplainedPod(namespace, name), malformed=reason)


def group_by_reason(left_out: Mapping[str, str]) -> tuple[ExcludedNodes, ...]:
    """Nodes that are left out, by why, most nodes first."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(left_out):
        groups[left_out[name]].append(name)
    return tuple(
        ExcludedNodes(text, tuple(groups[text])) for text in sorted(groups, key=lambda text: (-len(groups[text]), text))
    )


def _offers(table: Snapshot, name: str, profile: PodProfile) -> bool:
    """Whether it has such devices at all, healthy or not; a node that is not known may have."""
    record = table.records.get(name)
    if record is None:
        return True
    offered = dict(record.machine.allocatable)
    return any(resource in offered for resource, _ in profile.device_request.totals)


def _best(decision: Decision, profile: PodProfile, table: Snapshot) -> tuple[CandidateNode, ...]:
    """What Filter answers comes first; where it answers one node, the next best follow."""
    scores = decision.scores
    following = nsmallest(_BEST, scores, key=lambda name: (-scores[name].points, name))
    names = list(dict.fromkeys((*decision.nodes[:_BEST], *following)))[:_BEST]
    return tuple(candidate_node(name, profile, table.states[name], scores[name]) for name in names)


def _grouped(profile: PodProfile, refused: Mapping[str, Reason], table: Snapshot) -> tuple[RejectedNodes, ...]:
    groups: defaultdict[Reason, list[str]] = defaultdict(list)
    for name, reason in refused.items():
        groups[reason].append(name)
    order = sorted(groups, key=lambda reason: (-len(groups[reason]), reason.name))
    found = []
    for reason in order:
        advice = impossible_advice(profile, reason, groups[reason], table) or ADVICE[reason]
        found.append(RejectedNodes(reason.name, reason.value, advice.means, advice.do, tuple(sorted(groups[reason]))))
    return tuple(found)


def _current_placement(request: PodRequest, table: Snapshot, without: Snapshot, node: str) -> CurrentPlacement:
    """What it has got, next to the best of what is free there and its own."""
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
    """What it required of the shape that is known not to be so."""
    found = []
    for field in hard_fields(profile):
        alone = Constraints(**{field: getattr(profile.constraints, field)})
        if first_violation(alone, shape, ExactSets((mask,))) not in (None, Reason.UNKNOWN_TOPOLOGY):
            found.append(quoted_requirement(profile, field))
    return tuple(found)


def _notes(decision: Decision, table: Snapshot, bound: str | None) -> tuple[str, ...]:
    notes = []
    if decision.scores and bound is None:
        notes.append(_STOCK)
    if decision.scores and decision.single and bound is None:
        notes.append("it requires a shape, so Filter answers one node and keeps it for the pod until it is bound")
    if not decision.scores and Reason.MODEL in decision.rejected.values():
        notes.append(f"GPUs there are: {_products(decision.rejected, table)}")
    return tuple(notes)


def _products(names: Collection[str], table: Snapshot) -> str:
    """``NVIDIA-A100-SXM4-80GB on 12 nodes, Tesla-V100 on 3``."""
    counts = Counter[str]()
    for name in names:
        state = table.states.get(name)
        if state is not None and state.shape is not None:
            usable = state.shape.whole | state.shape.partitioned
            counts.update({state.shape.gpus[place].product or "unknown" for place in member_places(usable)})
    told = [f"{product} on {count}" for product, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]
    return ", ".join(told) or "none that gputopo can tell apart"
