"""Derive the state of a node, as filters and scores see it, from its record. Pure; equal states are one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from gputopo.model import Interconnect
from gputopo.recent_results import RecentResults, recent_results
from scheduler_core.allocation.cpu_per_gpu import CpuPerGpu, cpu_per_gpu
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, exact_sets, union
from scheduler_core.allocation.machine_shape import MachineShape, places_by_uuid, shape_of
from scheduler_core.allocation.named_shares import free_fraction, reserved_mib
from scheduler_core.allocation.numa_alignment import UNKNOWN_KUBELET, KubeletModel
from scheduler_core.allocation.occupancy import (
    KubeletReport,
    Occupancy,
    Occupant,
    OpenAdmissions,
    occupancy,
    reconcile_report,
    unallocated_profiles,
)
from scheduler_core.allocation.shared_gpus import ReplicaClaim, ReplicaPolicy, SharedGpus, SharingConfig, shared_gpus_of
from scheduler_core.allocation.symmetry import Permutation
from scheduler_core.cache.colocation import Colocation, OwnerPods, Proximity, colocation_of
from scheduler_core.cache.kubelet_model import kubelet_model
from scheduler_core.cache.node_cost import NodeCost
from scheduler_core.cache.node_nics import busy_nics, network_gbps, pending_nics
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.replica_policy import replicas_of
from scheduler_core.cache.staleness import CONFIRMATION_GRACE_S, is_stale
from scheduler_core.policy.policy import READS_NOTHING_MORE, NodeReads, Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod_request import PodProfile

_MOST_DIRECT = 8  # GPUs of a machine whose states are evaluated as they are
_DECISION_LOG_KEYS = {  # format 1 of decision logs keeps the fields' former names
    "free_counts": "counts",
    "open_admissions": "unsettled",
    "allocatable": "offered",
    "colocation": "company",
    "cost": "economy",
    "shared_gpus": "ledger",
    "confirmation_pending": "awaited",
    "owner_pods": "kin",
    "honours_gpu_choice": "obeys",
    "reserved_mib": "promised",
    "unadmitted_profiles": "waiting",
    "unreserved": "open",
}


class NodeExtras(NamedTuple):
    """Facts of a node that only some policies read (``NodeReads``)."""

    reads: NodeReads
    busy_percent: int | None = None  # mean busy share of its GPUs, in steps of 10; None: unknown
    labels: tuple[tuple[str, str], ...] = ()  # that extensions read, sorted by key
    name: str | None = None  # only for extensions that do not declare what they read


class NodeState(msgspec.Struct, frozen=True, eq=False, weakref=True, rename=_DECISION_LOG_KEYS):
    """A node as filters and scores see it. Compared by identity: equal states are one object."""

    shape: MachineShape | None = None
    free: Sets | None = None  # whole GPUs that may be free; None: the node has no whole GPUs, or they are not known
    free_counts: tuple[tuple[str, int], ...] = ()  # free healthy devices of each GPU resource
    sliced: bool = False  # its "whole" GPUs are shares of GPUs (time slicing, MPS)
    open_admissions: OpenAdmissions | None = None
    described: bool = False
    stale: bool = False
    degraded: bool = False  # by its label; ``shape.degraded`` has the GPUs
    interconnect: Interconnect | None = None
    kubelet: KubeletModel = UNKNOWN_KUBELET
    allocatable: tuple[tuple[str, int], ...] = ()  # healthy devices of each GPU resource, free or not
    driver: str | None = None  # version
    colocation: Colocation = Colocation()
    cost: NodeCost = NodeCost()
    shared_gpus: SharedGpus | None = None  # None: no GPU is shared, or the GPUs are not known
    confirmation_pending: bool = False  # a ``NodeGpus`` that confirms the link graph is expected within seconds
    owner_pods: OwnerPods | None = None  # of the owner of the pod being placed; only in snapshots made for that pod
    cpu: CpuPerGpu | None = None  # for each free GPU; None: unknown
    honours_gpu_choice: bool = False
    reserved_mib: tuple[int, ...] = ()  # held by shares on each GPU, by place; only where ``honours_gpu_choice``
    unadmitted_profiles: frozenset[PodProfile] = frozenset()  # with a required shape, perhaps not yet admitted
    unreserved: NodeState | None = None  # the state without reservations and holds; None: nothing is reserved
    extras: NodeExtras | None = None  # None: the policy reads nothing of this
    busy_nics: int = 0  # NICs that pods hold, by place in ``shape.topology.nics``
    pending_nics: int = 0  # further NICs, of pods that the kubelet has not reported yet; only where the node has NICs
    proximity: Proximity | None = None  # to siblings of the pod being placed; only in snapshots made for that pod
    network_gbps: tuple[float, ...] | None = None  # of each GPU over NICs, GB/s, both ways, by place; None: unknown

    def label(self, key: str) -> str | None:
        """Return a label that an extension of the policy reads; None: the node does not have it."""
        return None if self.extras is None else dict(self.extras.labels).get(key)

    def free_devices(self, resource: str) -> int:
        """Return the number of free healthy devices of a resource."""
        for name, number in self.free_counts:  # called very often: faster than ``next``
            if name == resource:
                return number
        return 0


def state_of(record: NodeRecord, now: float, policy: Policy) -> NodeState:
    """Return the state of a node. ``now``: seconds since 1970."""
    stale, pending = _link_graph_status(record, now, policy)
    return state_from_record(record, stale=stale, confirmation_pending=pending, reads=policy.reads)


def is_changed_by_time(state: NodeState, record: NodeRecord, now: float, policy: Policy) -> bool:
    """Return whether the state, derived from the same record earlier, is another one now."""
    return (state.stale, state.confirmation_pending) != _link_graph_status(record, now, policy)


def _link_graph_status(record: NodeRecord, now: float, policy: Policy) -> tuple[bool, bool]:
    """Return whether the link graph is stale, and whether its confirmation is expected within seconds."""
    since = record.hash_mismatch_since
    return is_stale(record, now, policy), since is not None and now <= since + CONFIRMATION_GRACE_S


def state_from_record(
    record: NodeRecord, *, stale: bool, confirmation_pending: bool, reads: NodeReads = READS_NOTHING_MORE
) -> NodeState:
    """Return the state of a node for which staleness has been decided."""
    facts, unreserved = record.machine, None
    if record.reserved:
        others = tuple(pod for pod in record.pods if pod.uid not in record.reserved)
        without = msgspec.structs.replace(record, pods=others, reserved=())
        unreserved = state_from_record(without, stale=stale, confirmation_pending=confirmation_pending, reads=reads)
    shape = _shape(record, stale=stale)
    sliced = shape is not None and _sliced(record, shape)
    occupied: Occupancy | None = None
    report: KubeletReport | None = None
    kubelet = UNKNOWN_KUBELET
    if sliced:
        kubelet = kubelet_model(record, None)
    elif shape is not None:
        report = _kubelet_report(record, shape)
        kubelet = kubelet_model(record, report)
        occupied = occupancy(shape, _allocatable_gpus(record), record.pods, report, kubelet)
    free = None if occupied is None else occupied.free
    reserved_mib = _reserved_mib_of(record, shape) if shape is not None and facts.honours_gpu_choice else ()
    return _interned(
        NodeState(
            shape=shape,
            free=free,
            free_counts=_free_counts(record),
            sliced=sliced,
            open_admissions=None if occupied is None else occupied.open_admissions,
            described=facts.described,
            stale=stale,
            degraded=facts.degraded,
            interconnect=None if stale else facts.interconnect,
            kubelet=kubelet,
            allocatable=facts.allocatable,
            driver=None if facts.topology is None else facts.topology.driver_version,
            colocation=colocation_of(record.pods),
            cost=facts.cost,
            shared_gpus=None if facts.honours_gpu_choice else _shared_gpus_of(record, sliced=sliced),
            confirmation_pending=confirmation_pending,
            cpu=_cpu(record, shape, free, reserved_mib),
            honours_gpu_choice=facts.honours_gpu_choice,
            reserved_mib=reserved_mib,
            # Shares of GPUs have no shape that another pod could break.
            unadmitted_profiles=frozenset() if sliced else unallocated_profiles(record.pods, report),
            unreserved=unreserved,
            extras=None if reads is READS_NOTHING_MORE else _extras(record, reads, stale=stale),
            busy_nics=busy_nics(record),
            pending_nics=pending_nics(record),
            network_gbps=None if stale else network_gbps(record),
        )
    )


def product_of(state: NodeState) -> str | None:
    """Return the product of all GPUs of the node; None: unknown, or several."""
    return None if state.shape is None else state.shape.product


def whole_gpu_shape(record: NodeRecord) -> MachineShape | None:
    """Return the shape of a node that allocates whole GPUs; None where it shares them, or its GPUs are unknown."""
    shape = _shape(record, stale=False)
    return None if shape is None or _sliced(record, shape) else shape


def kubelet_report_of(record: NodeRecord) -> KubeletReport | None:
    """Return the kubelet report on the whole GPUs of the node; None where there is no usable report."""
    shape = whole_gpu_shape(record)
    return None if shape is None else _kubelet_report(record, shape)


def are_offers_known(record: NodeRecord, shape: MachineShape, report: KubeletReport) -> bool:
    """Return whether it is known which whole GPUs of the node the device plugin offers."""
    return _allocatable_gpus(record) + report.withdrawn.bit_count() == shape.whole.bit_count()


@recent_results(1 << 14)
def with_owner_pods(state: NodeState, owner_pods: OwnerPods) -> NodeState:
    """Return the state with pods of one owner; one object for equal arguments."""
    return msgspec.structs.replace(state, owner_pods=owner_pods)


@recent_results(1 << 12)
def with_any_free_gpus(state: NodeState, colocation: Colocation) -> NodeState:
    """Return the state as if it were unknown which GPUs are free, and with this colocation.

    Only GPUs that a pod surely holds count as in use. The node has whole GPUs. Equal arguments give the same object.
    """
    assert state.free is not None
    among = state.free.among if state.open_admissions is None else state.open_admissions.among
    free = SomeSet(among, state.free_devices(WHOLE))
    return msgspec.structs.replace(state, free=free, open_admissions=None, colocation=colocation)


@recent_results(1 << 14)
def with_proximity(state: NodeState, proximity: Proximity) -> NodeState:
    """Return the state of a node that is so near to siblings; one object for equal arguments."""
    return msgspec.structs.replace(state, proximity=proximity)


def _shape(record: NodeRecord, *, stale: bool) -> MachineShape | None:
    """Return None where the device plugin offers GPUs that the topology does not list."""
    topology = record.machine.topology
    if topology is None or not any(gpu.usable for gpu in topology.gpus):
        return None
    if topology.partial and _allocatable_gpus(record) > len(topology.usable):
        return None
    return shape_of(topology, without_links=stale)


def _allocatable_gpus(record: NodeRecord) -> int:
    for resource, healthy in record.machine.allocatable:
        if resource == WHOLE:
            return healthy
    return 0


def _sliced(record: NodeRecord, shape: MachineShape) -> bool:
    return _allocatable_gpus(record) > shape.whole.bit_count()


def _shared_gpus_of(record: NodeRecord, *, sliced: bool) -> SharedGpus | None:
    if not sliced and all(resource != SHARED for resource, _ in record.machine.allocatable):
        return None  # most nodes
    topology, allocatable = record.machine.topology, dict(record.machine.allocatable)
    resource = WHOLE if sliced else SHARED
    gpus = [gpu for gpu in (() if topology is None else topology.usable) if gpu.mig_enabled is not True]
    if not gpus or not allocatable.get(resource) or (resource == SHARED and allocatable.get(WHOLE)):
        return None
    config = SharingConfig(
        resource,
        {gpu.uuid or str(gpu.index): gpu.memory_mib for gpu in gpus},
        allocatable[resource],
        replicas_of(record.machine, record.gpus),
        _replica_policy(record),
    )
    allocations = None if record.gpus is None else record.gpus.allocations
    return shared_gpus_of(config, _claims(record.pods, resource), allocations, _claims(record.departed, resource))


def _replica_policy(record: NodeRecord) -> ReplicaPolicy:
    """Return the policy by the label of the node, else as its allocations showed it."""
    labelled = record.machine.replica_policy
    return labelled if labelled is not ReplicaPolicy.UNKNOWN else record.observed_policy or ReplicaPolicy.UNKNOWN


def _claims(pods: Iterable[Occupant], resource: str) -> list[ReplicaClaim]:
    wanted = ((pod, dict(pod.profile.device_request.totals).get(resource, 0)) for pod in pods)
    return [ReplicaClaim(pod, replicas) for pod, replicas in wanted if replicas]


def _free_counts(record: NodeRecord) -> tuple[tuple[str, int], ...]:
    taken: dict[str, int] = {}
    for pod in record.pods:
        for resource, devices in pod.profile.device_request.totals:
            taken[resource] = taken.get(resource, 0) + devices
    return tuple(
        [(resource, max(0, healthy - taken.get(resource, 0))) for resource, healthy in record.machine.allocatable]
    )


def _kubelet_report(record: NodeRecord, shape: MachineShape) -> KubeletReport | None:
    if record.gpus is None or record.gpus.allocations is None or record.machine.topology is None:
        return None
    place_of = places_by_uuid(record.machine.topology)
    names = () if record.gpus.kubelet is None else record.gpus.kubelet.withdrawn or ()
    withdrawn = shape.whole & union([1 << place_of[each] for each in names if each in place_of])
    if withdrawn.bit_count() != shape.whole.bit_count() - _allocatable_gpus(record):
        withdrawn = 0  # the Node and the report disagree: one of them is late
    return reconcile_report(shape, place_of, record.gpus.allocations, record.pods, record.departed, withdrawn=withdrawn)


def _reserved_mib_of(record: NodeRecord, shape: MachineShape) -> tuple[int, ...]:
    allocations = (record.gpus and record.gpus.allocations) or ()
    return reserved_mib(places_by_uuid(record.machine.topology), len(shape.gpus), allocations, record.pods)


def _extras(record: NodeRecord, reads: NodeReads, *, stale: bool) -> NodeExtras | None:
    if reads == READS_NOTHING_MORE:
        return None
    usage = None if record.gpus is None or stale or not reads.load else record.gpus.usage
    busy = [each.busy_percent for each in usage or () if each.busy_percent is not None]
    labels = record.machine.extension_labels
    return NodeExtras(
        reads,
        10 * round(sum(busy) / len(busy) / 10) if busy else None,
        labels if reads.everything else tuple(each for each in labels if each[0] in reads.labels),
        record.name if reads.everything else None,
    )


def _cpu(record: NodeRecord, shape: MachineShape | None, free: Sets | None, taken: tuple[int, ...]) -> CpuPerGpu | None:
    if shape is None or free is None or record.machine.cpu_milli is None:
        return None
    asked = (pod.profile.device_request.cpu_milli for pod in record.pods)
    return cpu_per_gpu(record.machine.cpu_milli, shape.whole.bit_count(), sum(free_fraction(shape, free, taken)), asked)


def _interned(state: NodeState) -> NodeState:
    """Return one object for all equal states."""
    return _STATES.setdefault(msgspec.structs.astuple(state), state)


_STATES: WeakValueDictionary[tuple[Any, ...], NodeState] = WeakValueDictionary()


def canonical_state(state: NodeState) -> NodeState:
    """Return the same state for all that are equal up to an exchange of GPUs that neither filters nor scores notice.

    Only where the exchange is known to be unnoticed, and on machines of more than ``_MOST_DIRECT`` GPUs: smaller ones
    have few states.
    """
    shape = state.shape
    if shape is None or len(shape.gpus) <= _MOST_DIRECT or _names_places(state):
        return state
    return _canonical_states(state)


def known_canonical_state(state: NodeState) -> NodeState | None:
    """Return the canonical state if it was computed before; None also if the state is evaluated as it is."""
    return _canonical_states.known(state)


def _canonical_state(state: NodeState) -> NodeState:
    assert state.shape is not None
    # Hints of the Topology Manager prefer low ids of NUMA nodes; so does the classic rule for nodes without an agent.
    by_id = state.kubelet.aligns or not state.described
    symmetry = state.shape.symmetry_on_numa_nodes if by_id else state.shape.symmetry
    if symmetry.is_trivial:
        return state
    return _exchanged(state, symmetry.permutation(*_distinctive_sets(state)))


_canonical_states = RecentResults(_canonical_state, 1 << 14)


def _names_places(state: NodeState) -> bool:
    """Return whether the state refers to GPUs or NICs by more than the sets of free GPUs."""
    uneven = len(set(state.network_gbps or ())) > 1
    nics, shares = bool(state.busy_nics or state.pending_nics), bool(state.shared_gpus or state.reserved_mib)
    if uneven or nics or shares or state.owner_pods is not None:
        return True
    return state.unreserved is not None and _names_places(state.unreserved)


def _distinctive_sets(state: NodeState) -> tuple[int, ...]:
    own: tuple[int, ...] = ()
    if state.open_admissions is not None:
        own = state.open_admissions.start, *state.open_admissions.releases
    elif state.free is not None:
        own = (state.free.among,)
    return own if state.unreserved is None else own + _distinctive_sets(state.unreserved)


def _exchanged(state: NodeState, exchange: Permutation) -> NodeState:
    free, admissions, unreserved = state.free, state.open_admissions, state.unreserved
    if isinstance(free, ExactSets):
        free = exact_sets(set(exchange.apply_all(free.masks)))
    elif free is not None:
        free = SomeSet(exchange.apply(free.among), free.size)
    if admissions is not None:
        start, pending, releases = admissions
        moved = tuple(sorted(map(exchange.apply, releases)))
        admissions = OpenAdmissions(exchange.apply(start), tuple(sorted(pending, key=repr)), moved)
    if unreserved is not None:
        unreserved = _exchanged(unreserved, exchange)
    return _interned(msgspec.structs.replace(state, free=free, open_admissions=admissions, unreserved=unreserved))
