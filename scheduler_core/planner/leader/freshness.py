"""Detects a stale cluster cache: watches are silent, or do not show own writes. Nothing is planned then. No I/O.

A watch can be silent although its connection is open: behind a proxy that keeps it open, or when the watch cache of the
API server is stuck. An own write that the watch does not show reveals that earlier than silence does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gputopo.kube.rbac import LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.timing import WATCH_SILENT_S
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.watch import silence_reason

MAX_WRITE_LAG_S = 30.0  # a watch shows a write within a second, and later on a busy cluster
RECOVERY_S = 5.0  # delayed events arrive together: after this time they have been applied
# Placement depends on these kinds. Other kinds only define gang sizes, which stay as they are while a watch is silent.
_NEEDED = frozenset(each.plural for each in (NODES, PODS, NODE_GPUS, RESERVATIONS, LEDGERS))
_log = logging.getLogger(__name__)


class Freshness:
    """Tracks if the cluster cache is fresh enough to plan. For one thread, and one term of leadership."""

    def __init__(self, silent_s: float = WATCH_SILENT_S, recovery_s: float = RECOVERY_S) -> None:
        self.stale_reason: str | None = None  # why nothing is planned and committed; None: the cache is fresh
        self._silent_s, self._recovery_s = silent_s, recovery_s
        self._fresh_since: float | None = None  # monotonic seconds; None: the cause of staleness is still there

    def update(self, watches: Iterable[WatchStatus], write_lag_s: float | None, now: float) -> None:
        """Update ``stale_reason``.

        ``write_lag_s``: age of the oldest own write that no watch has shown. ``now``: monotonic seconds.
        """
        needed = (each for each in watches if each.kind in _NEEDED)
        found = silence_reason(needed, self._silent_s) or _lag_reason(write_lag_s)
        if found is not None:
            if self.stale_reason is None:
                _log.warning("stale", extra={"fields": {"reason": found}})
            self.stale_reason, self._fresh_since = found, None
        elif self.stale_reason is not None:
            self._fresh_since = now if self._fresh_since is None else self._fresh_since
            if now - self._fresh_since >= self._recovery_s:
                self.stale_reason = None
                _log.info("stale", extra={"fields": {"reason": None}})


def _lag_reason(write_lag_s: float | None) -> str | None:
    if write_lag_s is None or write_lag_s <= MAX_WRITE_LAG_S:
        return None
    return f"no watch has shown what gputopo wrote {write_lag_s:.0f} s ago"
