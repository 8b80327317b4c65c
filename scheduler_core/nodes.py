"""What is known of the nodes, as immutable values: from what the cluster says to what filters and scores look at. Pure.

``NodeRecord`` is what was observed (and all that a decision can be recomputed from); ``NodeState`` is what follows from
it for placement. Nodes in the same state share one ``NodeState``, so what is worked out for one holds for all. A
``NodeTable`` is all nodes at one moment: whoever watches the cluster makes the next one and swaps the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import lru_cache
from math import inf
from typing import Any

import msgspec
from immutables import Map

from gputopo.labels import annotation, keys
from gputopo.labels.decode import NoTopologyError, decode
from gputopo.labels.nodegpus import NodeGpus, content_hash
from gputopo.labels.resources import is_gpu
from gputopo.model import Gpu, Interconnect, NodeTopology
from scheduler_core.asks import SHARED, WHOLE, MalformedAskError, read_ask
from scheduler_core.company import Company, Kin, company
from scheduler_core.cpu import Cpu, cpu_of
from scheduler_core.economy import Economy, read_economy
from scheduler_core.occupancy import Occupancy, Occupant, Unsettled, Word, occupancy, settle
from scheduler_core.pods import Metadata, Pod
from scheduler_core.policy import Policy
from scheduler_core.quantity import count, quantity
from scheduler_core.request import PodRequest, Profile, Refused, read_request
from scheduler_core.sets import Sets
from scheduler_core.shapes import Shape, shape_of
from scheduler_core.shares import left, promised
from scheduler_core.sharing import Choice, Claim, Ledger, Offer, ledger

_MOST_DEPARTED = 64  # remembered of a node whose agent is silent; far more than can be followed anyway
_SINGLE_NUMA = "single-numa-node"
AHEAD_S = 600.0  # a clock further ahead of ours than that says nothing about the age of what it stamps
AWAITED_S = 30.0  # Node and ``NodeGpus`` are written within seconds of each other, and come over two watches


class Staleness(Enum):
    """Why a graph is not gone by: nobody confirms now that the machine is still as the annotation says."""

    SILENT = "silent"  # confirmed too long ago
    UNCONFIRMED = "unconfirmed"  # there is no ``NodeGpus``
    OTHER = "other"  # its ``NodeGpus`` speaks of another graph than the Node carries
    AHEAD = "ahead"  # confirmed at a time that is far from having come


class NodeStatus(msgspec.Struct, frozen=True):
    """``status`` of a Node, as far as needed."""

    allocatable: dict[str, str | int] | None = None


class Node(msgspec.Struct, frozen=True):
    """The few fields of a Node that placement needs."""

    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


class Machine(msgspec.Struct, frozen=True):
    """What a Node object tells of its GPUs."""

    topology: NodeTopology | None  # None: nothing on it speaks of GPUs
    described: bool  # by our annotation; else by labels alone, whoever wrote them
    allocatable: tuple[tuple[str, int], ...]  # GPU resources, healthy devices of each
    degraded: bool = False  # as its label says
    interconnect: Interconnect | None = None  # as its labels say; without a graph only a hint
    single_numa: bool = False  # its Topology Manager rejects what spans NUMA nodes
    economy: Economy = Economy()
    replicas: int | None = None  # of each GPU, as its label says
    choice: Choice = Choice.DISTRIBUTED  # among replicas
    topology_hash: str | None = None  # of our annotation (``nodegpus.content_hash``); None: not described by one
    cpu_milli: int | None = None  # allocatable
    obeys: bool = False  # its device plugin gives a share of a GPU on the GPU that the scheduler names


class NodeRecord(msgspec.Struct, frozen=True):
    """All that was observed of one node."""

    name: str
    machine: Machine
    gpus: NodeGpus | None = None  # the kubelet's word, as the agent publishes it
    pods: tuple[Occupant, ...] = ()  # that hold GPUs, by UID
    departed: tuple[Occupant, ...] = ()  # gone since the kubelet's word
    parted: float | None = None  # since when Node and ``gpus`` do not speak of one graph, in seconds since 1970


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

    def count(self, resource: str) -> int:
        """Free healthy devices of a resource."""
        return next((number for name, number in self.counts if name == resource), 0)


class NodeTable(msgspec.Struct, frozen=True):
    """All nodes, at one moment."""

    generation: int = 0
    records: Map[str, NodeRecord] = Map()  # persistent: the next table shares all that is alike
    states: Map[str, NodeState] = Map()


def read_node(node: Node) -> Machine:
    """What a Node object tells. What cannot be read is unknown."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    allocatable = dict(_allocatable(node))
    described = _topology(labels, annotations) if keys.TOPOLOGY.key in annotations else None
    # Hand-made labels often say which GPUs, and leave how many to the device plugin.
    counted = {keys.NVIDIA_COUNT.key: str(allocatable.get(WHOLE, 0)), **labels}
    topology = _topology(counted, {}) if described is None else described
    return Machine(
        topology=topology,
        described=described is not None,
        allocatable=tuple(sorted(allocatable.items())),
        degraded=labels.get(keys.DEGRADED.key) == "true",
        interconnect=_interconnect(labels),
        single_numa=labels.get(keys.TOPOLOGY_MANAGER.key) == _SINGLE_NUMA,
        economy=read_economy(labels, topology, allocatable.get(WHOLE, 0)),
        replicas=count(labels.get(keys.NVIDIA_REPLICAS, "")) or None,
        choice=_choice(labels),
        topology_hash=None if described is None else content_hash(annotations[keys.TOPOLOGY.key]),
        cpu_milli=_cpu_milli(node),
    )


