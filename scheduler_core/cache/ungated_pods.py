"""Decide which unbound pods a planner ungated, and to which node each is pinned. In memory; no I/O.

A pod claims it by the annotation ``gputopo.io/reservation`` and a required node affinity, which its owner can write as
well. Therefore a claim counts only where it is proved:

- a reservation lists the pod's UID for that node. The API server chooses UIDs, and only planners write reservations; or
- this process saw such a reservation before it was deleted: an ungated pod stays pinned to its node; or
- only planners can write that annotation (``guarded``: an admission policy), and the reservation that the pod
  names does not exist. Only planners that recover deleted reservations rely on that.

A claim of a reservation that has failed does not count: the pod was not bound in time, and no controller deletes it.
It stays pinned, and may be bound as any other pod that was admitted to that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from scheduler_core.cache.events import Batch, PodUpdate, ReservationUpdate
from scheduler_core.cache.reservations import ReservationIndex


class _Proved(NamedTuple):
    node: str
    until: float  # seconds since 1970; inf: until the pod is bound or deleted
    nominated: str | None = None  # the node that kube-scheduler nominated, where the pod has been resolved


class UngatedPods:
    """The pods whose claims count. For one thread."""

    def __init__(self, reserved: ReservationIndex, *, guarded: bool) -> None:
        """``guarded``: only planners write the annotation."""
        self._listed = False  # all reservations were listed: an unknown reservation does not exist
        self._reserved = reserved
        self._guarded = guarded
        self._proved: dict[str, _Proved] = {}  # by UID

    def resolve(self, pod: PodUpdate, now: float) -> PodUpdate:
        """Return the pod with the node of its claim as its nominated node, where the claim counts."""
        claim = pod.claim
        if claim is None:
            proved = self._proved.get(pod.key)
            if proved is not None and (pod.node is not None or proved.until == inf):
                del self._proved[pod.key]
            return pod
        if self._reserved.has_failed(pod.key, claim):
            self._proved.pop(pod.key, None)
            return pod
        if self.node_of(pod.key, now) != claim.node and not self._is_proved(pod):
            return pod
        self._proved[pod.key] = _Proved(claim.node, inf, pod.nominated_node)
        return pod._replace(nominated_node=claim.node)

    def changed_by(self, batch: Batch[Any], pods: Mapping[str, PodUpdate], now: float) -> list[PodUpdate]:
        """Return the pods whose claims begin or cease to count by a batch of reservations, as ``resolve`` does.

        The watches may show claims before the reservations that prove them. ``pods``: all pods by UID, resolved.
        """
        if batch.kind is not ReservationUpdate:
            return []
        self._listed |= batch.is_full_list
        uids = pods if batch.is_full_list else [seat.uid for each in batch.updates for seat in each.spec.seats]
        claiming = [pod for uid in uids if (pod := pods.get(uid)) is not None and pod.claim is not None]
        found = [(pod, self.resolve(self._unresolved(pod), now)) for pod in claiming]
        return [pod for before, pod in found if pod != before]

    def _unresolved(self, pod: PodUpdate) -> PodUpdate:
        """Return the pod with the node that kube-scheduler nominated."""
        proved = self._proved.get(pod.key)
        if proved is None or proved.until != inf:
            return pod
        return pod._replace(nominated_node=proved.nominated)

    def node_of(self, uid: str, now: float) -> str | None:
        """Return the node to which the pod was ungated; None where nothing proves that it was."""
        proved = self._proved.get(uid)
        return proved.node if proved is not None and now <= proved.until else None

    def remember_unlisted(self, places: Mapping[str, str], now: float, until: float) -> None:
        """Remember pods of removed reservations: the watch may show only later that they were ungated.

        ``places``: the nodes of the reservations, by the pods' UIDs.
        """
        if places:
            valid = {uid: each for uid, each in self._proved.items() if now <= each.until}
            self._proved = {uid: _Proved(node, until) for uid, node in places.items()} | valid

    def forget_pod(self, uid: str) -> None:
        """Forget a pod that no longer exists."""
        self._proved.pop(uid, None)

    def _is_proved(self, pod: PodUpdate) -> bool:
        assert pod.claim is not None  # checked by ``resolve``
        if self._reserved.lists_pod(pod.key, pod.claim):
            return True
        known = self._reserved.has_name(pod.occupant.namespace, pod.claim.reservation)
        return self._guarded and self._listed and not known
