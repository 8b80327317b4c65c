"""What follows for placement from what was observed of a node. Pure; equal states are the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from gputopo.model import Interconnect
from scheduler_core.allocation.cpu_per_gpu import Cpu, cpu_of
from scheduler_core.allocation.gpu_sets import Sets
from scheduler_core.allocation.machine_shape import Shape, shape_of
from scheduler_core.allocation.named_shares import left, promised
from scheduler_core.allocation.occupancy import Occupancy, Occupant, Unsettled, Word, occupancy, settle, waiting
from scheduler_core.allocation.shared_gpus import Claim, Ledger, Offer, ledger
from scheduler_core.cache.colocation import Company, Kin, company
from scheduler_core.cache.node_cost import Economy
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.staleness import AWAITED_S, is_stale
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod_request import Profile


class NodeState(msgspec.Struct, frozen=True, eq=False):
    """A node as filters and scores see it. Compared by identity: equal ones are the same one."""

    shape: Shape | None = None
    free: Sets | None = None  # whole GPUs that may be free; None: there are none that could be told apart
    counts: tuple[tuple[str, int], ...] = ()  # free healthy devices of each GPU resource
    sliced: bool = False  # its "whole" GPUs are shares of GPUs (time slicing, MPS)
    unsettled: Unsettled | None = None
    described: bool = False
    stale: bool = False
    degraded: bool = False  # as its label says; which GPUs: ``shape.degraded``
    interconnect: Interconnect | None = None
    single_numa: bool = False
    offered: tuple[tuple[str, int], ...] = ()  # healthy devices of each GPU resource, free or not
    driver: str | None = None  # version
    company: Company = Company()
    economy: Economy = Economy()
    ledger: Ledger | None = None  # of GPUs that pods share; None: none are, or it cannot be told which
    awaited: bool = False  # what confirms its graph is on its way, most likely
    kin: Kin | None = None  # pods of the asking pod's owner on it; only in tables made for that pod
    cpu: Cpu | None = None  # for each free GPU; None: unknown
    obeys: bool = False
    promised: tuple[int, ...] = ()  # MiB of each GPU, by place, that shares hold; where ``obeys``
    waiting: frozenset[Profile] = frozenset()  # of pods with a required shape that the kubelet may not have admitted
    open: NodeState | None = None  # the same without what planners keep there; None: nothing is kept

    def count(self, resource: str) -> int:
        """Free healthy devices of a resource."""
        return next((number for name, number in self.counts if name == resource), 0)


def state_of(record: NodeRecord, now: float, policy: Policy) -> NodeState:
    """What follows for placement. ``now``: seconds since 1970."""
    awaited = record.parted is not None and now <= record.parted + AWAITED_S
    return derived(record, stale=is_stale(record, now, policy), awaited=awaited)


def derived(record: NodeRecord, *, stale: bool, awaited: bool) -> NodeState:
    """What follows, where it was judged already whether the graph is gone by."""
    machine, unreserved = record.machine, None
    if record.reserved:
        others = tuple(pod for pod in record.pods if pod.uid not in record.reserved)
        alone = msgspec.structs.replace(record, pods=others, reserved=())
        unreserved = derived(alone, stale=stale, awaited=awaited)
    shape = _shape(record, stale=stale)
    sliced = shape is not None and _sliced(record, shape)
    found: Occupancy | None = None
    word: Word | None = None
    if shape is not None and not sliced:
        word = _word(record, shape)
        found = occupancy(shape, _offered(record), record.pods, word, single_numa=machine.single_numa)
    free = None if found is None else found.free
    promised = _promised(record, shape) if shape is not None and machine.obeys else ()
    return _shared(
        shape,
        free,
        _counts(record),
        sliced,
        None if found is None else found.unsettled,
        machine.described,
        stale,
        machine.degraded,
        None if stale else machine.interconnect,
        machine.single_numa,
        machine.allocatable,
        None if machine.topology is None else machine.topology.driver_version,
        company(record.pods),
        machine.economy,
        None if machine.obeys else _ledger(record, sliced=sliced),
        awaited,
        None,
        _cpu(record, shape, free, promised),
        machine.obeys,
        promised,
        frozenset() if sliced else waiting(record.pods, word),  # shares of GPUs may be any, whoever comes first
        unreserved,
    )


def whole_gpus(record: NodeRecord) -> Shape | None:
    """The GPUs of a node whose "whole" GPUs are handed out as such; None where that is not known, or not so."""
    shape = _shape(record, stale=False)
    return None if shape is None or _sliced(record, shape) else shape


def word_of(record: NodeRecord) -> Word | None:
    """The kubelet's word on the whole GPUs of that node; None where there is none that can be read."""
    shape = whole_gpus(record)
    return None if shape is None else _word(record, shape)