def read_occupant(pod: Pod, read: Callable[[Pod], PodRequest | Refused] = read_request) -> Occupant | None:
    """A pod on a node; None where it holds no GPU. ``read``: what it asks for, by a policy of its own."""
    if pod.finished:
        return None
    try:
        ask = read_ask(pod.spec)
    except MalformedAskError:  # the API server takes no such pod
        return None
    if not ask.programs:  # most pods: whatever they wish does not matter
        return None
    request = read(pod)
    profile = request.profile if isinstance(request, PodRequest) else Profile(ask)
    metadata = pod.metadata
    admitted = pod.status.start_time is not None
    owner = None if metadata.owner is None else metadata.owner.uid
    return Occupant(metadata.uid, metadata.namespace, metadata.name, _same(profile), admitted, owner)


@lru_cache(maxsize=1 << 12)
def _same(profile: Profile) -> Profile:
    """The one profile of all pods that ask alike: of 100,000 pods a few hundred differ."""
    return profile


def with_pod(record: NodeRecord, pod: Occupant) -> NodeRecord:
    """The same with that pod on it, in place of what was known of the pod."""
    others = [each for each in record.pods if each.uid != pod.uid]
    return msgspec.structs.replace(record, pods=tuple(sorted((*others, pod), key=lambda each: each.uid)))


def without_pod(record: NodeRecord, uid: str) -> NodeRecord:
    """The same after that pod ended. Until the kubelet speaks again it counts among the departed."""
    gone = tuple(each for each in record.pods if each.uid == uid)
    return msgspec.structs.replace(
        record,
        pods=tuple(each for each in record.pods if each.uid != uid),
        departed=(record.departed + gone)[-_MOST_DEPARTED:] if record.gpus is not None else (),
    )


def with_gpus(record: NodeRecord, gpus: NodeGpus | None) -> NodeRecord:
    """The same after the kubelet's word was published anew, or went away.

    Of the departed only those stay whom the kubelet still names: a new pod may bear the same name.
    """
    named = {(each.pod.namespace, each.pod.name) for each in (gpus and gpus.allocations) or ()}
    departed = tuple(each for each in record.departed if (each.namespace, each.name) in named)
    return msgspec.structs.replace(record, gpus=gpus, departed=departed)


def state_of(record: NodeRecord, now: float, policy: Policy) -> NodeState:
    """What follows for placement. ``now``: seconds since 1970."""
    awaited = record.parted is not None and now <= record.parted + AWAITED_S
    return _state(record, stale=is_stale(record, now, policy), awaited=awaited)


def state_if(table: NodeTable, name: str, pods: Iterable[Occupant]) -> NodeState:
    """What would follow, were those the pods on the node."""
    by_uid = tuple(sorted(pods, key=lambda each: each.uid))
    known = table.states[name]
    record = msgspec.structs.replace(table.records[name], pods=by_uid)
    return _state(record, stale=known.stale, awaited=known.awaited)


def table_of(records: Iterable[NodeRecord], now: float, policy: Policy, generation: int = 0) -> NodeTable:
    """A table of all those nodes."""
    return with_records(NodeTable(generation - 1), records, now, policy)


def with_records(table: NodeTable, records: Iterable[NodeRecord], now: float, policy: Policy) -> NodeTable:
    """The next generation, in which those nodes are as their records say."""
    changed = {record.name: record for record in records}
    states = {name: state_of(record, now, policy) for name, record in changed.items()}
    return NodeTable(table.generation + 1, table.records.update(changed), table.states.update(states))


def without_nodes(table: NodeTable, names: Iterable[str]) -> NodeTable:
    """The next generation, without those nodes."""
    records, states = table.records.mutate(), table.states.mutate()
    for name in names:
        records.pop(name, None)
        states.pop(name, None)
    return NodeTable(table.generation + 1, records.finish(), states.finish())


def aged(table: NodeTable, now: float, policy: Policy) -> NodeTable:
    """The next generation, in which nodes that nobody has confirmed for too long are stale; the same where none is."""
    turned = [
        record
        for name, record in table.records.items()
        if is_stale(record, now, policy) is not table.states[name].stale
    ]
    return with_records(table, turned, now, policy) if turned else table


