"""Runs one call beside its caller, on a thread that ends with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_ahead(call: Callable[[], T]) -> Callable[[], T]:
    """Start a call. Return a function that waits for its result, or raises its error.

    The result may be left unused: nothing waits for the thread then, not even the end of the process.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised where the result is expected
            future.set_exception(error)

    threading.Thread(target=run, name="run-ahead", daemon=True).start()
    return future.result
