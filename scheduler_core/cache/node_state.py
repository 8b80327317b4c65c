"""What follows for placement from what was observed of a node. Pure; equal states are the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from gputopo.model import Interconnect
from scheduler_core.allocation.cpu_per_gpu import CpuPerGpu, cpu_per_gpu
from scheduler_core.allocation.gpu_sets import Sets
from scheduler_core.allocation.machine_shape import MachineShape, places_by_uuid, shape_of
from scheduler_core.allocation.named_shares import free_fraction, reserved_mib
from scheduler_core.allocation.occupancy import (
    KubeletReport,
    Occupancy,
    Occupant,
    OpenAdmissions,
    occupancy,
    reconcile_report,
    unallocated_profiles,
)
from scheduler_core.allocation.shared_gpus import ReplicaClaim, SharedGpus, SharingConfig, shared_gpus_of
from scheduler_core.cache.colocation import Colocation, OwnerPods, colocation_of
from scheduler_core.cache.node_cost import NodeCost
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.staleness import CONFIRMATION_GRACE_S, is_stale
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod_request import PodProfile


class NodeState(msgspec.Struct, frozen=True, eq=False):
    """A node as filters and scores see it. Compared by identity: equal ones are the same one."""

    shape: MachineShape | None = None
    free: Sets | None = None  # whole GPUs that may be free; None: there are none that could be told apart
    counts: tuple[tuple[str, int], ...] = ()  # free healthy devices of each GPU resource
    sliced: bool = False  # its "whole" GPUs are shares of GPUs (time slicing, MPS)
    unsettled: OpenAdmissions | None = None
    described: bool = False
    stale: bool = False
    degraded: bool = False  # as its label says; which GPUs: ``shape.degraded``
    interconnect: Interconnect | None = None
    single_numa: bool = False
    offered: tuple[tuple[str, int], ...] = ()  # healthy devices of each GPU resource, free or not
    driver: str | None = None  # version
    company: Colocation = Colocation()
    economy: NodeCost = NodeCost()
    ledger: SharedGpus | None = None  # of GPUs that pods share; None: none are, or it cannot be told which
    awaited: bool = False  # what confirms its graph is on its way, most likely
    kin: OwnerPods | None = None  # pods of the asking pod's owner on it; only in tables made for that pod
    cpu: CpuPerGpu | None = None  # for each free GPU; None: unknown
    obeys: bool = False
    promised: tuple[int, ...] = ()  # MiB of each GPU, by place, that shares hold; where ``obeys``
    waiting: frozenset[PodProfile] = frozenset()  # of pods with a required shape that the kubelet may not have admitted
    open: NodeState | None = None  # the same without what planners keep there; None: nothing is kept

    def free_devices(self, resource: str) -> int:
        """Free healthy devices of a resource."""
        return next((number for name, number in self.counts if name == resource), 0)


def state_of(record: NodeRecord, now: float, policy: Policy) -> NodeState:
    """What follows for placement. ``now``: seconds since 1970."""
    awaited = record.parted is not None and now <= record.parted + CONFIRMATION_GRACE_S
    return state_from_record(record, stale=is_stale(record, now, policy), awaited=awaited)


def state_from_record(record: NodeRecord, *, stale: bool, awaited: bool) -> NodeState:
    """What follows, where it was judged already whether the graph is gone by."""
    machine, unreserved = record.machine, None
    if record.reserved:
        others = tuple(pod for pod in record.pods if pod.uid not in record.reserved)
        alone = msgspec.structs.replace(record, pods=others, reserved=())
        unreserved = state_from_record(alone, stale=stale, awaited=awaited)
    shape = _shape(record, stale=stale)
    sliced = shape is not None and _sliced(record, shape)
    found: Occupancy | None = None
    word: KubeletReport | None = None
    if shape is not None and not sliced:
        word = _kubelet_report(record, shape)
        found = occupancy(shape, _allocatable_gpus(record), record.pods, word, single_numa=machine.single_numa)
    free = None if found is None else found.free
    promised = _reserved_mib(record, shape) if shape is not None and machine.obeys else ()
    return _shared_state(
        shape,
        free,
        _counts(record),
        sliced,
        None if found is None else found.open_admissions,
        machine.described,
        stale,
        machine.degraded,
        None if stale else machine.interconnect,
        machine.single_numa,
        machine.allocatable,
        None if machine.topology is None else machine.topology.driver_version,
        colocation_of(record.pods),
        machine.economy,
        None if machine.obeys else _shared_gpus(record, sliced=sliced),
        awaited,
        None,
        _cpu(record, shape, free, promised),
        machine.obeys,
        promised,
        frozenset()
        if sliced
        else unallocated_profiles(record.pods, word),  # shares of GPUs may be any, whoever comes first
        unreserved,
    )


def whole_gpu_shape(record: NodeRecord) -> MachineShape | None:
    """The GPUs of a node whose "whole" GPUs are handed out as such; None where that is not known, or not so."""
    shape = _shape(record, stale=False)
    return None if shape is None or _sliced(record, shape) else shape


def kubelet_report_of(record: NodeRecord) -> KubeletReport | None:
    """The kubelet's word on the whole GPUs of that node; None where there is none that can be read."""
    shape = whole_gpu_shape(record)
    return None if shape is None else _kubelet_report(record, shape)


