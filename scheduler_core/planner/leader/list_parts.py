"""Divides a list of all pods, so that the planner's loop is never occupied for long. No I/O.

A watch that fell too far behind lists all pods again. A cluster may have 100,000, most of them without GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from scheduler_core.cache.events import Batch, pieces, removed_keys
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.view import PlannerView

PIECE = 64  # pods


def parts_of(batch: Batch[Any], view: PlannerView) -> Iterator[Batch[Any]]:
    """Yield batches of a few pods which together change the same as a list of pods; any other batch as it is.

    The list is compared with the known pods when the first part is requested. The first list, which decides when the
    view is complete, stays whole.
    """
    if batch.kind is not PlannerPod or not batch.is_full_list or not view.cache.synced:
        yield batch
        return
    known = {*view.cache.pods, *view.gang_members.uids, *view.loads.uids}
    yield from (Batch(PlannerPod, (), keys) for keys in pieces(removed_keys(batch, known), PIECE))
    yield from (Batch(PlannerPod, updates) for updates in pieces(batch.updates, PIECE))


class ListDivider:
    """Applies batches in their order: a list in parts, one in each turn of the loop, and other batches at once."""

    def __init__(
        self, view: PlannerView, apply: Callable[[Batch[Any]], None], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """``call_soon``: calls a function in the next turn of the loop."""
        self._view, self._apply, self._call_soon = view, apply, call_soon
        self._waiting: deque[Batch[Any]] = deque()
        self._parts: Iterator[Batch[Any]] = iter(())  # of the batch in progress
        self._is_busy = False  # batches wait, or one is in progress

    def apply_batch(self, batch: Batch[Any]) -> None:
        """Apply a batch after all earlier ones."""
        if not self._is_busy and not batch.is_full_list:
            self._apply(batch)
            return
        self._waiting.append(batch)
        if not self._is_busy:
            self._is_busy = True
            self._apply_next()

    def _apply_next(self) -> None:
        while (part := next(self._parts, None)) is None:
            if not self._waiting:
                self._is_busy = False
                return
            self._parts = parts_of(self._waiting.popleft(), self._view)
        self._apply(part)
        self._call_soon(self._apply_next)
