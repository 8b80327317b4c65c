"""Who waited in vain for as long as they may, and is released to ordinary scheduling. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_core.planner.commit.actions import Release
from scheduler_core.planner.gang.conventions import is_alone
from scheduler_core.planner.leader.backlog import Backlog
from scheduler_core.planner.leader.context import Settled
from scheduler_core.planner.leader.in_progress import spoken_for
from scheduler_core.planner.leader.queue import Waiting
from scheduler_core.planner.leader.view import View


def releases(settled: Settled, view: View, backlog: Backlog, now: float) -> Iterator[Release]:
    """Pod by pod. ``now``: monotonic seconds."""
    limits = [each for each in (settled.gate_timeout_s, settled.release_after_s) if each is not None]
    if not limits or not backlog.queue.met_before(now - min(limits)):
        return
    due = [each for each in backlog.queue.order() if _is_due(settled, each, now)]
    spoken = spoken_for(view)
    for each in due:
        if not spoken.is_free(each.gang):
            continue
        alone = is_alone(each.gang.name)
        limit = settled.gate_timeout_s if alone else settled.release_after_s
        known = backlog.unplaced.get(each.gang.name)
        why = f"no place within {limit:g} s" if known is None else f"{known.reason}, for {limit:g} s"
        policy = "gate-timeout" if alone else "unplaceable"
        yield from (Release(member, why, policy) for member in each.gang.ready)


def _is_due(settled: Settled, waiting: Waiting, now: float) -> bool:
    """A single pod whatever it waits for, our own troubles too; a gang only where it was tried and fits nowhere."""
    alone = is_alone(waiting.gang.name)
    limit = settled.gate_timeout_s if alone else settled.release_after_s
    return limit is not None and now - waiting.grown >= limit and (alone or waiting.misfit is not None)
