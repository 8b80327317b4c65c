"""Notes on nodes that suit a pod, where a possible policy of the kubelet would reject it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gputopo.labels import keys
from gputopo.render.report import listed
from scheduler_core.allocation.admission import predict_sets, whole_gpu_steps
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.allocation.numa_alignment import KubeletModel, NumaAlignment, NumaPolicy
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import Decision
from scheduler_core.request.pod_request import PodProfile

_REJECTING = tuple(
    KubeletModel((NumaAlignment(policy),)) for policy in (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE)
)
_MOST_NODES = 200  # that are examined


def unknown_policy_notes(decision: Decision, profile: PodProfile, table: ClusterSnapshot) -> Iterator[str]:
    """Yield which suitable nodes may reject a required shape, as the policy of their Topology Manager is unknown."""
    if not profile.requires_shape:
        return
    suited = sorted(decision.scores)[:_MOST_NODES]
    for kubelet in _REJECTING:
        (alignment,) = kubelet.alignments
        names = [name for name in suited if _would_reject(table.states[name], profile, kubelet)]
        if names:
            yield (
                f"{listed(names)}: the policy of the Topology Manager is unknown; a kubelet with "
                f"{alignment.policy.value} would reject this pod. Let the agent read the kubelet's configuration, or "
                f"state the policy by the node label {keys.TOPOLOGY_MANAGER.key}"
            )
            suited = [name for name in suited if name not in names]


def _would_reject(state: NodeState, profile: PodProfile, kubelet: KubeletModel) -> bool:
    """Return whether a kubelet that may be the node's certainly rejects the pod."""
    policies = {each.policy for each in state.kubelet.alignments}
    if NumaPolicy.NONE not in policies or len(policies) == 1 or state.shape is None or state.free is None:
        return False
    steps = whole_gpu_steps(profile.device_request, kubelet)
    return predict_sets(state.shape, state.free, steps, kubelet).sets == ExactSets(())
