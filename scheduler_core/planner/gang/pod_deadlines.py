"""Deadlines of running pods: ``activeDeadlineSeconds`` of the pod or of its Job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSizes


class PodDeadline(NamedTuple):
    """The deadline of a pod that has a node (activeDeadlineSeconds), in seconds since 1970. Its key is its UID."""

    key: str
    ends_at: float


class PodDeadlines:
    """Deadlines of pods and of Jobs. For one thread."""

    def __init__(self) -> None:
        self._pods: dict[str, float] = {}
        self._jobs: dict[type[Any], dict[str, float]] = {}  # by kind, then by UID of the Job

    def apply_pod_deadlines(self, batch: Batch[PodDeadline]) -> None:
        """Apply a batch of pods' deadlines."""
        _apply(self._pods, batch, {each.key: each.ends_at for each in batch.updates})

    def apply_job_deadlines(self, batch: Batch[DeclaredSizes]) -> None:
        """Apply a batch of Jobs' deadlines. A full list of one kind leaves the other kinds as they are."""
        found = {each.key: each.deadline for each in batch.updates if each.deadline is not None}
        if found or batch.kind in self._jobs:
            _apply(self._jobs.setdefault(batch.kind, {}), batch, found)

    def copy(self) -> PodDeadlines:
        """Return a copy for another thread."""
        found = PodDeadlines()
        found._pods, found._jobs = dict(self._pods), {kind: dict(each) for kind, each in self._jobs.items()}
        return found

    def deadline_of(self, pod: Occupant) -> float | None:
        """Return the latest time at which a pod ends; None: unknown."""
        found = (self._pods.get(pod.uid), *(each.get(pod.owner or "") for each in self._jobs.values()))
        return min((at for at in found if at is not None), default=None)


def _apply(
    known: dict[str, float], batch: Batch[PodDeadline] | Batch[DeclaredSizes], found: Mapping[str, float]
) -> None:
    if batch.is_full_list:
        known.clear()
    for key in (*batch.removed, *(each.key for each in batch.updates)):
        known.pop(key, None)
    known.update(found)
