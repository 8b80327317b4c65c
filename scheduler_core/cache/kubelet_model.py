"""The model of a node's kubelet, from the agent's report and the label of the Node. Pure."""

from __future__ import annotations

from functools import lru_cache

from gputopo.crd.nodegpus import KubeletFacts, NumaResources
from scheduler_core.allocation.numa_alignment import (
    KubeletModel,
    NumaCapacity,
    NumaPolicy,
    parse_numa_policy,
    possible_alignments,
)
from scheduler_core.allocation.occupancy import KubeletReport
from scheduler_core.cache.node_record import NodeRecord

_POD_SCOPE = {"container": False, "pod": True}  # ``topologyManagerScope``


def kubelet_model(record: NodeRecord, report: KubeletReport | None) -> KubeletModel:
    """Return the model of the kubelet. ``report``: on the whole GPUs; None: there is no usable report.

    The policy in the kubelet's configuration file counts before the node's label. A label that names another policy
    may be right too: a flag of the kubelet overrides its file.
    """
    facts, labelled = None if record.gpus is None else record.gpus.kubelet, record.machine.numa_policy
    outdated = facts is not None and facts.numa_nodes is not None and _is_outdated(record, report)
    return _model(facts, labelled, outdated)


@lru_cache(maxsize=1 << 12)
def _model(published: KubeletFacts | None, labelled: NumaPolicy | None, outdated: bool) -> KubeletModel:
    """Return one object for equal arguments."""
    facts = published or KubeletFacts()
    policy = parse_numa_policy(facts.topology_manager_policy)
    sockets = facts.align_by_socket
    if policy is None:
        alignments = possible_alignments(labelled, by_socket=sockets)
    else:
        scope, closest = facts.topology_manager_scope, facts.prefer_closest_numa_nodes
        alignments = possible_alignments(
            policy, pod_scope=_POD_SCOPE.get(scope or ""), closest=closest, by_socket=sockets
        )
        if labelled not in (None, policy):
            alignments += possible_alignments(labelled, by_socket=sockets)
    nodes = None
    if facts.numa_nodes is not None and (facts.exclusive_cpus or facts.pinned_memory) and not outdated:
        nodes = tuple(map(_numa_node, facts.numa_nodes))
    return KubeletModel(
        alignments, facts.exclusive_cpus, facts.pinned_memory, nodes, facts.full_physical_cores, facts.cpus_per_core
    )


def _numa_node(each: NumaResources) -> NumaCapacity:
    return NumaCapacity(each.id, each.cpus, each.free_cpus, each.memory, each.free_memory, each.group)


def _is_outdated(record: NodeRecord, report: KubeletReport | None) -> bool:
    """Return whether pods with exclusive CPUs or memory came or went since the report. Their NUMA nodes are unknown."""
    reported = {} if report is None else report.allocated
    return any(
        pod.profile.device_request.aligned_steps for pod in (*record.departed, *record.pods) if pod.uid not in reported
    )
