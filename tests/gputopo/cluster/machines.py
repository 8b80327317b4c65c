"""Nodes of a small cluster, as values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gputopo.cluster.nodes import GpuNode
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.model import NodeTopology

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def state(
    topology: NodeTopology, held: Mapping[str, tuple[int, ...]], age: timedelta = timedelta(seconds=30)
) -> NodeGpus:
    """Return a NodeGpus; ``held``: pod name -> indices of its GPUs."""
    allocations = tuple(
        DeviceAllocation(str(topology.get_gpu(index).uuid), PodRef("team-a", pod, "main"))
        for pod, indices in held.items()
        for index in indices
    )
    return NodeGpus((NOW - age).isoformat(), "1a2b", "0.1.0", allocations)


def gpu_node(name: str, topology: NodeTopology, held: Mapping[str, tuple[int, ...]] = {}) -> GpuNode:
    """A node with a recent report of its allocations."""
    return GpuNode(name, topology, state(topology, held))
