"""The GPUs of running pods: which GPUs, in how many islands, and how good a ring, compared with the best possible.

The best possible is what as many GPUs of the same product form on the node, and on the best node of the cluster, when
nothing else runs there: it follows from the shapes, not from what was free at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.usage import GpuUse
from gputopo.paths import PathKind
from gputopo.render.report import listed
from gputopo.render.wording import counted_noun, escape_invisible, shorten_names
from gputopo.rings import Ring, rings_of

_MOST_AGENTS = 5  # silent agents that are named with their pods


class PodName(NamedTuple):
    """The namespace and name of a pod."""

    namespace: str
    name: str


class PodGpus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A running pod and its GPUs. None is unknown throughout; a single GPU has no ring."""

    namespace: str
    name: str
    node: str
    count: int  # GPUs
    gpus: tuple[int, ...] | None = None  # indices, ascending
    shared: bool = False  # the pod holds shares or MIG devices, not whole GPUs
    missing: tuple[str, ...] = ()  # UUIDs that are not in the node's topology, or lost
    gpus_by_island: tuple[int, ...] | None = None  # how many of its GPUs are in each island that has any, most first
    numa: tuple[int, ...] | None = None  # ids of their NUMA nodes
    ring: Ring | None = None
    best_ring_on_node: Ring | None = None
    best_ring_in_cluster: Ring | None = None
    usage: tuple[GpuUse, ...] | None = None  # of its GPUs, by all pods that share them
    silent_agent: str | None = None  # why the facts are missing or old: the agent of its node does not report
    vram_mib: int | None = None  # memory of a shared GPU that the pod declares

    @property
    def of_node(self) -> float | None:
        """The rate of its ring as a part of the best on its node: 0.5 is half."""
        return rate_share(self.ring, self.best_ring_on_node)

    @property
    def of_cluster(self) -> float | None:
        """The rate of its ring as a part of the best in the cluster."""
        return rate_share(self.ring, self.best_ring_in_cluster)


@lru_cache(maxsize=1 << 10)
def rate_share(ring: Ring | None, best: Ring | None) -> float | None:
    """Return the rate of a ring as a part of another's, at most 1; None where a rate is unknown."""
    if ring is None or best is None or ring.gbps is None or not best.gbps:
        return None
    return min(1.0, ring.gbps / best.gbps)


@lru_cache(maxsize=1 << 10)
def is_worse(ring: Ring | None, best: Ring | None) -> bool:
    """Return whether a ring is known to be worse than another; with an unknown ring it is not."""
    if ring is None or best is None or PathKind.UNKNOWN in (ring.kind, best.kind):
        return False
    rates_decide = ring.sort_key[0] and best.sort_key[0]  # both over NVLink
    return ring.sort_key < best.sort_key and not (rates_decide and None in (ring.gbps, best.gbps))


def pod_placements(nodes: Iterable[GpuNode], running: Mapping[PodName, int | None]) -> list[PodGpus]:
    """Return every running pod that holds GPUs of these nodes, worst first.

    ``running``: running pods, and the MiB of a shared GPU that each declares. The kubelet may go on listing a
    pod that has ended (before Kubernetes 1.34); such a pod is left out.
    """
    machines = [_NodeRings(node) for node in nodes]
    in_cluster = _BestRings(machines)
    found = [
        msgspec.structs.replace(_placement(machine, pod, devices, in_cluster), vram_mib=running[pod])
        for machine in machines
        for pod, devices in _devices_by_pod(machine.node).items()
        if pod in running
    ]
    return sorted(found, key=_worst_first)


def with_silent_agents(
    placed: Iterable[PodGpus], others: Iterable[PodGpus], silent: Mapping[str, str]
) -> list[PodGpus]:
    """Return all pods, each with the reason if the agent of its node does not report.

    ``others``: pods whose GPUs are not reported; pods that are in ``placed`` too are left out. ``silent``: by node.
    """
    found = list(placed)
    known = {(each.namespace, each.name) for each in found}
    found += [each for each in others if (each.namespace, each.name) not in known]
    return [
        msgspec.structs.replace(each, silent_agent=silent[each.node]) if each.node in silent else each for each in found
    ]


