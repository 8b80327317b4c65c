"""Who waited in vain for as long as they may, and is released to ordinary scheduling. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_core.planner.commit.actions import ReleasePod
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.context import PlannerConfig
from scheduler_core.planner.leader.in_progress import in_progress
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.planner.leader.view import PlannerView


def due_releases(settled: PlannerConfig, view: PlannerView, backlog: GangBacklog, now: float) -> Iterator[ReleasePod]:
    """Pod by pod. ``now``: monotonic seconds."""
    limits = [each for each in (settled.gate_timeout_s, settled.release_after_s) if each is not None]
    if not limits or not backlog.queue.has_waited_since(now - min(limits)):
        return
    due = [each for each in backlog.queue.ordered() if _is_due(settled, each, now)]
    spoken = in_progress(view)
    for each in due:
        if not spoken.is_free(each.gang):
            continue
        alone = is_single_pod_gang(each.gang.name)
        limit = settled.gate_timeout_s if alone else settled.release_after_s
        known = backlog.unplaced.get(each.gang.name)
        why = f"no place within {limit:g} s" if known is None else f"{known.reason}, for {limit:g} s"
        policy = "gate-timeout" if alone else "unplaceable"
        yield from (ReleasePod(member, why, policy) for member in each.gang.ready)


def _is_due(settled: PlannerConfig, waiting: QueuedGang, now: float) -> bool:
    """A single pod whatever it waits for, our own troubles too; a gang only where it was tried and fits nowhere."""
    alone = is_single_pod_gang(waiting.gang.name)
    limit = settled.gate_timeout_s if alone else settled.release_after_s
    return limit is not None and now - waiting.newest_seen_at >= limit and (alone or waiting.unfit_state is not None)
