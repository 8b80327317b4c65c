"""Logs what is wrong with watches: once, and that it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from scheduler_core.cache.events import WatchStatus

_log = logging.getLogger(__name__)


class WatchErrorLog:
    """As told last."""

    def __init__(self) -> None:
        self._logged: dict[str, str | None] = {}  # by watch

    def log_errors(self, watches: Iterable[WatchStatus]) -> None:
        """Of all watches that there are."""
        for each in watches:
            if each.error != self._logged.get(each.kind):
                self._logged[each.kind] = each.error
                level = logging.WARNING if each.error and each.served else logging.INFO  # a kind may be nobody's
                _log.log(level, "watch", extra={"fields": {"kind": each.kind, "trouble": each.error}})
