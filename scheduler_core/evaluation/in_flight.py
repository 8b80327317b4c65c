"""In-flight pods: Filter returned several nodes for each, and kube-scheduler may bind it to any of them. Pure.

The watch shows only later which node kube-scheduler chose. For pods without a hard constraint this does no harm: the
assumed pods of kube-scheduler keep its device counts right. For a hard constraint, a node fits only if it fits with
every subset of the in-flight pods that may come to it. A subset that leaves too few devices for the pod is impossible:
kube-scheduler would not have offered the node. Pods that are equal for other pods on a node are interchangeable.
kube-scheduler does not know reservations: on a node with reservations, all pods in flight to it must leave enough
devices.

``fits_with_any_gpus`` comes first: a node that suits the pod with any of its free GPUs suits it with every subset. On
most machines this is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import may_crash_on_subset
from scheduler_core.allocation.numa_alignment import KubeletModel
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.colocation import colocation_of
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, with_any_free_gpus
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.evaluation.score import Score
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile, Strength

# Different subsets on one node, each up to 13 ms with 16 GPUs. With more, the node fits only if any free GPUs suit.
MAX_CASES = 32


class StateEvaluator(Protocol):
    """Evaluates the states of nodes for pods of one profile (``evaluate.Evaluator``)."""

    policy: Policy

    def __call__(self, state: NodeState, /) -> Reason | Score:
        """Return the reason against a node in this state, or its score."""

    def rejection_reason(self, state: NodeState, /) -> Reason | None:
        """Return the reason against a node in this state; None: it fits."""


def fits_with_all(
    profile: PodProfile,
    snapshot: ClusterSnapshot,
    name: str,
    in_flight: Sequence[AssumedPod],
    evaluator: StateEvaluator,
    may_continue: Callable[[], bool] = lambda: True,
) -> bool | None:
    """Return whether a node that fits the profile still fits, whichever in-flight pods come to it.

    None: ``may_continue`` ended the check.
    """
    state = snapshot.states[name]
    if not in_flight or not is_affected(profile, state):
        return True
    coming = [each.pod for each in in_flight if name in each.nodes]
    if not coming:
        return True
    if not (profile.has_hard_constraints or can_break(state)):
        return leaves_enough(profile, state, coming)
    record = snapshot.records[name]
    if not may_continue():
        return None
    enough = state.unreserved is None or leaves_enough(profile, state, coming)
    if enough and fits_with_any_gpus(profile, state, record.pods, coming, evaluator):
        return True
    cases = _cases(profile, record, state.kubelet, coming)
    if cases is None:
        return False
    for pods in filter(None, cases):
        if not may_continue():
            return None
        if not isinstance(evaluator(state_if(snapshot, name, (*record.pods, *pods))), Score):
            return False
    return True


def fits_with_any_gpus(
    profile: PodProfile,
    state: NodeState,
    present: Iterable[Occupant],
    coming: Iterable[Occupant],
    evaluator: StateEvaluator,
) -> bool:
    """Return whether a node with enough devices fits whichever GPUs the kubelet gives to which pod.

    False: not known; try the subsets. ``present``: the other pods on the node. ``coming``: the pods in flight.
    """
    shape, policy = state.shape, evaluator.policy
    if shape is None or state.free is None:
        return False
    # More than the GPUs matters then.
    if (
        state.kubelet.rejects
        or policy.filters
        or state.honours_gpu_choice
        or state.shared_gpus is not None
        or profile.constraints.nic is Strength.REQUIRED
    ):
        return False
    if any(pod.profile.requires_shape for pod in coming):
        return False
    with_any = with_any_free_gpus(state, colocation_of((*present, *coming)))
    assert with_any.free is not None
    profiles = (profile, *state.unadmitted_profiles)
    sizes = {step.devices for each in profiles for step in each.device_request.whole_gpu_steps}
    if any(may_crash_on_subset(shape, with_any.free.among, size) for size in sizes):
        return False
    return evaluator.rejection_reason(with_any) is None


def _cases(
    profile: PodProfile, record: NodeRecord, kubelet: KubeletModel, coming: Iterable[Occupant]
) -> Sequence[tuple[Occupant, ...]] | None:
    """Return the different subsets that leave enough devices for the pod; None: too many."""
    free = Counter(dict(record.machine.allocatable))
    free.subtract(dict(profile.device_request.totals))
    for pod in record.pods:
        # As kube-scheduler counts: it knows neither reservations nor placeholders, whose UIDs contain a slash.
        if pod.uid not in record.reserved and "/" not in pod.uid:
            free.subtract(dict(pod.profile.device_request.totals))
    alike: dict[object, list[Occupant]] = {}
    for pod in coming:
        alike.setdefault(_footprint(pod.profile, profile, kubelet), []).append(pod)
    cases: list[tuple[Occupant, ...]] = [()]
    for pods in alike.values():
        for case in tuple(cases):
            larger = ((*case, *pods[:number]) for number in range(1, len(pods) + 1))
            cases += takewhile(partial(_are_enough, free), larger)
            if len(cases) > MAX_CASES:
                return None
    return cases


def _footprint(profile: PodProfile, asked: PodProfile, kubelet: KubeletModel) -> object:
    """Return the part of a profile that decides whether the asked pod fits on a node with this pod."""
    if profile.has_hard_constraints:
        return profile
    request = profile.device_request._replace(cpu_milli=0)
    if not kubelet.aligns:
        request = request._replace(aligned_steps=())
    return request, profile.constraints.workload if asked.constraints.isolation is Strength.REQUIRED else None


def _are_enough(free: Counter[str], pods: Iterable[Occupant]) -> bool:
    """Return whether enough devices are free for these pods. More devices may be in use than a node offers."""
    taken = Counter[str]()
    for pod in pods:
        taken.update(dict(pod.profile.device_request.totals))
    return all(number <= free[resource] for resource, number in taken.items())


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
