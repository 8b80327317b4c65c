"""Sets of GPUs and the free GPUs of a node, in words. Pure."""

from __future__ import annotations

from collections import Counter

from gputopo.labels.reasons import Reason
from gputopo.paths import PathKind
from gputopo.render.wording import UNKNOWN, format_number, gpu_names
from scheduler_core.allocation.gpu_sets import SomeSet, member_places
from scheduler_core.allocation.machine_shape import MachineShape, places_by_uuid
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS
from scheduler_core.explain.model import GpuSet
from scheduler_core.request.device_request import WHOLE


def gpu_set(shape: MachineShape, mask: int) -> GpuSet:
    """Return the set as a value of the explanation."""
    ring = shape.ring(mask)
    nodes = sorted({node for place in member_places(mask) if (node := shape.numa[place]) is not None})
    return GpuSet(
        gpus=shape.indices(mask),
        islands=None if shape.islands is None else _pieces(shape.islands, mask),
        numa=tuple(nodes) if shape.count_numa_nodes(mask) is not None else None,
        ring=None if ring is None else ring.kind.value,
        gbps=None if ring is None else ring.gbps,
        distance=None if ring is None or ring.distance is None else ring.distance.value,
    )


def gpu_set_words(found: GpuSet) -> str:
    """Return a set of GPUs in words: ``GPU0-3: ring 900 GB/s nvswitch, one island, NUMA node 0``."""
    facts = [_ring(found)] if found.ring is not None else []
    if found.islands is None:
        facts.append("islands unknown")
    elif len(found.gpus) > 1:
        facts.append("one island" if len(found.islands) == 1 else f"islands {_sum(found.islands)}")
    numa = "+".join(map(str, found.numa)) if found.numa is not None else "unknown"
    return f"{gpu_names(found.gpus)}: {', '.join([*facts, f'NUMA node {numa}'])}"


def free_gpu_words(state: NodeState, resource: str, wanted: int, reason: Reason) -> str:
    """Return the free devices of a node: ``4 free GPUs but in islands 2+2``."""
    free, shape = state.free_devices(resource), state.shape
    words = f"{free} free {resource if resource != WHOLE else 'GPU' if free == 1 else 'GPUs'}"
    if free < wanted or shape is None or state.free is None or not state.described or reason not in SHAPE_REASONS:
        return words
    if isinstance(state.free, SomeSet) or len(state.free.masks) != 1:
        return f"{words}, but which of {gpu_names(shape.indices(state.free.among))} is not reported yet"
    (mask,) = state.free.masks
    if reason is Reason.NUMA:
        by_node = Counter(str(shape.numa[place]) for place in member_places(mask))
        return (
            f"{words} but on NUMA nodes {_sum(sorted(by_node.values(), reverse=True))}" if len(by_node) > 1 else words
        )
    pieces = _pieces(shape.islands or (), mask)
    return f"{words} but in islands {_sum(pieces)}" if len(pieces) > 1 else words


def gpus_held_by(record: NodeRecord, namespace: str, name: str) -> int | None:
    """Return the whole GPUs that the kubelet reports for a pod, as a set; None without a report."""
    if record.gpus is None or record.machine.topology is None:
        return None
    place_of = places_by_uuid(record.machine.topology)
    mask = 0
    for each in record.gpus.allocations or ():
        whole = each.mig_device is None and each.replica is None
        if (each.pod.namespace, each.pod.name) == (namespace, name) and whole and each.gpu in place_of:
            mask |= 1 << place_of[each.gpu]
    return mask or None


def _pieces(islands: tuple[int, ...], mask: int) -> tuple[int, ...]:
    return tuple(sorted((size for island in islands if (size := (island & mask).bit_count())), reverse=True))


def _sum(sizes: tuple[int, ...] | list[int]) -> str:
    return "+".join(map(str, sizes))


def _ring(found: GpuSet) -> str:
    if found.ring == PathKind.UNKNOWN.value:
        return "ring unknown"
    rate = UNKNOWN if found.gbps is None else format_number(found.gbps)
    # The path between two cards is slower than their links; how much is not known.
    bound = "<=" if found.ring == PathKind.PCIE.value and found.gbps is not None else ""
    return " ".join(["ring", f"{bound}{rate} GB/s", found.ring or "", *([found.distance] if found.distance else [])])
