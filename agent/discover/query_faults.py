"""Faults that ``nvidia-smi -q`` prints in words: no access, a failed row remapping, a required reset. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gputopo.model import Degradation

if TYPE_CHECKING:
    from agent.discover.inventory import InventoryEntry
    from agent.sources.smi.query import SmiQuery


def find_query_faults(inventory: Iterable[InventoryEntry]) -> Iterator[Degradation]:
    """Yield the faults of each GPU in ``-q`` or ``-q -x``."""
    for each in inventory:
        if each.query is not None and each.query.remap_failed:
            yield Degradation(f"gpu{each.index}.memory", "a row of memory could not be remapped: replace the GPU")
        if each.query is not None and each.query.reset_required:
            yield Degradation(f"gpu{each.index}", "nvidia-smi says that the GPU must be reset")
        elif each.query is not None and each.query.recovery_action is not None:
            yield Degradation(f"gpu{each.index}", f"nvidia-smi recommends the action {each.query.recovery_action!r}")


def find_undescribed_gpus(query: SmiQuery) -> Iterator[Degradation]:
    """Yield the GPUs that ``-q`` cannot reach and does not describe. Only their bus ids are known."""
    described = {gpu.bus_id for gpu in query.gpus}
    for lost in query.unreachable:
        if lost.index is None and lost.bus_id is not None and lost.bus_id not in described:
            yield Degradation(lost.bus_id, f"lost: nvidia-smi cannot reach this GPU ({lost.why.rstrip('.')})")


def queried_at_p0(inventory: Iterable[InventoryEntry]) -> frozenset[int]:
    """Return the indices of the GPUs that ``-q`` shows in their highest performance state."""
    return frozenset(each.index for each in inventory if each.query is not None and each.query.at_p0)