def are_all_allocatable(record: NodeRecord, shape: MachineShape) -> bool:
    """Whether the device plugin offers all whole GPUs of the node: none is sick."""
    return _allocatable_gpus(record) == shape.whole.bit_count()


@lru_cache(maxsize=1 << 14)
def with_owner_pods(state: NodeState, kin: OwnerPods) -> NodeState:
    """The one state of all nodes that are in that state and have such kin of the asking pod."""
    return msgspec.structs.replace(state, kin=kin)


def _shape(record: NodeRecord, *, stale: bool) -> MachineShape | None:
    """None where GPUs are handed out that the topology does not know."""
    topology = record.machine.topology
    if (
        topology is None
        or not topology.usable
        or (topology.partial and _allocatable_gpus(record) > len(topology.usable))
    ):
        return None
    return shape_of(topology, without_links=stale)


def _allocatable_gpus(record: NodeRecord) -> int:
    return next((healthy for resource, healthy in record.machine.allocatable if resource == WHOLE), 0)


def _sliced(record: NodeRecord, shape: MachineShape) -> bool:
    return _allocatable_gpus(record) > shape.whole.bit_count()


def _shared_gpus(record: NodeRecord, *, sliced: bool) -> SharedGpus | None:
    if not sliced and all(resource != SHARED for resource, _ in record.machine.allocatable):
        return None  # most nodes
    topology, offered = record.machine.topology, dict(record.machine.allocatable)
    resource = WHOLE if sliced else SHARED
    cards = [gpu for gpu in (() if topology is None else topology.usable) if gpu.mig_enabled is not True]
    if not cards or not offered.get(resource) or (resource == SHARED and offered.get(WHOLE)):
        return None
    offer = SharingConfig(
        resource,
        {gpu.uuid or str(gpu.index): gpu.memory_mib for gpu in cards},
        offered[resource],
        record.machine.replicas,
        record.machine.choice,
    )
    word = None if record.gpus is None else record.gpus.allocations
    return shared_gpus_of(offer, _claims(record.pods, resource), word, _claims(record.departed, resource))


def _claims(pods: Iterable[Occupant], resource: str) -> list[ReplicaClaim]:
    wanted = ((pod, dict(pod.profile.device_request.totals).get(resource, 0)) for pod in pods)
    return [ReplicaClaim(pod, replicas) for pod, replicas in wanted if replicas]


def _counts(record: NodeRecord) -> tuple[tuple[str, int], ...]:
    taken = Counter[str]()
    for pod in record.pods:
        taken.update(dict(pod.profile.device_request.totals))
    return tuple((resource, max(0, healthy - taken[resource])) for resource, healthy in record.machine.allocatable)


def _kubelet_report(record: NodeRecord, shape: MachineShape) -> KubeletReport | None:
    if record.gpus is None or record.gpus.allocations is None or record.machine.topology is None:
        return None
    return reconcile_report(
        shape, places_by_uuid(record.machine.topology), record.gpus.allocations, record.pods, record.departed
    )


def _reserved_mib(record: NodeRecord, shape: MachineShape) -> tuple[int, ...]:
    allocations = (record.gpus and record.gpus.allocations) or ()
    return reserved_mib(places_by_uuid(record.machine.topology), len(shape.gpus), allocations, record.pods)


def _cpu(record: NodeRecord, shape: MachineShape | None, free: Sets | None, taken: tuple[int, ...]) -> CpuPerGpu | None:
    if shape is None or free is None or record.machine.cpu_milli is None:
        return None
    asked = (pod.profile.device_request.cpu_milli for pod in record.pods)
    return cpu_per_gpu(record.machine.cpu_milli, shape.whole.bit_count(), sum(free_fraction(shape, free, taken)), asked)


@lru_cache(maxsize=1 << 16)
def _shared_state(*fields: Any) -> NodeState:
    """The one state of all nodes that are in it."""
    return NodeState(*fields)
