"""Work that goes on beside a test."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

from tests.e2e.cluster import Cluster


class BackgroundWork(ABC):
    """Calls ``_turn`` on a thread of its own, again and again, within the ``with`` block."""

    def __init__(self, name: str, pause_s: float) -> None:
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._pause_s):
                self._turn()
        except Exception as failed:  # noqa: BLE001 - a thread's failure must reach the test
            self._failure = failed

    @abstractmethod
    def _turn(self) -> None:
        """Do the next piece of work."""


class ClusterWork(BackgroundWork):
    """Work by an API client of its own, ``_api``."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name, pause_s=0.2)
        self._api = cluster.plane.client()

    def __exit__(self, *ended: object) -> None:
        try:
            super().__exit__(*ended)
        finally:
            self._api.close()
