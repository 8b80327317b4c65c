"""Assumed pods: those that Filter assigned to nodes and the pod watch has not shown there yet. Bounded, in memory only.

kube-scheduler calls Filter for the next pod before it binds the last one. A pod for which Filter returned one node is
assumed on that node; a pod for which Filter returned several nodes is in flight to any of them (see ``in_flight``).
An assumption ends when Filter is called for the pod again, when the watch shows the pod bound or deleted, or when
it expires. After a restart only the pods that the API server shows nominated to a node are assumed.

Filter may be called for a pod after the watch has shown its deletion: kube-scheduler has its own watch. No event would
end that assumption, so the UIDs of deleted pods are remembered for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from math import inf
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import PodUpdate

WITH_VOLUMES_S = 630.0  # kube-scheduler waits up to 10 minutes for volumes before it binds (bindTimeoutSeconds)
MAX_PODS = 4096  # the oldest are dropped first
MAX_NODE_NAMES = 1 << 20  # of all pods in flight together: some 50 MB
DELETED_S = 120.0  # for which the UID of a deleted pod is remembered
MAX_DELETED = 1 << 14  # UIDs; the oldest are dropped first: those of a minute at 270 deletions a second


class AssumedPod(NamedTuple):
    """A pod that is assumed on a node, or on one of several."""

    pod: Occupant
    nodes: AbstractSet[str]  # must not be changed
    expires_at: float  # in seconds; infinity while the API server shows the pod nominated to the node
    admitted_until: float = 0.0  # then, when it would expire without the nomination

    @property
    def is_on_one_node(self) -> bool:
        """True if the node is certain."""
        return len(self.nodes) == 1


class AssumedPods:
    """The assumed pods by UID, oldest first."""

    def __init__(self) -> None:
        self._by_uid: dict[str, AssumedPod] = {}
        self._on_several: dict[str, AssumedPod] = {}
        self._pods_by_node: dict[str, dict[str, Occupant]] = {}  # node -> UID -> pod; of pods on one node
        self._node_names = 0  # in all of ``_on_several``
        self._next_expiry = inf  # no assumption expires before
        self._overflowed_until = -inf
        self._deleted = OrderedDict[str, float]()  # UID -> when it was deleted; oldest first
        self._now = -inf  # of the last ``expire_pods``

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)

    def get_pod(self, uid: str) -> AssumedPod | None:
        """Return the assumption about a pod."""
        return self._by_uid.get(uid)

    def waiting_pod(self, pod: PodUpdate | None, node: str) -> Occupant | None:
        """Return the pod if it is not bound, and not assumed on other nodes than this one."""
        if pod is None or pod.node is not None:
            return None
        assumed = self.get_pod(pod.key)
        return pod.occupant if assumed is None or node in assumed.nodes else None

    def pods_on(self, node: str) -> Collection[Occupant]:
        """Return the pods that are assumed on this node and no other."""
        return self._pods_by_node.get(node, {}).values()

    @property
    def on_several_nodes(self) -> tuple[AssumedPod, ...]:
        """The pods that are assumed on one of several nodes."""
        return tuple(self._on_several.values())

    @property
    def has_overflowed(self) -> bool:
        """True if a pod may be in flight that was dropped because there were too many."""
        return self._now < self._overflowed_until

    def add_pod(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> tuple[AssumedPod, ...]:
        """Assume the pod on one of the nodes, in place of its former assumption. Return the assumptions that end.

        ``nodes`` is not copied: it may contain 15,000 names.
        """
        ended = self.drop_pod(pod.uid)
        admitted_until = 0.0
        if until == inf and ended:
            admitted_until = ended[0].admitted_until if ended[0].expires_at == inf else ended[0].expires_at
        if len(self._by_uid) >= MAX_PODS:
            ended += self._overflow(next(iter(self._by_uid)))
        assumed = self._by_uid[pod.uid] = AssumedPod(pod, nodes, until, admitted_until)
        self._next_expiry = min(self._next_expiry, until)
        if assumed.is_on_one_node:
            (node,) = assumed.nodes
            self._pods_by_node.setdefault(node, {})[pod.uid] = pod
        else:
            self._on_several[pod.uid] = assumed
            self._node_names += len(assumed.nodes)
            while self._node_names > MAX_NODE_NAMES:
                ended += self._overflow(next(iter(self._on_several)))
        return ended

    def _overflow(self, uid: str) -> tuple[AssumedPod, ...]:
        (assumed,) = self.drop_pod(uid)
        if assumed.expires_at < inf:  # else the API server shows the nomination
            self._overflowed_until = max(self._overflowed_until, assumed.expires_at)
        return (assumed,)

    def drop_pod(self, uid: str) -> tuple[AssumedPod, ...]:
        """Drop the assumption about a pod. Return the assumptions that end."""
        assumed = self._by_uid.pop(uid, None)
        if assumed is None:
            return ()
        if self._on_several.pop(uid, None) is not None:
            self._node_names -= len(assumed.nodes)
        else:
            (node,) = assumed.nodes
            del self._pods_by_node[node][uid]
            if not self._pods_by_node[node]:
                del self._pods_by_node[node]
        return (assumed,)

    def delete_pod(self, uid: str) -> tuple[AssumedPod, ...]:
        """Drop the assumption about a pod that was deleted, and remember its UID. Return the assumptions that end."""
        self._deleted[uid] = self._now
        self._deleted.move_to_end(uid)
        if len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)
        return self.drop_pod(uid)

    def was_deleted(self, uid: str) -> bool:
        """Return whether the pod was deleted; also False if that was long ago, or too many were deleted since."""
        return uid in self._deleted

    def expire_pods(self, now: float) -> tuple[AssumedPod, ...]:
        """Drop expired assumptions. Return them."""
        self._now = now
        while self._deleted and next(iter(self._deleted.values())) <= now - DELETED_S:
            self._deleted.popitem(last=False)
        if now < self._next_expiry:
            return ()
        ended = [self.drop_pod(uid) for uid in [uid for uid, each in self._by_uid.items() if each.expires_at <= now]]
        self._next_expiry = min((each.expires_at for each in self), default=inf)
        return tuple(each for (each,) in ended)
