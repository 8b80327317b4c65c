"""The cost of the eviction of a pod: GPU-hours of work, and money where the cost of the node is known. Pure."""

from __future__ import annotations

from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.evaluation.job_times import JobTimes
from scheduler_core.policy.preemption import PreemptionPolicy
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.request.device_request import WHOLE

_HOUR_S = 3_600.0
# Serving loses no work: only the time until a replacement answers.
_WITHOUT_WORK = (WorkloadClass.INFERENCE,)


def lost_seconds(
    times: JobTimes, workload_class: WorkloadClass, age_s: float, grace_s: float, policy: PreemptionPolicy
) -> float:
    """Return the time that each GPU of a unit loses. ``age_s``: ``checkpoint_age``."""
    work = 0.0 if workload_class in _WITHOUT_WORK else min(age_s, policy.max_lost_work_s)
    restart = policy.default_restart_s if times.restart_s is None else times.restart_s
    return work + restart + grace_s


def gpus_of(record: NodeRecord | None, devices: tuple[tuple[str, int], ...]) -> float:
    """Return the GPUs that these devices are: a share of a GPU, or a MIG device, is a part of one."""
    if record is None:
        return 0.0
    topology, offered = record.machine.topology, dict(record.machine.allocatable)
    physical = 0 if topology is None else len(topology.usable)
    total = 0.0
    for resource, number in devices:
        share = physical / offered[resource] if physical and offered.get(resource) else 1.0
        total += number if resource == WHOLE and share > 1 else number * min(1.0, share)
    return total


def gpu_hours(gpus: float, seconds: float) -> float:
    """Return the GPU-hours that so many GPUs lose."""
    return gpus * seconds / _HOUR_S
