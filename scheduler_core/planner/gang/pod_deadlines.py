"""When running pods will be ended: by ``activeDeadlineSeconds`` of their own, or of the Job that made them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSizes


class PodDeadline(NamedTuple):
    """When a pod that has a node will be ended (activeDeadlineSeconds), in seconds since 1970. Its key is its UID."""

    key: str
    ends_at: float


class PodDeadlines:
    """When pods will be ended, by what they and the Jobs that made them say. For one thread."""

    def __init__(self) -> None:
        self._pods: dict[str, float] = {}
        self._makers: dict[type[Any], dict[str, float]] = {}  # by the UID of the Job; kinds that say when they end

    def apply_pod_deadlines(self, batch: Batch[PodDeadline]) -> None:
        """Take note of pods' deadlines."""
        _keep(self._pods, batch, {each.key: each.ends_at for each in batch.updates})

    def apply_job_deadlines(self, batch: Batch[DeclaredSizes]) -> None:
        """Take note of Jobs' deadlines. ``batch.kind``: one per source; a list of one says nothing of the others."""
        found = {each.key: each.deadline for each in batch.updates if each.deadline is not None}
        if found or batch.kind in self._makers:
            _keep(self._makers.setdefault(batch.kind, {}), batch, found)

    def copy(self) -> PodDeadlines:
        """The same for another thread: what is taken from here on does not change it."""
        found = PodDeadlines()
        found._pods, found._makers = dict(self._pods), {kind: dict(each) for kind, each in self._makers.items()}
        return found

    def deadline_of(self, pod: Occupant) -> float | None:
        """When a pod will have ended at the latest; None: nobody can say."""
        found = (self._pods.get(pod.uid), *(each.get(pod.owner or "") for each in self._makers.values()))
        return min((at for at in found if at is not None), default=None)


def _keep(
    known: dict[str, float], batch: Batch[PodDeadline] | Batch[DeclaredSizes], found: Mapping[str, float]
) -> None:
    if batch.is_full_list:
        known.clear()
    for key in (*batch.removed, *(each.key for each in batch.updates)):
        known.pop(key, None)
    known.update(found)
