"""Transient rejections: nodes that do not fit now and may fit soon, without an event that kube-scheduler sees. Pure.

kube-scheduler retries a rejected pod on certain events, or after five minutes. It sees no event when a kubelet reports
the GPUs that it allocated, or when an agent confirms a changed link graph; and it may see the end of a pod before
gputopo does. In these cases the extender answers with an error instead of a rejection: kube-scheduler then retries
after one second, and less often later.

An error is only for conditions that end soon: the agent publishes within seconds, and a node whose agent is silent
becomes stale. Lasting rejections are answered with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState, kubelet_report_of
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.rejections import Rejections, distinct_reasons
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS, first_violation
from scheduler_core.request.pod_request import PodProfile, Strength

RETRY_MESSAGE = (
    "gputopo: no node fits yet, but one may fit once the GPUs of pods that just started or ended are known; retrying "
    "(see: gputopo why pod)"
)
RESERVED_MESSAGE = (
    "gputopo: no node fits yet; GPUs are reserved for other workloads that start soon; retrying (see: gputopo why pod)"
)
_SHAPES = frozenset(reason.value for reason in SHAPE_REASONS)
_TRANSIENT = _SHAPES | {Reason.VRAM.value, Reason.UNKNOWN_TOPOLOGY.value}


def may_fit_soon(
    profile: PodProfile, snapshot: ClusterSnapshot, rejections: Rejections, uncertain: Iterable[str]
) -> bool:
    """Return whether a rejected node may fit soon, without an event that kube-scheduler sees.

    ``uncertain``: the rejected nodes that are uncertain (see ``is_uncertain``).
    """
    reasons = rejections.reasons
    if any(_clears_soon(snapshot.records[name]) for name in rejections.names_with_reason(Reason.RESERVED.value)):
        return True
    if _cache_is_behind(profile, snapshot, rejections.names_with_reason(Reason.TOO_FEW_GPUS.value)):
        return True
    if reasons.isdisjoint(_TRANSIENT):
        return False
    return any(
        (rejections[name] in _SHAPES and _may_leave_good_set(profile, snapshot, name))
        or (rejections[name] == Reason.UNKNOWN_TOPOLOGY.value and snapshot.states[name].confirmation_pending)
        or (rejections[name] == Reason.VRAM.value and _may_have_memory(profile, snapshot.states[name]))
        for name in uncertain
    )


def retry_message(rejected: Mapping[str, str]) -> str:
    """Return the error that kube-scheduler shows at a pod that may fit soon. ``rejected``: reason by node.

    A text without counts: each change makes kube-scheduler write the status of the pod.
    """
    return RESERVED_MESSAGE if Reason.RESERVED.value in distinct_reasons(rejected) else RETRY_MESSAGE


def is_uncertain(state: NodeState) -> bool:
    """Return whether it is unknown for a GPU whether it is free, what shares it, or how it is linked."""
    if state.confirmation_pending:
        return True
    shared = state.shared_gpus
    changing = shared is not None and (
        shared.unplaced or shared.ended_replicas or any(gpu.unreleased for gpu in shared.gpus)
    )
    return bool(changing) or state.open_admissions is not None or isinstance(state.free, SomeSet)


def _clears_soon(record: NodeRecord) -> bool:
    """Return whether the reservations on the node will soon be used. A capacity hold may last for hours."""
    return not record.reserved or not all(map(is_hold, record.reserved))


def _cache_is_behind(profile: PodProfile, snapshot: ClusterSnapshot, too_few: Iterable[str]) -> bool:
    """Return whether the cache has fewer free devices than kube-scheduler, which asks only about nodes with enough."""
    return any(
        snapshot.states[name].free_devices(resource) < wanted
        for name in too_few
        for resource, wanted in profile.device_request.totals
    )


def _may_leave_good_set(profile: PodProfile, snapshot: ClusterSnapshot, name: str) -> bool:
    """Return whether allocations that the kubelet has yet to report can leave a good set; not how likely that is."""
    state, record = snapshot.states[name], snapshot.records[name]
    report = None if state.stale else kubelet_report_of(record)
    if state.shape is None or state.free is None or report is None:
        return False
    # Only pods that the kubelet has admitted matter: kube-scheduler sees the event of an admission.
    admitted = (pod for pod in record.pods if pod.admitted)
    if all(report.allocated.get(pod.uid, 0).bit_count() >= pod.profile.gpus for pod in admitted):
        return False
    among = state.free.among if isinstance(state.free, SomeSet) else union(state.free.masks)
    return any(_has_good_set(profile, state.shape, among & group) for group in _groups(profile, state.shape))


def _has_good_set(profile: PodProfile, shape: MachineShape, among: int) -> bool:
    """Return whether the fastest set of these GPUs satisfies the constraints of the pod."""
    best = best_set(shape, among, profile.gpus)
    return best is not None and first_violation(profile.constraints, shape, ExactSets((best.mask,))) is None


def _may_have_memory(profile: PodProfile, state: NodeState) -> bool:
    """Return whether a shared GPU may have enough memory once the kubelet has reported all allocations."""
    shared = state.shared_gpus
    if state.stale or shared is None or not shared.reported:
        return False
    share = profile.constraints.vram_mib or shared.default_mib
    fits = [sum(gpu.shares) + share <= (gpu.memory_mib or 0) for gpu in shared.gpus]
    return all(fits) if shared.replica_policy is ReplicaPolicy.UNKNOWN else any(fits)


def _groups(profile: PodProfile, shape: MachineShape) -> Iterable[int]:
    """Return sets of GPUs, one of which must contain all GPUs of the pod. Approximate where both rules apply."""
    constraints = profile.constraints
    over_nvlink = (constraints.interconnect, constraints.min_gbps, constraints.parallel)
    needs_nvlink = constraints.island is Strength.REQUIRED or any(each is not None for each in over_nvlink)
    if needs_nvlink and constraints.numa is not Strength.REQUIRED:
        return shape.islands or ()
    by_numa = {shape.on_numa(node, shape.whole) for node in shape.numa if node is not None}
    # Without NVLink and NUMA requirements: near NICs, or near each other.
    return by_numa if constraints.numa is Strength.REQUIRED else by_numa | {shape.whole}
