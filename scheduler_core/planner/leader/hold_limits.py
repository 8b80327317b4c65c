"""Limits of capacity holds: held GPUs of each namespace and of each priority, and the age of a hold. No I/O.

The age counts from the first hold of a gang. A hold that reaches it ends, and its namespace gets no hold of this
priority for as long: else a tenant could keep GPUs without end, by one gang after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gputopo.crd.reservations import ReservationSpec
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang
from scheduler_core.planner.leader.queue_order import QueueOrder
from scheduler_core.policy.limits import LimitReached

TOTAL_S = 10.0  # between two counts of all GPUs of the cluster


class CapacityHold(NamedTuple):
    """A reservation that holds capacity."""

    reservation: ReservationUpdate
    gang: GangName

    @property
    def spec(self) -> ReservationSpec:
        """The held devices."""
        return self.reservation.spec

    @property
    def priority(self) -> int:
        """The priority of its gang when the hold was made, which extenders enforce."""
        return self.spec.priority

    @property
    def gpus(self) -> int:
        """The number of held devices."""
        return sum(each.gpus for each in self.spec.held)

    @property
    def nodes(self) -> set[str]:
        """The nodes with held devices."""
        return {each.node for each in self.spec.held}


class _Pause(NamedTuple):
    """No hold is made for a namespace and priority."""

    until: float  # monotonic seconds
    reached: LimitReached


class _KeptShare(NamedTuple):
    """GPUs that later gangs of a priority leave to gangs that wait for their share of ``heldGpus``."""

    first: QueueOrder  # of the first of these gangs
    gpus: int  # of the largest hold that one of them waits for


class HoldLimits:
    """Limits of capacity holds in one term of leadership. For one thread."""

    def __init__(
        self,
        queue: GangQueue,
        context: TermContext,
        count_gpus: Callable[[], int],
        own_use: Callable[[CapacityHold], int] = lambda _: 0,
    ) -> None:
        """``count_gpus``: returns the number of all GPUs of the cluster.

        ``own_use``: returns how many devices of a hold are used by pods of its namespace: it keeps them from no other.
        """
        self._own_use = own_use
        self.reached: dict[GangName, LimitReached] = {}  # why a queued gang may hold nothing
        self._queue, self._context, self._count_gpus = queue, context, count_gpus
        self._pauses: dict[tuple[str, int], _Pause] = {}  # by namespace and priority
        self._shares: dict[int, _KeptShare] = {}  # by priority
        self._total = 0
        self._next_total = 0.0  # monotonic seconds

    def forget_gone(self) -> None:
        """Forget gangs that are not queued."""
        self.reached = {name: why for name, why in self.reached.items() if self._queue.get_queued(name)}

    def exceeding(self, holds: Iterable[CapacityHold], now: float) -> Iterator[str]:
        """Yield the UIDs of holds that have reached their age, or exceed a limit of their namespace."""
        kept: list[CapacityHold] = []
        max_age_s, wall = self._context.policies().limits.max_hold_age_s, self._context.clock.wall()
        for each in holds:
            since = parse_timestamp(each.spec.held_since)
            if since is None or self._queue.limit_reached(each.gang) is not None:  # None: of an earlier version
                yield each.reservation.key
            elif wall - since >= max_age_s:
                until = f"the next from {format_timestamp(wall + max_age_s)} (gangs.maxHoldAge)"
                reason = f"a capacity hold of its namespace and priority ended at its age limit; {until}"
                self.reached[each.gang] = LimitReached("maxHoldAge", reason)
                self._pauses[each.gang.namespace, each.priority] = _Pause(now + max_age_s, self.reached[each.gang])
                yield each.reservation.key
            elif (reached := self._gpu_limit(each.gang, each.gpus, kept, now)) is not None:
                self.reached[each.gang] = reached
                yield each.reservation.key
            else:
                kept.append(each)

    def allow(self, gang: GangName, priority: int, gpus: int, holds: Iterable[CapacityHold], now: float) -> bool:
        """Return False if the gang may not hold so many GPUs beside these holds, and record why."""
        self._pauses = {key: each for key, each in self._pauses.items() if now < each.until}
        pause = self._pauses.get((gang.namespace, priority))
        reached = self._gpu_limit(gang, gpus, holds, now) if pause is None else pause.reached
        if reached is None:
            self.reached.pop(gang, None)
            return True
        self.reached[gang] = reached
        return False

    def allow_together(
        self, gang: GangName, priority: int, gpus: int, holds: Iterable[CapacityHold], now: float
    ) -> bool:
        """Return False if the holds of this priority would have too many GPUs together, and record why.

        The only hold of a priority, and a hold that moves, may have more. Gangs behind a gang that waits for its share
        get holds from what is left, but together no more than leaves this share: it waits for older holds only. So the
        holds behind it count as a whole, also GPUs that pods of their namespaces use for now.
        """
        open_holds = [each for each in holds if each.priority == priority]
        others = sum(each.gpus - self._own_use(each) for each in open_holds if each.gang != gang)
        most = self._context.policies().limits.default.held_gpus.max_gpus(self._total_gpus(now))
        if not others or any(each.gang == gang for each in open_holds):
            return True
        held, share = f"{others} held at its priority", self._shares.get(priority)
        if others + gpus <= most and share is not None:
            later = sum(each.gpus for each in open_holds if self._is_behind(each.gang, share.first))
            held, others = f"{later} held for later gangs and {share.gpus} kept for earlier ones", later + share.gpus
        if others + gpus <= most:
            return True
        reason = f"it needs {gpus} GPUs beside {held}: together at most {most} (gangs.heldGpus)"
        self.reached[gang] = LimitReached("heldGpus", reason)
        return False

    def clear_shares(self) -> None:
        """Forget which gangs wait for their share, before a pass over the queue."""
        self._shares.clear()

    def keep_share(self, waiting: QueuedGang, gpus: int) -> None:
        """Let the gangs behind a gang leave it so many GPUs. Called in the order of the queue."""
        known = self._shares.get(waiting.gang.priority, _KeptShare(waiting.order, gpus))
        self._shares[waiting.gang.priority] = known._replace(gpus=max(known.gpus, gpus))

    def _is_behind(self, gang: GangName, order: QueueOrder) -> bool:
        waiting = self._queue.get_queued(gang)
        return waiting is None or waiting.order > order

    def mark_other_holder(self, gang: GangName) -> None:
        """Record that another gang of the namespace has its hold: the number of GPUs is not the reason any more."""
        if (reached := self.reached.get(gang)) is not None and reached.limit == "heldGpus":
            del self.reached[gang]

    def _gpu_limit(self, gang: GangName, gpus: int, holds: Iterable[CapacityHold], now: float) -> LimitReached | None:
        """Return the limit if the gang's namespace may not hold so many GPUs beside the holds of its other gangs."""
        most = self._context.policies().limits.limits_of(gang.namespace).held_gpus.max_gpus(self._total_gpus(now))
        others = sum(each.gpus for each in holds if each.gang.namespace == gang.namespace and each.gang != gang)
        if others + gpus <= most:
            return None
        beside = f" beside {others} held" if others else ""
        return LimitReached(
            "heldGpus", f"it needs {gpus} GPUs{beside}: the limit of its namespace is {most} (gangs.heldGpus)"
        )

    def _total_gpus(self, now: float) -> int:
        if now >= self._next_total:
            self._next_total, self._total = now + TOTAL_S, self._count_gpus()
        return self._total
