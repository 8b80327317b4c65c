"""Backfill: gangs that use capacity which is held for another gang, until that gang can start. Pure.

Backfill must not delay the other gang, the holder. So with ``BackfillMode.DEADLINE`` only a limit counts that
Kubernetes enforces and that no tenant can raise: the ``activeDeadlineSeconds`` of the pod itself, plus its grace
period. The deadline of a Job can be raised, and annotations are claims: they count with ``BackfillMode.ESTIMATE``, and
the planner evicts the pods before the holder is expected. If the capacity comes free earlier than estimated, the pods
are evicted (``leader/backfills.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from math import inf

from gputopo.crd.reservations import Backfill, HeldCapacity
from gputopo.timestamps import format_timestamp
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import is_hold
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy

START_S = 15.0  # from the decision until the members are ungated; their bind timeout comes on top
RELEASE_S = 30.0  # from the end of a pod's grace period until the agent reports its devices as free
YIELD_S = 15.0  # from the decision to evict until the pods terminate: a search, the hold is listed, budgets are counted


def hold_start(
    held: Iterable[HeldCapacity],
    table: ClusterSnapshot,
    deadline_of: Callable[[Occupant], float | None],
    yielding: Container[str] = (),
) -> float | None:
    """Return when all held devices are free at the latest, by deadlines, in seconds since 1970.

    -inf: they are free now; None: unknown. ``yielding``: UIDs of pods that count as gone.
    """
    found = [_free_at(each, table, deadline_of, yielding) for each in held]
    known = [at for at in found if at is not None]
    return max(known, default=None) if len(known) == len(found) else None


def _free_at(
    held: HeldCapacity,
    table: ClusterSnapshot,
    deadline_of: Callable[[Occupant], float | None],
    yielding: Container[str],
) -> float | None:
    """Return when so many devices of the node are free: pods end in the order of their deadlines."""
    record = table.records.get(held.node)
    if record is None:
        return None
    users = [
        (inf if (at := deadline_of(pod)) is None else at, devices)
        for pod in record.pods
        if not is_hold(pod.uid) and pod.uid not in yielding
        if (devices := Counter(dict(pod.profile.device_request.totals))[held.resource])
    ]
    free = dict(record.machine.allocatable).get(held.resource, 0) - sum(devices for _, devices in users)
    if free >= held.gpus:
        return -inf
    for at, devices in sorted(users):
        free += devices
        if free >= held.gpus:
            return None if at == inf else at
    return None


def backfill_of(
    gang: Gang, holder: GangName, estimate: float | None, timeout_s: float, policy: BackfillPolicy, now: float
) -> Backfill | None:
    """Return the condition under which a gang may use the holder's capacity; None: it may not.

    ``estimate``: ``hold_start``, in seconds since 1970, as ``now``; ``timeout_s``: from ungating until all are bound.
    """
    if policy.mode is BackfillMode.OFF or estimate is None or estimate == -inf or gang.placed:
        return None
    bounds = [each.bounded_s for each in gang.ready if each.asks_for_gpus]
    known = [each for each in bounds if each is not None]
    if not known or len(known) < len(bounds) or max(grace for _, grace in known) > policy.max_grace_s:
        return None
    start_by = estimate - timeout_s - max(map(sum, known)) - RELEASE_S
    if now + START_S > start_by:
        return None
    return Backfill(holder.title, format_timestamp(start_by), format_timestamp(estimate))


def with_claim(gang: Gang, run_s: float) -> Gang:
    """Return the gang with this run time, as it says, in place of longer deadlines and where it has no deadline.

    It counts as longer by the time in which the planner can evict a pod that runs on.
    """

    def bounds(member: Member) -> tuple[float, float] | None:
        if member.bounded_s is not None:
            return min(run_s + YIELD_S, member.bounded_s[0]), member.bounded_s[1]
        return None if member.expected is None else (run_s + YIELD_S, member.expected.grace_s)

    return gang._replace(ready=tuple(each._replace(bounded_s=bounds(each)) for each in gang.ready))


def yield_at(limit: float, grace_s: float) -> float:
    """Return when pods that nothing ends are evicted, so that their devices are free at ``limit``."""
    return limit - grace_s - RELEASE_S - YIELD_S
