"""Writes into ledgers what ``registration`` says, on a thread of its own: the loop waits for nobody.

By server-side apply under a field manager of each process, so that nobody writes over what others said. Of what is said
while the API server does not answer, the last counts; ``registration`` says it again until the ledger shows it.
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

_CALL_S = 3.0  # for one answer of the API server
_log = logging.getLogger(__name__)


class LedgerWriter:
    """Of one process."""

    def __init__(self, kube: Kube, me: str) -> None:
        self.error: str | None = None  # what the API server said to the last write, where it refused
        self._kube = kube.with_timeout(_CALL_S)
        self._identity = me
        self._queue: SimpleQueue[tuple[LedgerUpdate, ExtenderAck | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="registrar", daemon=True)
        self._thread.start()

    def write_ack(self, ledger: LedgerUpdate, vouching: ExtenderAck | None) -> None:
        """Have the ledger show that; None: nothing."""
        self._queue.put((ledger, vouching))

    def close(self) -> None:
        """Write what was said, but wait no longer for it than for one answer."""
        self._queue.put(None)
        self._thread.join(_CALL_S)

    def _run(self) -> None:
        ended = False
        while not ended:
            said = [self._queue.get()]
            while not self._queue.empty():
                said.append(self._queue.get())
            ended = None in said
            for ledger, vouching in {each[0].key: each for each in said if each is not None}.values():
                self._write(ledger, vouching)

    def _write(self, ledger: LedgerUpdate, vouching: ExtenderAck | None) -> None:
        try:
            self._kube.apply(
                LEDGER_STATUS, f"gputopo-extender-{self._identity}"[:128], apply_body(ledger, self._identity, vouching)
            )
            self.error = None
        except (NotFoundError, ConflictError) as error:  # it is another one by now, which the watch will show
            self._note(error, logging.INFO)
        except KubeError as error:
            self._note(error, logging.WARNING)

    def _note(self, error: KubeError, level: int) -> None:
        if str(error) != self.error:
            self.error = str(error)
            _log.log(level, "ledger", extra={"fields": {"ledger_trouble": self.error}})
