"""Lists and watches as a test says, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.api_server import Answer, Asked, Stream


class Script:
    """Answers lists with ``lists`` and watches with ``watches`` in turn; the last list again and again.

    A watch beyond those of the script is open and silent. A list may be a function of what was asked.
    """

    def __init__(self, lists: list[Answer], watches: list[Answer | Stream] | None = None) -> None:
        self._lists = list(lists)
        self._watches = list(watches or ())
        self.asked: list[Asked] = []
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        """The answer to one request."""
        with self._lock:
            self.asked.append(asked)
            if "watch" not in asked.query:
                return self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]
            made = self._watches.pop(0) if self._watches else Stream()
        return made if isinstance(made, Answer) else Answer(made)

    @property
    def watched_from(self) -> list[str]:
        """The versions that watches were asked from."""
        return [each.query["resourceVersion"] for each in self.asked if "watch" in each.query]

    @property
    def listed(self) -> int:
        """Pages that were asked for."""
        return sum("watch" not in each.query for each in self.asked)


def page(version: int, *items: dict[str, Any], following: str = "") -> Answer:
    """A page of a list."""
    return Answer({"metadata": {"resourceVersion": str(version), "continue": following}, "items": list(items)})


def thing(name: str, version: int, **more: Any) -> dict[str, Any]:
    """An object."""
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, **more}


def event(happening: str, name: str, version: int, **more: Any) -> dict[str, Any]:
    """A line of a watch."""
    return {"type": happening, "object": thing(name, version, **more)}


def bookmark(version: int) -> dict[str, Any]:
    """A bookmark as kube-apiserver writes it."""
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"type": "BOOKMARK", "object": {"kind": "Node", "apiVersion": "v1", "metadata": metadata}}


GONE = {"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "message": "too old: 1 (2)", "code": 410}}


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Wait until a condition holds. Raises ``TimeoutError``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.005)
