"""What Filter has promised and the watch has not shown yet: one bounded memory, as a value. Pure.

kube-scheduler asks about the next pod before it tells the API server where the last one goes. So for a pod with a
required shape Filter answers exactly one node, which is then the scheduler's choice, and remembers it here: until the
pod's next Filter replaces it, the watch shows the pod bound (or gone), or it is too old to be believed. Never written
anywhere: after a restart there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from scheduler_core.occupancy import Occupant

LIFETIME_S = 30.0  # a scheduling cycle with slow volumes and binding takes seconds; then the watch has shown it
MOST = 4096  # what is oldest goes first


class Assumption(NamedTuple):
    """A pod that is taken to be on a node."""

    pod: Occupant
    node: str
    until: float  # the clock's seconds


class Assumptions(NamedTuple):
    """By pod UID, oldest first. Every change makes a new value."""

    by_uid: Mapping[str, Assumption] = {}

    def on_nodes(self, now: float, *, without: str) -> Iterator[tuple[str, Occupant]]:
        """Nodes and the pods taken to be on them, but for the pod that is being asked about."""
        for uid, each in self.by_uid.items():
            if uid != without and each.until > now:
                yield each.node, each.pod


def assume(held: Assumptions, pod: Occupant, node: str, now: float) -> Assumptions:
    """With that pod on that node, in place of what was assumed of the pod."""
    others = [(uid, each) for uid, each in held.by_uid.items() if uid != pod.uid and each.until > now]
    return Assumptions(dict([*others[-(MOST - 1) :], (pod.uid, Assumption(pod, node, now + LIFETIME_S))]))


def dropped(held: Assumptions, uid: str) -> Assumptions:
    """Without that pod: it was refused, is gone, or the watch has shown it bound, wherever that is."""
    if uid not in held.by_uid:
        return held
    return Assumptions({known: each for known, each in held.by_uid.items() if known != uid})


def expired(held: Assumptions, now: float) -> Assumptions:
    """Without those that are too old; the same value where there are none."""
    kept = {uid: each for uid, each in held.by_uid.items() if each.until > now}
    return held if len(kept) == len(held.by_uid) else Assumptions(kept)
