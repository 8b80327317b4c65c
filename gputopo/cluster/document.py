"""The GPU nodes and GPU pods of a cluster as documents: what ``-o json`` and ``-o yaml`` print. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.pods import PodGpus
from gputopo.cluster.usage import GpuUse
from gputopo.render.report import document


class _IslandEntry(msgspec.Struct, rename="camel"):
    gpus: tuple[int, ...]
    interconnect: str
    gbps: float | None
    free: int | None


class _NodeEntry(msgspec.Struct, rename="camel"):
    name: str
    products: dict[str, int]
    gpus: int
    free: int | None
    draining: int | None
    tainted: int | None
    islands: tuple[_IslandEntry, ...] | None
    numa: tuple[int | None, ...]
    vram_mib: tuple[int | None, ...]
    driver_version: str | None
    degraded: tuple[str, ...]
    observed_at: str | None
    age_seconds: int | None
    agent_version: str | None
    trouble: str | None
    cordoned: bool
    unusable_reasons: tuple[str, ...]
    usage: tuple[GpuUse, ...] | None


def node_list(nodes: Iterable[GpuNode], now: datetime) -> dict[str, Any]:
    """Return the nodes as a document of kind ``GpuNodeList``."""
    return document("GpuNodeList", {"items": [_node(node, now) for node in nodes]})


def pod_list(pods: Iterable[PodGpus]) -> dict[str, Any]:
    """Return the pods as a document of kind ``GpuPodList``, in the order given."""
    return document("GpuPodList", {"items": list(pods)})


def _node(node: GpuNode, now: datetime) -> _NodeEntry:
    topology, free, age = node.topology, node.free_at(now), node.age(now)
    islands = None
    if topology.islands is not None:
        islands = tuple(
            _IslandEntry(
                each.gpus, each.interconnect.value, each.gbps, None if free is None else len(free & set(each.gpus))
            )
            for each in topology.islands
        )
    return _NodeEntry(
        name=node.name,
        products=Counter(gpu.product or "unknown" for gpu in topology.usable),
        gpus=len(topology.usable),
        free=node.free_count_at(now),
        draining=node.draining_count_at(now),
        tainted=node.tainted_count_at(now),
        islands=islands,
        numa=tuple(gpu.numa_node for gpu in topology.usable),
        vram_mib=tuple(gpu.memory_mib for gpu in topology.usable),
        driver_version=topology.driver_version,
        degraded=tuple(each.what for each in topology.degraded),
        observed_at=None if node.state is None else node.state.observed_at,
        age_seconds=None if age is None else int(age.total_seconds()),
        agent_version=None if node.state is None else node.state.agent_version,
        trouble=node.annotation_error,
        cordoned=node.cordoned,
        unusable_reasons=node.unusable,
        usage=node.uses,
    )
