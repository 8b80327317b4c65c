"""The pods that request or hold GPUs, by UID, by name and by owner."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.placeholder_pods import FullName, full_name


class PodIndex:
    """An index of pods. A pod keeps its UID, name and owner."""

    def __init__(self) -> None:
        self.by_uid: dict[str, PodUpdate] = {}
        self._uids_by_owner: dict[str, set[str]] = {}
        self._uid_by_name: dict[FullName, str] = {}

    def add_pod(self, pod: PodUpdate) -> None:
        """Add a pod, or replace it. Where two pods have the same name, the last one is found by it."""
        self.by_uid[pod.key] = pod
        self._uid_by_name[full_name(pod.occupant)] = pod.key
        if pod.occupant.owner is not None:
            self._uids_by_owner.setdefault(pod.occupant.owner, set()).add(pod.key)

    def pop_pods(self, uids: Iterable[str]) -> tuple[PodUpdate, ...]:
        """Remove the pods with these UIDs, and return those that were known."""
        pods = tuple(pod for uid in uids if (pod := self.by_uid.pop(uid, None)) is not None)
        for pod in pods:
            if self._uid_by_name.get(full_name(pod.occupant)) == pod.key:
                del self._uid_by_name[full_name(pod.occupant)]
            owner = pod.occupant.owner
            if owner is not None:
                self._uids_by_owner[owner].discard(pod.key)
                if not self._uids_by_owner[owner]:
                    del self._uids_by_owner[owner]
        return pods

    def named(self, name: FullName) -> PodUpdate | None:
        """Return the pod of that namespace and name."""
        return self.by_uid.get(self._uid_by_name.get(name, ""))

    def owned_by(self, owner: str | None) -> list[PodUpdate]:
        """Return the pods of that owner."""
        return [self.by_uid[uid] for uid in self._uids_by_owner.get(owner or "", ())]