def silent_agents_text(pods: Iterable[PodGpus]) -> str | None:
    """Return the silent agents with their pods; None: all agents of these pods report."""
    found: dict[str, list[str]] = {}
    for each in pods:
        if each.silent_agent is not None:
            found.setdefault(each.silent_agent, []).append(f"{each.namespace}/{each.name}")
    rest = "are unknown, or of its last report"
    lines = [f"{agent}: the GPUs of {listed(names, 3)} {rest}" for agent, names in found.items()]
    more = lines[_MOST_AGENTS:]
    lines = [*lines[:_MOST_AGENTS], *([f"the same on {counted_noun(len(more), 'more node')}"] if more else [])]
    return "\n".join(escape_invisible(shorten_names(line)) for line in lines) or None


class _NodeRings:
    """The facts of a node that each of its pods needs, computed once."""

    def __init__(self, node: GpuNode) -> None:
        topology = node.topology
        self.node = node
        self.usable = {gpu.uuid: gpu for gpu in topology.usable if gpu.uuid is not None}
        self.rings = rings_of(topology)
        self._uses = None if node.uses is None else {each.gpu: each for each in node.uses}
        self.products = tuple((gpu.product, gpu.index) for gpu in topology.usable)
        islands = topology.islands
        self.island_of = (
            None if islands is None else {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
        )

    def best(self, product: str | None, size: int) -> Ring | None:
        """Return the best ring that ``size`` usable GPUs of a product form here."""
        return self.rings.best_ring(size, [index for each, index in self.products if each == product])

    def usage(self, indices: tuple[int, ...]) -> tuple[GpuUse, ...] | None:
        """Return the reported use of these GPUs."""
        uses = self._uses
        return None if uses is None else tuple(uses[index] for index in indices if index in uses)

    def gpus_by_island(self, indices: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return how many of these GPUs are in each island, most first."""
        if self.island_of is None:
            return None
        return tuple(sorted(Counter(self.island_of[index] for index in indices).values(), reverse=True))


class _PodDevices(msgspec.Struct):
    """The devices that a pod holds on a node."""

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
    """The best ring that ``size`` GPUs of a product form on any node."""

    def __init__(self, machines: Iterable[_NodeRings]) -> None:
        # Nodes with the same topology have the same rings: each topology is computed once.
        self._shapes = list({(machine.rings, machine.products): machine for machine in machines}.values())
        self.best_ring = cache(self._best_ring)

    def _best_ring(self, product: str | None, size: int) -> Ring | None:
        found = (machine.best(product, size) for machine in self._shapes)
        return max((ring for ring in found if ring is not None), key=lambda ring: ring.sort_key, default=None)


def _placement(machine: _NodeRings, pod: PodName, held: _PodDevices, in_cluster: _BestRings) -> PodGpus:
    missing = tuple(uuid for uuid in held.uuids if uuid not in machine.usable)
    known = sorted((machine.usable[uuid] for uuid in held.uuids if uuid in machine.usable), key=lambda gpu: gpu.index)
    indices = tuple(gpu.index for gpu in known)
    size = len(held.uuids)
    plain = PodGpus(
        namespace=pod.namespace,
        name=pod.name,
        node=machine.node.name,
        count=size,
        gpus=indices,
        shared=held.shared,
        missing=missing,
        usage=machine.usage(indices),
    )
    if missing:
        return plain
    nodes = {gpu.numa_node for gpu in known}
    products = {gpu.product for gpu in known}
    product = products.pop() if len(products) == 1 else None
    return msgspec.structs.replace(
        plain,
        gpus_by_island=machine.gpus_by_island(indices),
        numa=None if None in nodes else tuple(sorted(node for node in nodes if node is not None)),
        ring=machine.rings.ring_through(indices),
        best_ring_on_node=machine.best(product, size) if product else machine.rings.best_ring(size),
        best_ring_in_cluster=in_cluster.best_ring(product, size) if product else None,
    )


def _worst_first(pod: PodGpus) -> tuple[object, ...]:
    """Return the sort key: pods with a worse ring than on their empty node, then than in the cluster, then the others.

    Within each group, by the share of that rate, then by the ring: PCIe rings of the same rate differ in distance.
    """
    parts = [1.0 if part is None else part for part in (pod.of_node, pod.of_cluster)]
    below_node, below_cluster = is_worse(pod.ring, pod.best_ring_on_node), is_worse(pod.ring, pod.best_ring_in_cluster)
    rank = 0 if pod.missing else 1 if below_node else 2 if below_cluster else 3 if pod.ring is not None else 4
    return (rank, *parts, pod.ring.sort_key if pod.ring is not None else (), -pod.count, pod.namespace, pod.name)
