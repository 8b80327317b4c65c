"""Who waited in vain for as long as they may, and is released to ordinary scheduling. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_core.gangs.conventions import is_alone
from scheduler_core.gangs.writes import Release
from scheduler_core.planner.backlog import Backlog
from scheduler_core.planner.given import Settled
from scheduler_core.planner.spoken_for import spoken_for
from scheduler_core.planner.view import View


def releases(settled: Settled, view: View, backlog: Backlog, now: float) -> Iterator[Release]:
    """Pod by pod. ``now``: monotonic seconds."""
    if not backlog.unplaced:
        return
    spoken = spoken_for(view)
    for each in backlog.queue.order():
        alone = is_alone(each.gang.name)
        limit = settled.gate_timeout_s if alone else settled.release_after_s
        if each.misfit is None or limit is None or now - each.grown < limit or not spoken.is_free(each.gang):
            continue
        known = backlog.unplaced.get(each.gang.name)
        why = f"no place within {limit:g} s" if known is None else f"{known.reason}, for {limit:g} s"
        policy = "gate-timeout" if alone else "unplaceable"
        yield from (Release(member, why, policy) for member in each.gang.ready)
