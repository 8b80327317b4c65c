"""Pods that were answered with several nodes, and may be on their way to any of them. Pure.

kube-scheduler picks one of the nodes that Filter answered, and which one the watch shows only later. For pods without
a required shape that is no harm: its own assumption keeps the counts right. Where a shape must hold, a node is good
only if it is with every subset of the pods that may be on their way there. Of what planners keep on a node it knows
nothing: there all who may be on their way must leave enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot, state_if
from scheduler_core.evaluation.score import Score
from scheduler_core.request.pod_request import PodProfile

MAX_IN_FLIGHT = (
    3  # pods in doubt on a node of which all subsets are tried: eight; each costs a few hundred microseconds
)

StateEvaluator = Callable[[NodeState], Reason | Score]


def fits_with_all(
    profile: PodProfile, table: Snapshot, name: str, doubtful: Sequence[AssumedPod], evaluator: StateEvaluator
) -> bool:
    """Whether a node that suits pods of that profile still does, whichever of the doubtful pods are on their way there.

    ``judge`` says of a state whether it suits.
    """
    state = table.states[name]
    if not doubtful or not is_affected(profile, state):
        return True
    coming = [each.pod for each in doubtful if name in each.nodes]
    if not (profile.has_hard_constraints or can_break(state)):
        return leaves_enough(profile, state, coming)
    known = table.records[name].pods
    if len(coming) > MAX_IN_FLIGHT:
        return False
    subsets = chain.from_iterable(combinations(coming, size) for size in range(1, len(coming) + 1))
    return all(isinstance(evaluator(state_if(table, name, (*known, *pods))), Score) for pods in subsets)


def is_affected(profile: PodProfile, state: NodeState) -> bool:
    """Whether doubts decide anything: to the pod, or to another on the node, something is promised that can break."""
    return profile.has_hard_constraints or has_commitments(state)


def has_commitments(state: NodeState) -> bool:
    """Whether something is promised on the node that another pod could break: GPUs that are kept, or what they are."""
    return state.open is not None or can_break(state)


def leaves_enough(profile: PodProfile, state: NodeState, coming: Iterable[Occupant]) -> bool:
    """Whether there are enough devices for the pod with all that may come."""
    taken = Counter[str]()
    for pod in coming:
        taken.update(dict(pod.profile.device_request.totals))
    return all(
        state.free_devices(resource) - taken[resource] >= wanted for resource, wanted in profile.device_request.totals
    )


def can_break(state: NodeState) -> bool:
    """Whether a pod on the node was promised more than a number of GPUs."""
    kept = (
        state.company.no_training
        or state.company.no_inference
        or (state.ledger is not None and state.ledger.has_memory_requests)
    )
    return kept or bool(state.waiting)
