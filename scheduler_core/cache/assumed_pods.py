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
MOST = 4096  # pods; what is oldest goes first
MOST_DOUBTS = 1 << 20  # names of nodes, of all pods in doubt together: some 50 MB. Pods that see all nodes count most


class Assumption(NamedTuple):
    """A pod that is taken to be on a node, or on one of several."""

    pod: Occupant
    nodes: AbstractSet[str]  # never changes
    until: float  # the clock's seconds; infinity while the API server shows the pod nominated to the node

    @property
    def exact(self) -> bool:
        """Whether there is no doubt about the node."""
        return len(self.nodes) == 1


class Assumptions:
    """By pod UID, oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, Assumption] = {}
        self._doubtful: dict[str, Assumption] = {}
        self._on: dict[str, dict[str, Occupant]] = {}  # node -> UID -> pod: the exact ones
        self._doubts = 0  # names
        self._soonest = inf  # nothing ends before
        self._forgotten_until = -inf
        self._now = -inf  # of the last ``expire``

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def of(self, uid: str) -> Assumption | None:
        """What is assumed of that pod."""
        return self._held.get(uid)

    def on(self, node: str) -> Collection[Occupant]:
        """The pods that are taken to be on that node."""
        return self._on.get(node, {}).values()

    @property
    def doubtful(self) -> tuple[Assumption, ...]:
        """The pods that are on one of several nodes."""
        return tuple(self._doubtful.values())

    @property
    def forgetful(self) -> bool:
        """Whether a pod may be on its way of which nothing is remembered any more: there were too many."""
        return self._now < self._forgotten_until

    def assume(self, pod: Occupant, nodes: AbstractSet[str], until: float) -> tuple[Assumption, ...]:
        """Take that pod to be on one of those nodes, in place of what was assumed of it. Answers what ends by that.

        ``nodes`` are kept as they come, not copied: there may be 15,000.
        """
        ended = self.drop(pod.uid)
        if len(self._held) >= MOST:
            ended += self._overflow(next(iter(self._held)))
        held = self._held[pod.uid] = Assumption(pod, nodes, until)
        self._soonest = min(self._soonest, until)
        if held.exact:
            (node,) = held.nodes
            self._on.setdefault(node, {})[pod.uid] = pod
        else:
            self._doubtful[pod.uid] = held
            self._doubts += len(held.nodes)
            while self._doubts > MOST_DOUBTS:
                ended += self._overflow(next(iter(self._doubtful)))
        return ended

    def _overflow(self, uid: str) -> tuple[Assumption, ...]:
        (held,) = self.drop(uid)
        if held.until < inf:  # else the API server knows of it
            self._forgotten_until = max(self._forgotten_until, held.until)
        return (held,)

    def drop(self, uid: str) -> tuple[Assumption, ...]:
        """Assume nothing of that pod any more. Answers what ends by that."""
        held = self._held.pop(uid, None)
        if held is None:
            return ()
        if self._doubtful.pop(uid, None) is not None:
            self._doubts -= len(held.nodes)
        else:
            (node,) = held.nodes
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]
        return (held,)

    def expire(self, now: float) -> tuple[Assumption, ...]:
        """Give up what is too old. Answers what ends by that."""
        self._now = now
        if now < self._soonest:
            return ()
        ended = [self.drop(uid) for uid in [uid for uid, each in self._held.items() if each.until <= now]]
        self._soonest = min((each.until for each in self), default=inf)
        return tuple(each for (each,) in ended)