def with_pods(table: NodeTable, pods: Iterable[tuple[str, Occupant]], now: float, policy: Policy) -> NodeTable:
    """The same generation with those pods on those nodes in addition, where it does not know of them already."""
    records: dict[str, NodeRecord] = {}
    for name, pod in pods:
        record = records.get(name) or table.records.get(name)
        if record is not None and all(each.uid != pod.uid for each in record.pods):
            records[name] = with_pod(record, pod)
    changed = with_records(table, records.values(), now, policy)
    return msgspec.structs.replace(changed, generation=table.generation)


def is_stale(record: NodeRecord, now: float, policy: Policy) -> bool:
    """Whether nobody vouches for the graph now. What labels alone tell, whoever wrote them, does not age."""
    return staleness(record, now, policy) is not None


def staleness(record: NodeRecord, now: float, policy: Policy) -> Staleness | None:
    """Why the graph is not gone by; None: it is, or there is none."""
    if not record.machine.described:
        return None
    if record.gpus is None:
        return Staleness.UNCONFIRMED
    if now > fresh_until(record.gpus, policy):
        return Staleness.SILENT
    if observed(record.gpus) > now + AHEAD_S:
        return Staleness.AHEAD
    return None if confirms(record) else Staleness.OTHER


def confirms(record: NodeRecord) -> bool:
    """Whether Node and ``NodeGpus`` speak of one graph; where the Node carries none, there is nothing to confirm."""
    machine, gpus = record.machine, record.gpus
    return not machine.described or (gpus is not None and gpus.content_hash == machine.topology_hash)


def turning(record: NodeRecord, policy: Policy) -> Iterable[float]:
    """After which moments time alone makes the node stale or fresh, in seconds since 1970."""
    if record.gpus is not None:
        yield fresh_until(record.gpus, policy)
        yield observed(record.gpus) - AHEAD_S
    if record.parted is not None:
        yield record.parted + AWAITED_S


def fresh_until(gpus: NodeGpus, policy: Policy) -> float:
    """When the observation becomes too old, in seconds since 1970."""
    return observed(gpus) + policy.stale_after_s


def observed(gpus: NodeGpus) -> float:
    """When the agent looked, in seconds since 1970. What is no time is long ago."""
    try:
        at = datetime.fromisoformat(gpus.observed_at)
    except ValueError:
        return -inf
    return at.timestamp() if at.tzinfo is not None else -inf


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


def _state(record: NodeRecord, *, stale: bool, awaited: bool) -> NodeState:
    machine = record.machine
    shape = _shape(record, stale=stale)
    sliced = shape is not None and _sliced(record, shape)
    found: Occupancy | None = None
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
    )


def _shape(record: NodeRecord, *, stale: bool) -> Shape | None:
    """None where GPUs are handed out that the topology does not know."""
    topology = record.machine.topology
    if topology is None or not topology.usable or (topology.partial and _offered(record) > len(topology.usable)):
        return None
    return shape_of(_blinded(topology) if stale else topology)


def _blinded(topology: NodeTopology) -> NodeTopology:
    """What does not change while nobody looks."""
    return NodeTopology(
        gpus=tuple(
            Gpu(
                index=gpu.index,
                product=gpu.product,
                memory_mib=gpu.memory_mib,
                mig_enabled=gpu.mig_enabled,
                mig_devices=gpu.mig_devices,
                health=gpu.health,
            )
            for gpu in topology.gpus
        )
    )


def _offered(record: NodeRecord) -> int:
    return next((healthy for resource, healthy in record.machine.allocatable if resource == WHOLE), 0)


def _sliced(record: NodeRecord, shape: Shape) -> bool:
    return _offered(record) > shape.whole.bit_count()


def _choice(labels: Mapping[str, str]) -> Choice:
    said = labels.get(keys.SHARING.key, Choice.DISTRIBUTED.value)
    return next((each for each in Choice if each.value == said), Choice.UNKNOWN)


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


def _cpu_milli(node: Node) -> int | None:
    found = quantity(str((node.status.allocatable or {}).get("cpu", "")))
    return None if found is None else int(found * 1000)


@lru_cache(maxsize=1 << 16)
def _shared(*fields: Any) -> NodeState:
    """The one state of all nodes that are in it."""
    return NodeState(*fields)


@lru_cache(maxsize=1 << 14)
def with_kin(state: NodeState, kin: Kin) -> NodeState:
    """The one state of all nodes that are in that state and have such kin of the asking pod."""
    return msgspec.structs.replace(state, kin=kin)


def _topology(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeTopology | None:
    try:
        return decode(labels, annotations)
    except (annotation.AnnotationError, NoTopologyError):
        return None


def _allocatable(node: Node) -> Iterable[tuple[str, int]]:
    for resource, text in (node.status.allocatable or {}).items():
        healthy = count(str(text))
        if is_gpu(resource) and healthy is not None:
            yield resource, healthy


def _interconnect(labels: Mapping[str, str]) -> Interconnect | None:
    said = labels.get(keys.INTERCONNECT.key, labels.get(keys.NVIDIA_TOPOLOGY.key))
    return next((each for each in Interconnect if each.value == said), None)
