"""The facts that determine which devices the kubelet allocates: its configuration, and what it may allocate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from agent.allocation.devices import gpu_of_device, replicas_per_gpu
from agent.allocation.kubelet_reading import KubeletReading
from agent.allocation.wire import MemoryBlock, PinnedResources
from agent.sources.kernel_list import parse_numbers
from gputopo.crd.nodegpus import MAX_NUMA_NODES, KubeletFacts, NumaResources
from gputopo.labels import resources
from gputopo.model import Gpu, NodeTopology

_MEMORY = "memory"  # ContainerMemory.memory_type; huge pages are not published


def kubelet_facts(reading: KubeletReading, topology: NodeTopology) -> KubeletFacts | None:
    """Return the facts to publish; None if nothing is known."""
    config, allocatable = reading.config, reading.allocatable
    if config is None and allocatable is None:
        return None
    facts = KubeletFacts(cpus_per_core=reading.cpus_per_core)
    if config is not None:
        facts = replace(
            facts,
            topology_manager_policy=config.policy,
            topology_manager_scope=config.scope,
            prefer_closest_numa_nodes=config.closest,
            full_physical_cores=config.full_cores,
            align_by_socket=config.by_socket,
        )
    if allocatable is None:
        return facts
    pinned = allocatable.pinned
    return replace(
        facts,
        exclusive_cpus=bool(pinned.cpus),
        pinned_memory=any(block.kind == _MEMORY for block in pinned.memory),
        numa_nodes=_numa_resources(topology, pinned, reading.held),
        withdrawn=_withdrawn(allocatable.devices, topology.gpus),
        replicas=replicas_per_gpu(allocatable.devices, topology.gpus),
    )


def _withdrawn(offered: Iterable[tuple[str, str]], gpus: tuple[Gpu, ...]) -> tuple[str, ...] | None:
    """Return the usable GPUs that no device plugin offers; None where no GPU is offered."""
    found = {gpu_of_device(device, gpus) for resource, device in offered if resources.is_gpu(resource)} - {None}
    usable = [gpu.uuid for gpu in gpus if gpu.usable and gpu.uuid is not None]
    return tuple(sorted(uuid for uuid in usable if uuid not in found)) if found else None


def _numa_resources(
    topology: NodeTopology, allocatable: PinnedResources, held: PinnedResources | None
) -> tuple[NumaResources, ...] | None:
    """Return CPUs and memory of the NUMA nodes; None where none is exclusive, or where the machine is unknown."""
    cpus = {node.id: parse_numbers(node.cpus) for node in topology.numa_nodes}
    if held is None or not (allocatable.cpus or allocatable.memory):
        return None
    known = {*cpus, *(node for block in (*allocatable.memory, *held.memory) for node in block.nodes)}
    if any(node >= MAX_NUMA_NODES for node in known) or not allocatable.cpus <= frozenset[int]().union(*cpus.values()):
        return None
    memory = Counter[int]()
    for block in allocatable.memory:
        if block.kind == _MEMORY and len(block.nodes) == 1:
            memory[block.nodes[0]] += block.size
    blocks = [block for block in held.memory if block.kind == _MEMORY]
    free_memory = _free_memory(memory, blocks)
    return tuple(
        NumaResources(
            node,
            len(cpus.get(node, ())),
            len((cpus.get(node, frozenset()) & allocatable.cpus) - held.cpus),
            memory[node],
            free_memory[node],
            next((block.nodes for block in blocks if node in block.nodes), ()),
        )
        for node in sorted(known)
    )


def _free_memory(allocatable: Counter[int], blocks: Iterable[MemoryBlock]) -> Counter[int]:
    """Return what the blocks leave: each takes from its NUMA nodes in order (``updateMachineState`` of the kubelet)."""
    free = Counter(allocatable)
    for block in blocks:
        left = block.size
        for node in block.nodes:
            taken = min(left, free[node])
            free[node] -= taken
            left -= taken
    return free
