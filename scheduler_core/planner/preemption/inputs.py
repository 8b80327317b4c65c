"""The inputs of a search for pods to evict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from statistics import median
from typing import NamedTuple

from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.job_times import NearEndSince
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.policy.preemption import PreemptionPolicy
from scheduler_core.policy.workload_class import WorkloadClass

_MIN_NAMESPACES = 3  # with declared checkpoints, for a median


class EvictedDevices(NamedTuple):
    """Devices of pods of a workload that were evicted for one hold."""

    at: float  # the first eviction, seconds since 1970
    devices: int  # 0: pods without devices, or evicted for a gang of their own namespace
    priority: int | None = None  # of the gang that they were evicted for; None: unknown

    def protects_from(self, priority: int) -> bool:
        """Return whether the cool-down protects from gangs of a priority.

        It does not protect from a higher one: a tenant could protect its pods by evictions for gangs of its own.
        """
        return self.priority is None or priority <= self.priority


class UnitInputs(NamedTuple):
    """The cluster as far as evictions for one gang are concerned."""

    beneficiary: Gang
    table: ClusterSnapshot
    gangs: tuple[Gang, ...]  # with placed members
    disruptions: Disruptions
    deadlines: PodDeadlines
    policy: PreemptionPolicy
    now: float  # seconds since 1970
    evicted: Mapping[str, tuple[EvictedDevices, ...]] = {}  # by ``EvictionUnit.key``
    near_end_since: Mapping[str, NearEndSince] = {}  # by UID of pods: ``UnitsFound.near_end_since`` of earlier calls
    starting: AbstractSet[str] = frozenset()  # UIDs of the members that a reservation in the ledger places
    ending_s: float = 300.0  # pods that end within this time count as gone
    is_out_of_time: Callable[[], bool] = lambda: False  # called often: no more units are found
    # Pods with GPUs of the beneficiary's namespace that may be evicted in this hour, in place of the policy's limit.
    most_own_pods: int | None = None


class CheckpointAges:
    """Ages of the last checkpoints that workloads declare, by workload class."""

    def __init__(self) -> None:
        self._ages: dict[WorkloadClass, dict[str, list[float]]] = {}  # by class and namespace

    def add(self, workload_class: WorkloadClass, namespace: str, age_s: float) -> None:
        """Add the age that a workload declares."""
        self._ages.setdefault(workload_class, {}).setdefault(namespace, []).append(age_s)

    def median_of(self, workload_class: WorkloadClass, default: float) -> float:
        """Return the median over namespaces, which one tenant cannot move; the default where too few declare ages."""
        found = self._ages.get(workload_class, {})
        return median(map(median, found.values())) if len(found) >= _MIN_NAMESPACES else default
