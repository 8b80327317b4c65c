"""The GPUs of running pods: which GPUs, in how many islands, and how good a ring, compared with the best possible.

The best possible is what as many GPUs of the same product form on the node, and on the best node of the cluster, when
nothing else runs there: it follows from the shapes, not from what was free at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache, lru_cache
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.usage import GpuUse
from gputopo.identity import SameObjects
from gputopo.model import NodeTopology
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
    shapes = _Shapes()
    machines = [_Machine(node, shapes.shape_of(node.topology)) for node in nodes]
    found = [
        _placement(machine, pod, devices, running[pod])
        for machine in machines
        for pod, devices in _devices_by_pod(machine.node).items()
        if pod in running
    ]
    return [pod for _, pod in sorted(found, key=itemgetter(0))]


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


class _GpuSetFacts(NamedTuple):
    """The facts about a set of GPUs: the same on all machines of one shape in a cluster."""

    gpus_by_island: tuple[int, ...] | None
    numa: tuple[int, ...] | None
    ring: Ring | None
    best_on_node: Ring | None
    best_in_cluster: Ring | None
    order: tuple[object, ...]  # sort key of pods that hold these GPUs


class _Shape:
    """The facts that machines of one shape in a cluster share. Those about sets of GPUs are cached."""

    def __init__(self, topology: NodeTopology, best_in_cluster: Callable[[str, int], Ring | None]) -> None:
        self._gpus = {gpu.index: gpu for gpu in topology.usable}
        self._rings = rings_of(topology)
        islands = topology.islands
        self._island_of = (
            None if islands is None else {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
        )
        self._best_in_cluster = best_in_cluster
        self._facts: dict[tuple[int, ...], _GpuSetFacts] = {}

    def best_ring(self, product: str | None, size: int) -> Ring | None:
        """Return the best ring that ``size`` usable GPUs of a product form here; None: of any products."""
        among = [gpu.index for gpu in self._gpus.values() if gpu.product == product] if product else None
        return self._rings.best_ring(size, among)

    def facts(self, indices: tuple[int, ...]) -> _GpuSetFacts:
        """Return the facts about usable GPUs, by ascending index. Only after the shapes of all machines are known."""
        found = self._facts.get(indices)
        if found is None:
            found = self._facts[indices] = self._find_facts(indices)
        return found

    def _find_facts(self, indices: tuple[int, ...]) -> _GpuSetFacts:
        gpus, size = [self._gpus[index] for index in indices], len(indices)
        numa_nodes, products = {gpu.numa_node for gpu in gpus}, {gpu.product for gpu in gpus}
        product = products.pop() if len(products) == 1 else None
        ring, on_node = self._rings.ring_through(indices), self.best_ring(product, size)
        in_cluster = self._best_in_cluster(product, size) if product else None
        by_island = None if self._island_of is None else Counter(self._island_of[index] for index in indices)
        return _GpuSetFacts(
            None if by_island is None else tuple(sorted(by_island.values(), reverse=True)),
            None if None in numa_nodes else tuple(sorted(node for node in numa_nodes if node is not None)),
            ring,
            on_node,
            in_cluster,
            _ring_order(ring, on_node, in_cluster),
        )


class _Shapes:
    """The shapes of the machines of a cluster."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}
        self._cached_best_ring = cache(self._best_ring)

    def shape_of(self, topology: NodeTopology) -> _Shape:
        """Return the shape of a machine."""
        gpus = tuple([(gpu.index, gpu.usable, gpu.mig_enabled, gpu.product, gpu.numa_node) for gpu in topology.gpus])
        key = gpus, SameObjects((topology.nvlink, topology.pcie, *[gpu.pcie for gpu in topology.gpus]))
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = _Shape(topology, self._cached_best_ring)
        return found

    def _best_ring(self, product: str, size: int) -> Ring | None:
        """Return the best ring that ``size`` GPUs of a product form on any machine."""
        found = (shape.best_ring(product, size) for shape in self._shapes.values())
        return max((ring for ring in found if ring is not None), key=lambda ring: ring.sort_key, default=None)


class _Machine:
    """The facts of a node that each of its pods needs, computed once."""

    def __init__(self, node: GpuNode, shape: _Shape) -> None:
        self.node, self.shape, self.uses = node, shape, node.uses
        self.index_by_uuid = {gpu.uuid: gpu.index for gpu in node.topology.gpus if gpu.usable}


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


def _placement(
    machine: _Machine, pod: PodName, held: _PodDevices, vram_mib: int | None
) -> tuple[tuple[object, ...], PodGpus]:
    """Return the sort key of a pod, and the pod."""
    index_by_uuid = machine.index_by_uuid
    missing = tuple([uuid for uuid in held.uuids if uuid not in index_by_uuid])
    indices = tuple(sorted([index_by_uuid[uuid] for uuid in held.uuids if uuid in index_by_uuid]))
    facts = _UNKNOWN if missing else machine.shape.facts(indices)
    found = PodGpus(
        namespace=pod.namespace,
        name=pod.name,
        node=machine.node.name,
        count=len(held.uuids),
        gpus=indices,
        shared=held.shared,
        missing=missing,
        gpus_by_island=facts.gpus_by_island,
        numa=facts.numa,
        ring=facts.ring,
        best_ring_on_node=facts.best_on_node,
        best_ring_in_cluster=facts.best_in_cluster,
        usage=None if machine.uses is None else tuple([each for each in machine.uses if each.gpu in indices]),
        vram_mib=vram_mib,
    )
    return (*facts.order, -found.count, found.namespace, found.name), found


def _ring_order(ring: Ring | None, on_node: Ring | None, in_cluster: Ring | None) -> tuple[object, ...]:
    """Return the sort key: worse rings than on the empty node come first, then than in the cluster, then the others.

    Within each group, by the share of that rate, then by the ring: PCIe rings of the same rate differ in distance.
    """
    parts = [1.0 if part is None else part for part in (rate_share(ring, on_node), rate_share(ring, in_cluster))]
    rank = 1 if is_worse(ring, on_node) else 2 if is_worse(ring, in_cluster) else 3 if ring is not None else 4
    return (rank, *parts, () if ring is None else ring.sort_key)


_UNKNOWN = _GpuSetFacts(None, None, None, None, None, (0, 1.0, 1.0, ()))  # of pods with missing GPUs, which come first
