"""Writes the statuses of ``ledger_registration`` into ledgers, on its own thread: the event loop does not wait.

Each process uses server-side apply with its own field manager, so that extenders do not overwrite each other. While the
API server does not answer, only the latest status of each ledger is kept; ``ledger_registration`` repeats a status
until the ledger shows it.
"""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from gputopo.crd.reservations import ExtenderAck
from gputopo.kube.client import Kube
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError
from gputopo.kube.rbac import LEDGER_STATUS
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.extender.ledger_registration import apply_body

_CALL_S = 3.0  # timeout of one call
_log = logging.getLogger(__name__)


class LedgerWriter:
    """The ledger writer of one process."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self.error: str | None = None  # of the last write, if it failed
        self._kube = kube.with_timeout(_CALL_S)
        self._identity = identity
        self._queue: SimpleQueue[tuple[LedgerUpdate, ExtenderAck | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def write_ack(self, ledger: LedgerUpdate, ack: ExtenderAck | None) -> None:
        """Queue the status of this extender in a ledger; None removes it."""
        self._queue.put((ledger, ack))

    def close(self) -> None:
        """Write the queued statuses, but wait at most for one call."""
        self._queue.put(None)
        self._thread.join(_CALL_S)

    def _run(self) -> None:
        ended = False
        while not ended:
            queued = [self._queue.get()]
            while not self._queue.empty():
                queued.append(self._queue.get())
            ended = None in queued
            for ledger, ack in {each[0].key: each for each in queued if each is not None}.values():
                self._write(ledger, ack)

    def _write(self, ledger: LedgerUpdate, ack: ExtenderAck | None) -> None:
        try:
            self._kube.apply(
                LEDGER_STATUS, f"gputopo-extender-{self._identity}"[:128], apply_body(ledger, self._identity, ack)
            )
            self.error = None
        except (NotFoundError, ConflictError) as error:  # deleted or recreated: the watch will show it
            self._note(error, logging.INFO)
        except KubeError as error:
            self._note(error, logging.WARNING)

    def _note(self, error: KubeError, level: int) -> None:
        if str(error) != self.error:
            self.error = str(error)
            _log.log(level, "ledger", extra={"fields": {"error": self.error}})
