"""The writes of the kubelets of simulated nodes: in the background, in order, each as its own node."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import urllib3

from tests.api_client import ApiError, Client
from tests.api_objects import Object

T = TypeVar("T")
WRITERS = 8
AWAY_S = 60.0  # how long the API server may be away


def outlasting_restarts(call: Callable[[], T]) -> T:
    """Return what ``call`` returns; repeat it while the API server is away or overloaded, as kubelets do."""
    deadline = time.monotonic() + AWAY_S
    away = False
    while True:
        try:
            return call()
        except urllib3.exceptions.HTTPError:
            away = True
            if time.monotonic() > deadline:
                raise
        except ApiError as refused:
            # Overloaded, it answers 429 and 5xx; just back, it does not know yet which pods are a node's (403).
            again = refused.status in {429, 500, 503, 504} or (away and refused.status == 403)
            if not again or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class Kubelets:
    """Writers for any number of nodes. Impersonates: the API server authorizes and logs each as its node."""

    def __init__(self, api: Client) -> None:
        self._api = api
        # A node's writes keep their order: one thread each, for many nodes.
        self._writers = [ThreadPoolExecutor(1, thread_name_prefix="kubelets") for _ in range(WRITERS)]
        self.failures: list[Exception] = []

    def write(self, node: str, method: str, path: str, body: Object) -> Future[None]:
        """Call the API server as the kubelet of that node; "PATCH" is strategic, "APPLY" server-side apply."""
        writer = self._writers[zlib.crc32(node.encode()) % WRITERS]
        return writer.submit(self._call, node, method, path, body)

    def check(self) -> None:
        """Raise the first thing that went wrong, if anything did."""
        if self.failures:
            raise self.failures[0]

    def close(self) -> None:
        """Finish what is under way."""
        for writer in self._writers:
            writer.shutdown()

    def _call(self, node: str, method: str, path: str, body: Object) -> None:
        kubelet = self._api.impersonating(f"system:node:{node}", "system:nodes", agent="kubelet/simulated")

        def call() -> None:
            if method == "PATCH":
                kubelet.patch(path, body, "strategic")
            elif method == "APPLY":
                kubelet.patch(path, body, "apply", fieldManager="kubelet", force="true")
            else:
                kubelet.request(method, path, body)

        try:
            outlasting_restarts(call)
        except ApiError as refused:
            # The pod was deleted meanwhile (another of that name: the uid in the body conflicts), as kubelets know it.
            if refused.status not in {404, 409} or method == "POST":
                self.failures.append(refused)
        except Exception as failed:  # noqa: BLE001 - a thread's failure must reach the test
            self.failures.append(failed)