def offers_all(record: NodeRecord, shape: Shape) -> bool:
    """Whether the device plugin offers all whole GPUs of the node: none is sick."""
    return _offered(record) == shape.whole.bit_count()


@lru_cache(maxsize=1 << 14)
def with_kin(state: NodeState, kin: Kin) -> NodeState:
    """The one state of all nodes that are in that state and have such kin of the asking pod."""
    return msgspec.structs.replace(state, kin=kin)


def _shape(record: NodeRecord, *, stale: bool) -> Shape | None:
    """None where GPUs are handed out that the topology does not know."""
    topology = record.machine.topology
    if topology is None or not topology.usable or (topology.partial and _offered(record) > len(topology.usable)):
        return None
    return shape_of(topology, stale=stale)


def _offered(record: NodeRecord) -> int:
    return next((healthy for resource, healthy in record.machine.allocatable if resource == WHOLE), 0)


def _sliced(record: NodeRecord, shape: Shape) -> bool:
    return _offered(record) > shape.whole.bit_count()


def _ledger(record: NodeRecord, *, sliced: bool) -> Ledger | None:
    if not sliced and all(resource != SHARED for resource, _ in record.machine.allocatable):
        return None  # most nodes
    topology, offered = record.machine.topology, dict(record.machine.allocatable)
    resource = WHOLE if sliced else SHARED
    cards = [gpu for gpu in (() if topology is None else topology.usable) if gpu.mig_enabled is not True]
    if not cards or not offered.get(resource) or (resource == SHARED and offered.get(WHOLE)):
        return None
    offer = Offer(
        resource,
        {gpu.uuid or str(gpu.index): gpu.memory_mib for gpu in cards},
        offered[resource],
        record.machine.replicas,
        record.machine.choice,
    )
    word = None if record.gpus is None else record.gpus.allocations
    return ledger(offer, _claims(record.pods, resource), word, _claims(record.departed, resource))


def _claims(pods: Iterable[Occupant], resource: str) -> list[Claim]:
    wanted = ((pod, dict(pod.profile.ask.totals).get(resource, 0)) for pod in pods)
    return [Claim(pod, replicas) for pod, replicas in wanted if replicas]


def _counts(record: NodeRecord) -> tuple[tuple[str, int], ...]:
    taken = Counter[str]()
    for pod in record.pods:
        taken.update(dict(pod.profile.ask.totals))
    return tuple((resource, max(0, healthy - taken[resource])) for resource, healthy in record.machine.allocatable)


def _word(record: NodeRecord, shape: Shape) -> Word | None:
    if record.gpus is None or record.gpus.allocations is None or record.machine.topology is None:
        return None
    return settle(shape, _places(record), record.gpus.allocations, record.pods, record.departed)


def _promised(record: NodeRecord, shape: Shape) -> tuple[int, ...]:
    allocations = (record.gpus and record.gpus.allocations) or ()
    return promised(_places(record), len(shape.gpus), allocations, record.pods)


def _cpu(record: NodeRecord, shape: Shape | None, free: Sets | None, taken: tuple[int, ...]) -> Cpu | None:
    if shape is None or free is None or record.machine.cpu_milli is None:
        return None
    asked = (pod.profile.ask.cpu_milli for pod in record.pods)
    return cpu_of(record.machine.cpu_milli, shape.whole.bit_count(), sum(left(shape, free, taken)), asked)


def _places(record: NodeRecord) -> dict[str, int]:
    gpus = () if record.machine.topology is None else record.machine.topology.gpus
    return {gpu.uuid: place for place, gpu in enumerate(gpus) if gpu.uuid is not None}


@lru_cache(maxsize=1 << 16)
def _shared(*fields: Any) -> NodeState:
    """The one state of all nodes that are in it."""
    return NodeState(*fields)
