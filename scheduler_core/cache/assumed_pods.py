"""What Filter has answered and the watch has not shown yet: one bounded memory, never written anywhere.

kube-scheduler asks about the next pod before it tells the API server where the last one goes. A pod that was answered
with one node is taken to be there; one that was answered with several is in doubt on each of them (``doubts``). Until
its next Filter replaces that, the watch shows the pod bound or gone, or it is too old to be believed. After a restart
there are none but those that the API server knows of: pods nominated to a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from math import inf
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant

WITH_VOLUMES_S = 630.0  # kube-scheduler waits up to 10 minutes for volumes before it binds (bindTimeoutSeconds)
MAX_PODS = 4096  # pods; what is oldest goes first
MAX_NODE_NAMES = (
    1 << 20
)  # names of nodes, of all pods in doubt together: some 50 MB. Pods that see all nodes count most


class AssumedPod(NamedTuple):
    """A pod that is taken to be on a node, or on one of several."""

    pod: Occupant
    nodes: AbstractSet[str]  # never changes
    expires_at: float  # the clock's seconds; infinity while the API server shows the pod nominated to the node

    @property
    def is_on_one_node(self) -> bool:
        """Whether there is no doubt about the node."""
        return len(self.nodes) == 1


class AssumedPods:
    """By pod UID, oldest first."""

    def __init__(self) -> None:
        self._by_uid: dict[str, AssumedPod] = {}
        self._on_several: dict[str, AssumedPod] = {}
        self._on: dict[str, dict[str, Occupant]] = {}  # node -> UID -> pod: the exact ones
        self._node_names = 0  # names
        self._next_expiry = inf  # nothing ends before
        self._overflowed_until = -inf
        self._now = -inf  # of the last ``expire``

    def __iter__(self) -> Iterator[AssumedPod]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)

    def get_pod(self, uid: str) -> AssumedPod | None:
        """What is assumed of that pod."""
        return self._by_uid.get(uid)

    def pods_on(self, node: str) -> Collection[Occupant]:
        """The pods that are taken to be on that node."""
        return self._on.get(node, {}).values()

    @property
    def on_several_nodes(self) -> tuple[AssumedPod, ...]:
        """The pods that are on one of several nodes."""
        return tuple(self._on_several.values())

    @property
    def has_overflowed(self) -> bool:
        """Whether a pod may be on its way of which nothing is remembered any more: there were too many."""
        return self._now < self._overflowed_until

    def add_pod(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> tuple[AssumedPod, ...]:
        """Take that pod to be on one of those nodes, in place of what was assumed of it. Answers what ends by that.

        ``nodes`` are kept as they come, not copied: there may be 15,000.
        """
        ended = self.drop_pod(pod.uid)
        if len(self._by_uid) >= MAX_PODS:
            ended += self._overflow(next(iter(self._by_uid)))
        held = self._by_uid[pod.uid] = AssumedPod(pod, nodes, until)
        self._next_expiry = min(self._next_expiry, until)
        if held.is_on_one_node:
            (node,) = held.nodes
            self._on.setdefault(node, {})[pod.uid] = pod
        else:
            self._on_several[pod.uid] = held
            self._node_names += len(held.nodes)
            while self._node_names > MAX_NODE_NAMES:
                ended += self._overflow(next(iter(self._on_several)))
        return ended

    def _overflow(self, uid: str) -> tuple[AssumedPod, ...]:
        (held,) = self.drop_pod(uid)
        if held.expires_at < inf:  # else the API server knows of it
            self._overflowed_until = max(self._overflowed_until, held.expires_at)
        return (held,)

    def drop_pod(self, uid: str) -> tuple[AssumedPod, ...]:
        """Assume nothing of that pod any more. Answers what ends by that."""
        held = self._by_uid.pop(uid, None)
        if held is None:
            return ()
        if self._on_several.pop(uid, None) is not None:
            self._node_names -= len(held.nodes)
        else:
            (node,) = held.nodes
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]
        return (held,)

    def expire_pods(self, now: float) -> tuple[AssumedPod, ...]:
        """Give up what is too old. Answers what ends by that."""
        self._now = now
        if now < self._next_expiry:
            return ()
        ended = [self.drop_pod(uid) for uid in [uid for uid, each in self._by_uid.items() if each.expires_at <= now]]
        self._next_expiry = min((each.expires_at for each in self), default=inf)
        return tuple(each for (each,) in ended)
