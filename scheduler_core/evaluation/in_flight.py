"""In-flight pods: Filter returned several nodes for each, and kube-scheduler may bind it to any of them. Pure.

The watch shows only later which node kube-scheduler chose. For pods without a hard constraint this does no harm: the
assumed pods of kube-scheduler keep its device counts right. For a hard constraint, a node fits only if it fits with
every subset of the in-flight pods that may come to it. kube-scheduler does not know reservations: on a node with
reservations, all pods in flight to it must leave enough devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.evaluation.score import Score
from scheduler_core.request.pod_request import PodProfile

# On one node; all subsets of these are tried: eight, each a few hundred microseconds.
MAX_IN_FLIGHT = 3

StateEvaluator = Callable[[NodeState], Reason | Score]


def fits_with_all(
    profile: PodProfile,
    snapshot: ClusterSnapshot,
    name: str,
    in_flight: Sequence[AssumedPod],
    evaluator: StateEvaluator,
) -> bool:
    """Return whether a node that fits the profile still fits, whichever in-flight pods come to it."""
    state = snapshot.states[name]
    if not in_flight or not is_affected(profile, state):
        return True
    coming = [each.pod for each in in_flight if name in each.nodes]
    if not (profile.has_hard_constraints or can_break(state)):
        return leaves_enough(profile, state, coming)
    known = snapshot.records[name].pods
    if len(coming) > MAX_IN_FLIGHT:
        return False
    subsets = chain.from_iterable(combinations(coming, size) for size in range(1, len(coming) + 1))
    return all(isinstance(evaluator(state_if(snapshot, name, (*known, *pods))), Score) for pods in subsets)


def is_affected(profile: PodProfile, state: NodeState) -> bool:
    """Return whether in-flight pods matter: they could break a constraint of this pod, or of a pod on the node."""
    return profile.has_hard_constraints or has_commitments(state)


def has_commitments(state: NodeState) -> bool:
    """Return whether another pod could break a reservation on the node, or a constraint of a pod on it."""
    return state.unreserved is not None or can_break(state)


def leaves_enough(profile: PodProfile, state: NodeState, coming: Iterable[Occupant]) -> bool:
    """Return whether there are enough devices for the pod and all pods that may come."""
    taken = Counter[str]()
    for pod in coming:
        taken.update(dict(pod.profile.device_request.totals))
    return all(
        state.free_devices(resource) - taken[resource] >= wanted for resource, wanted in profile.device_request.totals
    )


def can_break(state: NodeState) -> bool:
    """Return whether a pod on the node has a constraint beyond a number of GPUs that another pod could break."""
    constrained = (
        state.colocation.no_training
        or state.colocation.no_inference
        or (state.shared_gpus is not None and state.shared_gpus.has_memory_requests)
    )
    return constrained or bool(state.unadmitted_profiles)
