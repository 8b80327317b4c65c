"""GPUs that pods share, by memory, where the scheduler's choice of the GPU is obeyed. Pure.

NVIDIA's device plugin chooses the GPU of a share itself. Others take the one that the scheduler names (HAMi's, and the
one that "Beware of Fragmentation", USENIX ATC 2023, measured with): on such nodes a share may go wherever its memory
is free, and what it leaves of which GPU is up to us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from scheduler_core.mix import WHOLE_GPU

if TYPE_CHECKING:
    from gputopo.labels.nodegpus import Allocation
    from scheduler_core.nodes import NodeState
    from scheduler_core.occupancy import Occupant

Left = tuple[int, ...]  # thousandths of each GPU, by place, that are free


def promised(
    place_of: Mapping[str, int], size: int, allocations: Iterable[Allocation], pods: Iterable[Occupant]
) -> tuple[int, ...]:
    """MiB of each GPU, by place, that shares hold: what bound pods ask for, on the GPUs that they really got."""
    asked = {(pod.namespace, pod.name): pod.profile.wishes.vram_mib or 0 for pod in pods if not pod.profile.gpus}
    held = [0] * size
    for each in allocations:
        if each.gpu in place_of:
            held[place_of[each.gpu]] += asked.get((each.pod.namespace, each.pod.name), 0)
    return tuple(held)


@lru_cache(maxsize=1 << 14)
def left(node: NodeState) -> Left:
    """What is free of each GPU: of GPUs that are handed out whole all or nothing. Of a node whose GPUs are known."""
    assert node.shape is not None
    free = 0 if node.free is None else node.free.among
    return tuple(
        WHOLE_GPU if free >> place & 1 else _left_of(node, place, node.shape.gpus[place].memory_mib)
        for place in range(len(node.shape.gpus))
    )


def fitting(node: NodeState, now: Left, vram_mib: int) -> dict[int, Left]:
    """GPUs, by place, with so much memory free, and what would be free of all GPUs then. ``now``: what is free."""
    found = {}
    for place, free in enumerate(now):
        share = share_of(node, place, vram_mib)
        if share is not None and share <= free:
            found[place] = (*now[:place], free - share, *now[place + 1 :])
    return found


def share_of(node: NodeState, place: int, vram_mib: int) -> int | None:
    """Thousandths of that GPU, rounded up; None where its memory is not known."""
    assert node.shape is not None
    memory = node.shape.gpus[place].memory_mib
    return None if not memory else -(-WHOLE_GPU * vram_mib // memory)


def _left_of(node: NodeState, place: int, memory: int | None) -> int:
    """A GPU that is not free as a whole: what its shares leave; nothing where a pod holds it whole."""
    taken = node.promised[place] if node.promised else 0
    return 0 if not taken or not memory else max(0, WHOLE_GPU * (memory - taken) // memory)
