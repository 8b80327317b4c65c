"""The views of a cluster as documents: what ``-o json`` and ``-o yaml`` print. Pure.

Keys are camelCase as in Kubernetes; what is unknown is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.pods import PodGpus
from gputopo.render.schema import API_VERSION
from gputopo.rings import Ring


class _Island(msgspec.Struct, rename="camel"):
    gpus: tuple[int, ...]
    interconnect: str
    gbps: float | None
    free: int | None


class _Node(msgspec.Struct, rename="camel"):
    name: str
    products: dict[str, int]
    gpus: int
    free: int | None
    islands: tuple[_Island, ...] | None
    numa: tuple[int | None, ...]
    vram_mib: tuple[int | None, ...]
    driver_version: str | None
    degraded: tuple[str, ...]
    observed_at: str | None
    age_seconds: int | None
    agent_version: str | None
    trouble: str | None


class _Ring(msgspec.Struct, rename="camel"):
    kind: str
    gbps: float | None
    lanes: int | None
    distance: str | None


class _Pod(msgspec.Struct, rename="camel"):
    namespace: str
    name: str
    node: str
    count: int
    gpus: tuple[int, ...] | None
    shared: bool
    missing: tuple[str, ...]
    gpus_by_island: tuple[int, ...] | None
    numa: tuple[int, ...] | None
    ring: _Ring | None
    best_ring_on_node: _Ring | None
    best_ring_in_cluster: _Ring | None


def node_list(nodes: Iterable[GpuNode], now: datetime) -> dict[str, Any]:
    """The GPU nodes as a document of kind ``GpuNodeList``."""
    return _list("GpuNodeList", [_node(node, now) for node in nodes])


def pod_list(pods: Iterable[PodGpus]) -> dict[str, Any]:
    """The GPU pods as a document of kind ``GpuPodList``, in the order given."""
    return _list("GpuPodList", [_pod(pod) for pod in pods])


def _list(kind: str, items: list[Any]) -> dict[str, Any]:
    # Through JSON's own types, so that a reader of the dict and a reader of the text see the same (lists, not tuples).
    text = msgspec.json.encode({"apiVersion": API_VERSION, "kind": kind, "items": items})
    body: dict[str, Any] = msgspec.json.decode(text)
    return body


def _node(node: GpuNode, now: datetime) -> _Node:
    topology, free, age = node.topology, node.free, node.age(now)
    products: dict[str, int] = {}
    for gpu in topology.usable:
        products[gpu.product or "unknown"] = products.get(gpu.product or "unknown", 0) + 1
    islands = topology.islands
    return _Node(
        name=node.name,
        products=products,
        gpus=len(topology.usable),
        free=None if free is None else len(free),
        islands=None
        if islands is None
        else tuple(
            _Island(each.gpus, each.interconnect.value, each.gbps, None if free is None else len(free & set(each.gpus)))
            for each in islands
        ),
        numa=tuple(gpu.numa_node for gpu in topology.usable),
        vram_mib=tuple(gpu.memory_mib for gpu in topology.usable),
        driver_version=topology.driver_version,
        degraded=tuple(each.what for each in topology.degraded),
        observed_at=None if node.state is None else node.state.observed_at,
        age_seconds=None if age is None else int(age.total_seconds()),
        agent_version=None if node.state is None else node.state.agent_version,
        trouble=node.trouble,
    )


def _pod(pod: PodGpus) -> _Pod:
    return _Pod(
        namespace=pod.pod.namespace,
        name=pod.pod.name,
        node=pod.node,
        count=pod.count,
        gpus=pod.gpus,
        shared=pod.shared,
        missing=pod.missing,
        gpus_by_island=pod.islands,
        numa=pod.numa,
        ring=_ring(pod.ring),
        best_ring_on_node=_ring(pod.best_on_node),
        best_ring_in_cluster=_ring(pod.best_in_cluster),
    )


def _ring(ring: Ring | None) -> _Ring | None:
    if ring is None:
        return None
    return _Ring(ring.kind.value, ring.gbps, ring.lanes, None if ring.distance is None else ring.distance.value)
