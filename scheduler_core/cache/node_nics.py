"""The network cards (NICs) of a node that pods may use, from its record."""

from __future__ import annotations

from collections.abc import Collection

from scheduler_core.allocation.gpu_sets import union
from scheduler_core.allocation.network_rates import gpu_nics, gpu_rates
from scheduler_core.cache.node_record import NodeRecord


def network_gbps(record: NodeRecord, own_pods: Collection[tuple[str, str]] = ()) -> tuple[float, ...] | None:
    """Return the GB/s of each GPU over NICs that other pods do not hold; None: the rates are not published.

    ``own_pods``: namespace and name of pods whose NICs count.
    """
    topology, gpus = record.machine.topology, record.gpus
    if topology is None or gpus is None or gpus.nic_rates is None:
        return None
    near = gpu_nics(topology, record.machine.storage_nics)
    if not near:
        return None
    rates = {each.nic: each.gbps for each in gpus.nic_rates}
    return gpu_rates(topology, rates, near & ~busy_nics(record, own_pods), pending_nics(record, own_pods))


def busy_nics(record: NodeRecord, own_pods: Collection[tuple[str, str]] = ()) -> int:
    """Return the NICs that carry storage traffic, or that pods hold as a whole.

    A held virtual function leaves its card to others.
    """
    topology, held = record.machine.topology, (record.gpus and record.gpus.nics) or ()
    storage = record.machine.storage_nics
    if topology is None or not (held or storage):
        return 0
    names = {
        each.nic
        for each in held
        if each.virtual_function is None and (each.pod.namespace, each.pod.name) not in own_pods
    }
    return union(1 << place for place, nic in enumerate(topology.nics) if nic.name in names or nic.name in storage)


def pending_nics(record: NodeRecord, own_pods: Collection[tuple[str, str]] = ()) -> int:
    """Return how many NICs pods may have or get that no report names: none of their devices is known to be no NIC."""
    topology = record.machine.topology
    if (
        topology is None
        or not topology.nics
        or not any(pod.profile.device_request.other_devices for pod in record.pods)
    ):
        return 0  # most nodes
    report = record.gpus
    reported = set()
    if report is not None and report.nics is not None:
        holders = [each.pod for each in report.allocations or ()] + [each.pod for each in report.nics]
        departed = {(pod.namespace, pod.name) for pod in record.departed}
        reported = {(pod.namespace, pod.name) for pod in holders} - departed
    reported.update(own_pods)
    waiting = (pod for pod in record.pods if (pod.namespace, pod.name) not in reported)
    return min(len(topology.nics), sum(pod.profile.device_request.other_devices for pod in waiting))
