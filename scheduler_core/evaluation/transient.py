"""Refusals that will not stand: a node that does not suit now, and may in a moment, without anything that anybody sees.

kube-scheduler asks about a refused pod again when it hears of something, else after five minutes. It does not hear when
a kubelet names the GPUs that it gave out or an agent confirms a graph that has just changed, and it may hear of a pod's
end before we do. In these cases the answer is an
error instead of a refusal: then it asks again by itself, after one second and less often later. Pure.

So an error is only for what passes soon: the agent publishes within seconds, and a node whose agent is silent turns
stale. That a pod is refused for good is said with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState, kubelet_report_of
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.evaluation.refusals import Rejections
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS, first_violation
from scheduler_core.request.pod_request import PodProfile, Strength

RETRY_MESSAGE = (
    "gputopo: no node suits yet, but one may as soon as it is known which GPUs other pods have just been given or have "
    "let go; trying again (see: gputopo why pod)"
)
_SHAPES = frozenset(reason.value for reason in SHAPE_REASONS)
_PASSING = _SHAPES | {Reason.VRAM.value, Reason.UNKNOWN_TOPOLOGY.value}


def may_fit_soon(profile: PodProfile, table: Snapshot, refused: Rejections, unsure: Iterable[str]) -> bool:
    """Whether one of the refused nodes may suit without an event that kube-scheduler hears of.

    ``unsure``: those of them of which not all GPUs are known to be free or held.
    """
    reasons = refused.reasons
    if any(_clears_soon(table.records[name]) for name in refused.names_with(Reason.RESERVED.value)):
        return True
    if _cache_is_behind(profile, table, refused.names_with(Reason.TOO_FEW_GPUS.value)):
        return True
    if reasons.isdisjoint(_PASSING):
        return False
    return any(
        (refused[name] in _SHAPES and _may_leave_good_set(profile, table, name))
        or (refused[name] == Reason.UNKNOWN_TOPOLOGY.value and table.states[name].awaited)
        or (refused[name] == Reason.VRAM.value and _may_have_memory(profile, table.states[name]))
        for name in unsure
    )


def is_uncertain(state: NodeState) -> bool:
    """Whether it is not known of every GPU if it is free, or of a shared one what is on it, or how they are linked."""
    if state.awaited:
        return True
    shared = state.ledger
    shifting = shared is not None and (
        shared.unplaced or shared.ended_replicas or any(card.unreleased for card in shared.gpus)
    )
    return bool(shifting) or state.unsettled is not None or isinstance(state.free, SomeSet)


def _clears_soon(record: NodeRecord) -> bool:
    """Whether what another pod is to get there it will have soon. Room that is held for a gang is held for hours."""
    return not record.reserved or not all(map(is_hold, record.reserved))


def _cache_is_behind(profile: PodProfile, table: Snapshot, too_few: Iterable[str]) -> bool:
    """kube-scheduler counts too, and asks only about nodes with enough: where we count fewer, we know of less."""
    return any(
        table.states[name].free_devices(resource) < wanted
        for name in too_few
        for resource, wanted in profile.device_request.totals
    )


def _may_leave_good_set(profile: PodProfile, table: Snapshot, name: str) -> bool:
    """Whether what the kubelet has yet to name can leave enough GPUs together; not whether it is likely."""
    state, record = table.states[name], table.records[name]
    word = None if state.stale else kubelet_report_of(record)
    if state.shape is None or state.free is None or word is None:
        return False
    # Before it admits a pod the kubelet has something to tell that kube-scheduler hears of.
    admitted = (pod for pod in record.pods if pod.admitted)
    if all(word.allocated.get(pod.uid, 0).bit_count() >= pod.profile.gpus for pod in admitted):
        return False
    among = state.free.among if isinstance(state.free, SomeSet) else union(state.free.masks)
    return any(_has_a_good_set(profile, state.shape, among & group) for group in _groups(profile, state.shape))


def _has_a_good_set(profile: PodProfile, shape: MachineShape, among: int) -> bool:
    """Whether the fastest set of these GPUs is what the pod requires."""
    best = best_set(shape, among, profile.gpus)
    return best is not None and first_violation(profile.constraints, shape, ExactSets((best.mask,))) is None


def _may_have_memory(profile: PodProfile, state: NodeState) -> bool:
    """Whether a shared GPU has room as far as is known, and the kubelet has yet to say of some pods which is theirs."""
    shared = state.ledger
    if state.stale or shared is None or shared.replica_policy is ReplicaPolicy.UNKNOWN:
        return False
    share = profile.constraints.vram_mib or shared.default_mib
    return any(sum(card.shares) + share <= (card.memory_mib or 0) for card in shared.gpus)


def _groups(profile: PodProfile, shape: MachineShape) -> Iterable[int]:
    """Sets of GPUs of which the pod's must all be members of one; roughly, where it must be in an island as well."""
    if profile.constraints.numa is Strength.REQUIRED:
        return {shape.on_numa(node, shape.whole) for node in shape.numa if node is not None}
    return shape.islands or ()
