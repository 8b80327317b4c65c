"""The GPUs of running pods: which GPUs, in how many islands, and how good a ring, compared with the best possible.

The best possible is what as many GPUs of the same product form on the node, and on the best node of the cluster, when
nothing else runs there: it follows from the shapes, not from what was free at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cache, lru_cache
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.usage import GpuUse
from gputopo.identity import SameObjects
from gputopo.model import Health, NodeTopology
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
    shapes: dict[Hashable, _Shape] = {}
    machines = [(node, _shape_of(node.topology, shapes)) for node in nodes]
    best_rings = _BestRings(shapes.values())
    found = [
        _placement(node, shape, (pod, devices, running[pod]), best_rings)
        for node, shape in machines
        for pod, devices in _devices_by_pod(node).items()
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


class _RingFacts(NamedTuple):
    """The facts about some GPUs of a machine that depend only on its shape."""

    gpus_by_island: tuple[int, ...] | None
    numa: tuple[int, ...] | None
    ring: Ring | None
    best_on_node: Ring | None
    best_in_cluster: Ring | None
    order: tuple[object, ...]  # of their pods


class _Shape:
    """The facts that machines of one shape share. Those about some of its GPUs are cached."""

    def __init__(self, topology: NodeTopology) -> None:
        self._gpus = {gpu.index: gpu for gpu in topology.usable}
        self.rings = rings_of(topology)
        islands = topology.islands
        self._island_of = (
            None if islands is None else {gpu: place for place, island in enumerate(islands) for gpu in island.gpus}
        )
        self._facts: dict[tuple[int, ...], _RingFacts] = {}

    def best_ring(self, product: str | None, size: int) -> Ring | None:
        """Return the best ring that ``size`` usable GPUs of a product form here."""
        return self.rings.best_ring(size, [gpu.index for gpu in self._gpus.values() if gpu.product == product])

    def facts(self, indices: tuple[int, ...], best_rings: _BestRings) -> _RingFacts:
        """Return the facts about usable GPUs, by ascending index."""
        found = self._facts.get(indices)
        if found is None:
            found = self._facts[indices] = self._find_facts(indices, best_rings)
        return found

    def _find_facts(self, indices: tuple[int, ...], best_rings: _BestRings) -> _RingFacts:
        gpus, size = [self._gpus[index] for index in indices], len(indices)
        nodes, products = {gpu.numa_node for gpu in gpus}, {gpu.product for gpu in gpus}
        product = products.pop() if len(products) == 1 else None
        ring = self.rings.ring_through(indices)
        on_node = self.best_ring(product, size) if product else self.rings.best_ring(size)
        in_cluster = best_rings.best_ring(product, size) if product else None
        by_island = None if self._island_of is None else Counter(self._island_of[index] for index in indices)
        return _RingFacts(
            None if by_island is None else tuple(sorted(by_island.values(), reverse=True)),
            None if None in nodes else tuple(sorted(node for node in nodes if node is not None)),
            ring,
            on_node,
            in_cluster,
            _ring_order(ring, on_node, in_cluster),
        )


def _shape_of(topology: NodeTopology, shapes: dict[Hashable, _Shape]) -> _Shape:
    """Return the shape of a machine; add it where it is the first."""
    links = [gpu.pcie for gpu in topology.gpus]
    gpus = tuple([(gpu.index, gpu.usable, gpu.mig_enabled, gpu.product, gpu.numa_node) for gpu in topology.gpus])
    key = gpus, SameObjects((topology.nvlink, topology.pcie, *links))
    found = shapes.get(key)
    if found is None:
        found = shapes[key] = _Shape(topology)
    return found


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

    def __init__(self, shapes: Iterable[_Shape]) -> None:
        self._shapes = tuple(shapes)
        self.best_ring = cache(self._best_ring)

    def _best_ring(self, product: str | None, size: int) -> Ring | None:
        found = (shape.best_ring(product, size) for shape in self._shapes)
        return max((ring for ring in found if ring is not None), key=lambda ring: ring.sort_key, default=None)


def _placement(
    node: GpuNode, shape: _Shape, pod: tuple[PodName, _PodDevices, int | None], best_rings: _BestRings
) -> tuple[tuple[object, ...], PodGpus]:
    """Return the sort key of a pod, and the pod. ``pod``: its name, devices, and the MiB that it declares."""
    name, held, vram_mib = pod
    place_of = {gpu.uuid: gpu.index for gpu in node.topology.gpus if gpu.health is Health.OK}
    missing = tuple([uuid for uuid in held.uuids if uuid not in place_of])
    indices = tuple(sorted([place_of[uuid] for uuid in held.uuids if uuid in place_of]))
    facts = _UNKNOWN if missing else shape.facts(indices, best_rings)
    uses = node.uses
    found = PodGpus(
        namespace=name.namespace,
        name=name.name,
        node=node.name,
        count=len(held.uuids),
        gpus=indices,
        shared=held.shared,
        missing=missing,
        gpus_by_island=facts.gpus_by_island,
        numa=facts.numa,
        ring=facts.ring,
        best_ring_on_node=facts.best_on_node,
        best_ring_in_cluster=facts.best_in_cluster,
        usage=None if uses is None else tuple(each for each in uses if each.gpu in indices),
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


_UNKNOWN = _RingFacts(None, None, None, None, None, (0, 1.0, 1.0, ()))  # of pods with missing GPUs, which come first
