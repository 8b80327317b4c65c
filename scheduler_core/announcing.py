"""An Event on a pod whose required shape the GPUs it got do not have. The pod is left alone: to end it is its owner's.

On a thread of its own: nobody waits for it, and where the API server is slow or many pods come at once some go untold
(the metrics count them). Each pod is told of once.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

from gputopo.kube import events
from gputopo.kube.access import EVENTS, PODS
from gputopo.kube.client import Kube
from gputopo.kube.errors import KubeError
from gputopo.kube.events import Reporter, Subject
from gputopo.labels.reasons import Reason
from scheduler_core.settling import Settled

COMPONENT = "gputopo-extender"
REASON = "GpuShapeBroken"
_WAITING = 64  # Events that wait to be written
_REMEMBERED = 4096  # pods that were told of
_PAUSE_S = 0.2  # between Events: a broken node plugin must not flood the API server
_BROKEN = {  # by the reasons in ``required.SHAPE``
    Reason.ISLAND: "are not in one NVLink island",
    Reason.INTERCONNECT: "are not joined by the interconnect that it requires",
    Reason.BANDWIDTH: "have less NVLink bandwidth than it requires",
    Reason.NUMA: "are not on one NUMA node",
}
_log = logging.getLogger(__name__)


class Announcer:
    """Writes Events."""

    def __init__(self, kube: Kube, note: Callable[[str], None], pause_s: float = _PAUSE_S) -> None:
        """``note`` hears of each Event on any thread: written, failed, dropped."""
        self._kube = kube
        self._note = note
        self._pause_s = pause_s
        self._told: OrderedDict[str, None] = OrderedDict()
        self._queue: SimpleQueue[Settled] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def announce(self, found: Settled) -> None:
        """Tell of a pod whose required shape is broken."""
        uid = found.pod.uid
        if uid in self._told:
            return
        self._told[uid] = None
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        if self._queue.qsize() < _WAITING:
            self._queue.put(found)
        else:
            self._note("dropped")

    def close(self) -> None:
        """Write no more. An Event that is being written is not waited for."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            found = self._queue.get()
            try:
                self._kube.create(EVENTS, event(found, datetime.now(UTC)))
            except KubeError as error:
                fields = {"pod": f"{found.pod.namespace}/{found.pod.name}", "error": str(error)}
                _log.warning("event", extra={"fields": fields})
                self._note("failed")
            else:
                self._note("written")
            self._ended.wait(self._pause_s)


def event(found: Settled, now: datetime) -> dict[str, Any]:
    """The Event. Pure."""
    assert found.broken is not None  # else nobody is told
    pod = found.pod
    message = (
        f"the GPUs that the kubelet of {found.node} gave this pod {_BROKEN[found.broken]}. It keeps running; to have "
        "it placed anew, delete it. Why this may happen: docs/troubleshooting.md"
    )
    subject = Subject(PODS, "Pod", pod.name, pod.uid, pod.namespace)
    return events.event(subject, Reporter(COMPONENT), REASON, message, now, warning=True)
