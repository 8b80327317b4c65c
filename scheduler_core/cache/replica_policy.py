"""Which policy a device plugin with shared GPUs follows, from two reports of the kubelet. Pure.

Nothing publishes the plugin's ``sharedDevicesAllocationPolicy``, but each new replica shows a part of it: ``packed``
chooses the GPU with the most replicas in use that has a free one, ``distributed`` the GPU with the fewest. A replica
counts as evidence only if it is the single change between two reports.
"""

from __future__ import annotations

from collections import Counter

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node import NodeFacts


def replicas_of(machine: NodeFacts, report: NodeGpus | None) -> int | None:
    """Return the replicas of each GPU, by the label of the node, else by the kubelet's devices; None: unknown."""
    if machine.replicas is not None or report is None or report.kubelet is None:
        return machine.replicas
    return report.kubelet.replicas


def policy_shown(machine: NodeFacts, before: NodeGpus | None, after: NodeGpus | None) -> ReplicaPolicy | None:
    """Return the policy that a new replica shows; None if the reports show none. UNKNOWN: neither policy."""
    replicas = replicas_of(machine, after)
    if machine.topology is None or replicas is None or before is None or after is None:
        return None
    old, new = set(before.allocations or ()), set(after.allocations or ())
    added = new - old
    if before.allocations is None or old - new or len(added) != 1:
        return None
    used = Counter(each.gpu for each in old)
    free = [used[gpu.uuid or ""] for gpu in machine.topology.usable if used[gpu.uuid or ""] < replicas]
    chosen = used[added.pop().gpu]
    if not free or min(free) == max(free):
        return None
    if chosen == min(free):
        return ReplicaPolicy.DISTRIBUTED
    return ReplicaPolicy.PACKED if chosen == max(free) else ReplicaPolicy.UNKNOWN


def combine_policies(known: ReplicaPolicy | None, shown: ReplicaPolicy | None) -> ReplicaPolicy | None:
    """Return what is known after another observation: a contradiction leaves the policy unknown for good."""
    if shown is None or known is ReplicaPolicy.UNKNOWN:
        return known
    return shown if known in (None, shown) else ReplicaPolicy.UNKNOWN
