"""Whether what is known is good enough to plan on: the watches speak, and show what was written. No I/O.

A watch may be silent though all is well with its connection: a proxy that holds it open, an API server whose cache
stands still. What was written ourselves and does not come back tells that sooner than silence does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gputopo.kube.rbac import LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.timing import WATCH_SILENT_S
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.watch import silence_reason

MAX_WRITE_LAG_S = 30.0  # a watch shows what was written within a second; where all is busy it may take some more
RECOVERY_S = 5.0  # what was held back comes in a bunch: it has been taken in by then
# Places rest on those. Of how many members a gang has others may tell; where they are silent it stays as it was.
_NEEDED = frozenset(each.plural for each in (NODES, PODS, NODE_GPUS, RESERVATIONS, LEDGERS))
_log = logging.getLogger(__name__)


class Freshness:
    """For one thread, and one term of leadership."""

    def __init__(self, silent_s: float = WATCH_SILENT_S, awake_s: float = RECOVERY_S) -> None:
        self.stale_reason: str | None = None  # why nothing is planned and committed
        self._silent_s, self._awake_s = silent_s, awake_s
        self._clear: float | None = None  # since when there is no reason for that any more, monotonic seconds

    def update(self, watches: Iterable[WatchStatus], unshown_s: float | None, now: float) -> None:
        """``unshown_s``: how long something has been written that no watch has shown. ``now``: monotonic seconds."""
        found = silence_reason((each for each in watches if each.kind in _NEEDED), self._silent_s) or _lagging(
            unshown_s
        )
        if found is not None:
            if self.stale_reason is None:
                _log.warning("blind", extra={"fields": {"trouble": found}})
            self.stale_reason, self._clear = found, None
        elif self.stale_reason is not None:
            self._clear = now if self._clear is None else self._clear
            if now - self._clear >= self._awake_s:
                self.stale_reason = None
                _log.info("blind", extra={"fields": {"trouble": None}})


def _lagging(unshown_s: float | None) -> str | None:
    if unshown_s is None or unshown_s <= MAX_WRITE_LAG_S:
        return None
    return f"no watch has shown what gputopo wrote {unshown_s:.0f} s ago"
