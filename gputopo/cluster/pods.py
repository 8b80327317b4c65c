"""What running GPU pods got: which GPUs, in how many pieces, and how good a ring, next to what they could have had.

What they could have had is what that many GPUs of the same product form on the node, and on the best node of the
cluster, when nothing else runs there: it says what the shapes allow, not what was free at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.paths import PathKind
from gputopo.rings import Ring, rings_of


class PodName(NamedTuple):
    """A pod."""

    namespace: str
    name: str


class PodGpus(msgspec.Struct, frozen=True, kw_only=True):
    """A running pod and its GPUs. None is unknown throughout; a single GPU has no ring."""

    pod: PodName
    node: str
    count: int  # GPUs
    gpus: tuple[int, ...] | None = None  # indices, ascending
    shared: bool = False  # it holds shares or MIG devices, not whole GPUs
    missing: tuple[str, ...] = ()  # UUIDs that the node's topology does not have, or has lost
    islands: tuple[int, ...] | None = None  # how many of its GPUs are in each island that it touches, most first
    numa: tuple[int, ...] | None = None  # ids of the NUMA nodes that it touches
    ring: Ring | None = None
    best_on_node: Ring | None = None
    best_in_cluster: Ring | None = None

    @property
    def of_node(self) -> float | None:
        """Its ring's rate as a part of the best on its node: 0.5 is half of what was there to be had."""
        return rate_share(self.ring, self.best_on_node)

    @property
    def of_cluster(self) -> float | None:
        """The same, of the best in the cluster."""
        return rate_share(self.ring, self.best_in_cluster)


def rate_share(has: Ring | None, best: Ring | None) -> float | None:
    """The rate of one ring as a part of another's, at most 1; None where a rate is unknown."""
    if has is None or best is None or has.gbps is None or not best.gbps:
        return None
    return min(1.0, has.gbps / best.gbps)


def is_worse(has: Ring | None, best: Ring | None) -> bool:
    """Whether one ring is known to be worse than another; where one of the two is unknown, it is not."""
    if has is None or best is None or PathKind.UNKNOWN in (has.kind, best.kind):
        return False
    rates_decide = has.sort_key[0] and best.sort_key[0]  # both over NVLink
    return has.sort_key < best.sort_key and not (rates_decide and None in (has.gbps, best.gbps))


def pod_placements(nodes: Iterable[GpuNode], running: frozenset[PodName]) -> list[PodGpus]:
    """Every running pod that holds GPUs of these nodes, worst first.

    The kubelet may go on listing a pod that has ended (before Kubernetes 1.34): it is left out by not being running.
    """
    machines = [_NodeRings(node) for node in nodes]
    anywhere = _BestRings(machines)
    found = [
        _placement(machine, pod, held, anywhere)
        for machine in machines
        for pod, held in _devices_by_pod(machine.node).items()
        if pod in running
    ]
    return sorted(found, key=_worst_first)


class _NodeRings:
    """What is asked of a node for each of its pods, worked out once."""

    def __init__(self, node: GpuNode) -> None:
        topology = node.topology
        self.node = node
        self.usable = {gpu.uuid: gpu for gpu in topology.usable if gpu.uuid is not None}
        self.rings = rings_of(topology)
        self.products = tuple((gpu.product, gpu.index) for gpu in topology.usable)
        islands = topology.islands
        self.island_of = (
            None if islands is None else {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
        )

    def best(self, product: str | None, size: int) -> Ring | None:
        """The best ring that ``size`` usable GPUs of a product form here."""
        return self.rings.best_ring(size, [index for each, index in self.products if each == product])

    def pieces(self, indices: tuple[int, ...]) -> tuple[int, ...] | None:
        """How many of these GPUs are in each island, most first."""
        if self.island_of is None:
            return None
        return tuple(sorted(Counter(self.island_of[index] for index in indices).values(), reverse=True))


class _PodDevices(msgspec.Struct):
    """What one pod holds on a node."""

    uuids: list[str] = msgspec.field(default_factory=list)
    shared: bool = False


def _devices_by_pod(node: GpuNode) -> dict[PodName, _PodDevices]:
    pods: dict[PodName, _PodDevices] = {}
    for each in (node.state.allocations if node.state is not None else None) or ():
        held = pods.setdefault(PodName(each.pod.namespace, each.pod.name), _PodDevices())
        if each.gpu not in held.uuids:
            held.uuids.append(each.gpu)
        held.shared |= each.replica is not None or each.mig_device is not None
    return pods


class _BestRings:
    """The best ring that ``size`` GPUs of a product form on any of some machines."""

    def __init__(self, machines: Iterable[_NodeRings]) -> None:
        # Machines of one shape answer alike: ask each shape once, however many nodes have it.
        self._shapes = list({(machine.rings, machine.products): machine for machine in machines}.values())
        self.of = cache(self._of)

    def _of(self, product: str | None, size: int) -> Ring | None:
        found = (machine.best(product, size) for machine in self._shapes)
        return max((ring for ring in found if ring is not None), key=lambda ring: ring.sort_key, default=None)


def _placement(machine: _NodeRings, pod: PodName, held: _PodDevices, anywhere: _BestRings) -> PodGpus:
    missing = tuple(uuid for uuid in held.uuids if uuid not in machine.usable)
    known = sorted((machine.usable[uuid] for uuid in held.uuids if uuid in machine.usable), key=lambda gpu: gpu.index)
    indices = tuple(gpu.index for gpu in known)
    size = len(held.uuids)
    plain = PodGpus(pod=pod, node=machine.node.name, count=size, gpus=indices, shared=held.shared, missing=missing)
    if missing:
        return plain
    nodes = {gpu.numa_node for gpu in known}
    products = {gpu.product for gpu in known}
    product = products.pop() if len(products) == 1 else None
    return msgspec.structs.replace(
        plain,
        islands=machine.pieces(indices),
        numa=None if None in nodes else tuple(sorted(node for node in nodes if node is not None)),
        ring=machine.rings.ring_through(indices),
        best_on_node=machine.best(product, size) if product else machine.rings.best_ring(size),
        best_in_cluster=anywhere.of(product, size) if product else None,
    )


def _worst_first(pod: PodGpus) -> tuple[object, ...]:
    """Those with a worse ring than their node could give, then than the cluster could, then the others.

    Within these by how much of it they have, then by the ring itself, for a rate alone does not tell PCIe from PCIe.
    """
    parts = [1.0 if part is None else part for part in (pod.of_node, pod.of_cluster)]
    on_node, in_cluster = is_worse(pod.ring, pod.best_on_node), is_worse(pod.ring, pod.best_in_cluster)
    rank = 0 if pod.missing else 1 if on_node else 2 if in_cluster else 3 if pod.ring is not None else 4
    return (rank, *parts, pod.ring.sort_key if pod.ring is not None else (), -pod.count, pod.pod)
