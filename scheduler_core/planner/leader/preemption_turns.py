"""Which preemptions of one priority wait for each other, and for how long. Pure.

Gangs of one namespace and priority preempt one after the other. Gangs of other namespaces wait until the evictions of a
preemption are accepted: before, no search counts these pods as gone, and no budget counts them as evicted, so other
pods could be evicted in vain. After that the two are independent: they use different nodes (``nodes_of_other_holds``).

A pod that ends slowly, or whose eviction is refused, must not keep other gangs from preempting: both waits are bounded.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.queue import QueuedGang

# After the last accepted eviction for a gang, other gangs of its priority wait for:
_NAMESPACE_WAITS_S = 60.0  # in its namespace
_OTHERS_WAIT_S = 10.0  # in other namespaces, while evictions are left
_ACCEPTED_S = 2.0  # in other namespaces, when all are accepted: until the watch shows that the pods terminate


def has_waited(waiting: QueuedGang, wait_s: float, now: float) -> bool:
    """Return whether a gang does not fit, and has waited as long as the policy requires. ``now``: monotonic seconds."""
    is_over = now - waiting.newest_seen_at >= wait_s
    return is_over and waiting.unfit_state is not None and not waiting.gang.unplanned


class EvictionsForHold(NamedTuple):
    """A hold whose evictions are in progress."""

    hold: CapacityHold
    idle_s: float  # since the last eviction was accepted; before the first one, since the hold exists
    has_unaccepted: bool  # evictions are left

    def delays(self, gang: Gang) -> bool:
        """Return True if a gang does not preempt yet because of these evictions."""
        if self.hold.priority != gang.priority:
            return False
        if self.hold.gang.namespace == gang.name.namespace:
            return self.idle_s < _NAMESPACE_WAITS_S
        return self.idle_s < (_OTHERS_WAIT_S if self.has_unaccepted else _ACCEPTED_S)


def evictions_for(hold: CapacityHold, observations: Observations, has_unaccepted: bool, now: float) -> EvictionsForHold:
    """Return the evictions for a hold. ``now``: monotonic seconds."""
    since, intent = observations.since.get(hold.reservation.key), hold.spec.preemption
    evictions = () if intent is None else intent.evictions
    accepted = [at for each in evictions if (at := observations.evicted.get(each.uid)) is not None]
    last = max(accepted, default=now if since is None else since.at)
    return EvictionsForHold(hold, now - last, has_unaccepted)
