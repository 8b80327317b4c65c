"""The pods that request or hold GPUs, by UID, by name, by owner and by job."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.placeholder_pods import FullName, full_name

MAX_SIBLINGS = 4096  # of one pod that are found: a decision about a pod must not take longer the larger its job is


class JobMember(Protocol):
    """A pod with its owner and its job: ``PodRequest`` and ``Occupant``."""

    @property
    def namespace(self) -> str: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def job(self) -> str | None: ...


def sibling_keys(pod: JobMember) -> tuple[str, ...]:
    """Return the keys that siblings share: pods of one namespace with the same owner, or with the same job."""
    owner = () if pod.owner is None else (f"{pod.namespace}/{pod.owner}",)
    return owner if pod.job is None else (*owner, pod.job)


class PodIndex:
    """An index of pods. A pod keeps its UID, name, owner and job."""

    def __init__(self) -> None:
        self.by_uid: dict[str, PodUpdate] = {}
        self._uids_by_key: dict[str, dict[str, None]] = {}  # oldest first
        # Not their UIDs: the garbage collector would search a dict of plain tuples and strings again after each change.
        self._by_name: dict[FullName, PodUpdate] = {}

    def add_pod(self, pod: PodUpdate) -> None:
        """Add a pod, or replace it. Where two pods have the same name, the last one is found by it."""
        known = self.by_uid.get(pod.key)
        if known is not None and sibling_keys(known.occupant) != sibling_keys(pod.occupant):
            self._drop_keys(known)
        self.by_uid[pod.key] = pod
        self._by_name[full_name(pod.occupant)] = pod
        for key in sibling_keys(pod.occupant):
            self._uids_by_key.setdefault(key, {})[pod.key] = None

    def pop_pods(self, uids: Iterable[str]) -> tuple[PodUpdate, ...]:
        """Remove the pods with these UIDs, and return those that were known."""
        pods = tuple(pod for uid in uids if (pod := self.by_uid.pop(uid, None)) is not None)
        for pod in pods:
            name = full_name(pod.occupant)
            if (found := self._by_name.get(name)) is not None and found.key == pod.key:
                del self._by_name[name]
            self._drop_keys(pod)
        return pods

    def named(self, name: FullName) -> PodUpdate | None:
        """Return the pod of that namespace and name."""
        return self._by_name.get(name)

    def siblings_of(self, pod: JobMember) -> list[PodUpdate]:
        """Return the pods of the same owner or job, at most ``MAX_SIBLINGS`` of each, the pod itself included."""
        uids = dict.fromkeys(
            uid for key in sibling_keys(pod) for uid in islice(self._uids_by_key.get(key, ()), MAX_SIBLINGS)
        )
        return [self.by_uid[uid] for uid in uids]

    def _drop_keys(self, pod: PodUpdate) -> None:
        for key in sibling_keys(pod.occupant):
            self._uids_by_key[key].pop(pod.key, None)
            if not self._uids_by_key[key]:
                del self._uids_by_key[key]
