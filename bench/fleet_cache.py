"""The extender's cluster cache of a fleet (``bench/filter_fleet.py``) in this process, for other benchmarks.

Objects are decoded as the watches decode them. CPU times are those of the extender's thread, without the decoding.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
from filter_fleet import Fleet, name
from filter_reservations import Containers, pod_object

from gputopo.kube.projection import Projection
from gputopo.kube.watch_stream import WatchEvent, WatchEventType, parse_identity
from gputopo.recent_results import ResultExpiry
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, CacheChanges, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.watch import SOURCES
from scheduler_core.evaluation.prediction_check import check_predictions
from scheduler_core.policy.policy import Policy

POLICY = Policy()
_KEPT = ("_shape_of_same", "_shape_of_parts", "_shape_of_facts", "_interned", "_model")  # facts of nodes


class Event(NamedTuple):
    """An applied event."""

    cpu_s: float
    changes: CacheChanges
    node: str


class FleetCache:
    """The nodes of a fleet. Each event binds, reports or deletes a pod.

    A node never has more than ``most_open`` pods that were bound, and not reported, or deleted since its last report.
    """

    def __init__(self, fleet: Fleet, most_open: int = 3, seed: int = 0) -> None:
        """Deliver the lists, and compute the states of all nodes."""
        self.fleet, self.cache = fleet, ClusterCache(POLICY, report_bound_pods=False)
        self._most_open, self._deleted = most_open, [0] * fleet.count  # since the last report of a node
        self._random = Random(seed)
        self._serial = 0
        self._projections = {kind: Projection(source) for kind, source in SOURCES.items()}
        nodes = range(fleet.count)
        self._list(NodeUpdate, map(fleet.node, nodes))
        self._list(PodUpdate, (pod for at in nodes for pod in fleet.pods(at)))
        self._list(NodeGpusUpdate, map(fleet.report, nodes))
        _ = self.cache.snapshot

    def _list(self, kind: type[Any], objects: Iterable[bytes]) -> None:
        delta = self._projections[kind].apply_list(map(msgspec.Raw, objects))
        self.cache.apply_batch(Batch(kind, *delta), time.time())

    def change(self, sizes: Sequence[Containers]) -> Event:
        """Apply the next event of a random node. ``sizes``: of the pods, chosen at random."""
        at, fleet = self._random.randrange(self.fleet.count), self.fleet
        held, late = fleet.held[at], fleet.late[at]
        fitting = [each for each in sizes if sum(each) <= fleet.free(at)]
        may_open = len(late) + self._deleted[at] < self._most_open
        choices = ["bind"] * bool(may_open and fitting) + ["delete"] * bool(may_open and (held or late))
        match self._random.choice(choices + ["report"] * bool(late or self._deleted[at] or not choices)):
            case "bind":
                self._serial += 1
                pod = f"new-{self._serial}"
                late[pod] = self._random.choice(fitting)
                return self._apply(PodUpdate, WatchEventType.ADDED, pod_object(pod, name(at), *late[pod]), at)
            case "delete":
                pod = self._random.choice([*held, *late])
                _ = held.pop(pod, None), late.pop(pod, None)
                self._deleted[at] += 1
                return self._apply(PodUpdate, WatchEventType.DELETED, pod_object(pod, name(at), 1), at)
            case _:
                if late:  # else the deleted pods had not been reported
                    fleet.report_pod(at, self._random.choice(list(late)))
                self._deleted[at] = 0
                return self._apply(NodeGpusUpdate, WatchEventType.MODIFIED, fleet.report(at), at)

    def check_predictions(self, changes: CacheChanges) -> None:
        """Compare the kubelet's reports with their predictions, as the extender does some time after the event."""
        for report in changes.kubelet_reports:
            check_predictions(*report, self.cache.pods)

    def _apply(self, kind: type[Any], what: WatchEventType, text: bytes, at: int) -> Event:
        raw = msgspec.Raw(text)
        deltas = self._projections[kind].apply_events([WatchEvent(what, parse_identity(raw), raw)])
        began, now, changes = time.thread_time(), time.time(), CacheChanges()
        for delta in deltas:  # none for a report that is equal to the last one
            changes = self.cache.apply_batch(Batch(kind, *delta), now)
        _ = self.cache.snapshot
        return Event(time.thread_time() - began, changes, name(at))


class EmptyCaches:
    """Empties the caches of all functions, as after a start. Machines and settings of kubelets stay known."""

    def __init__(self) -> None:
        """Find the caches that exist now."""
        cached = type(member_places)
        found = [each for each in gc.get_objects() if isinstance(each, cached)]
        self._caches = [each for each in found if each.__name__ not in _KEPT]

    def __call__(self) -> None:
        """Empty the caches."""
        for each in self._caches:
            each.cache_clear()
        for _ in range(2):  # results of the last period are kept for another
            expiry = ResultExpiry()
            expiry.tick(0.0, lambda: ())
            while not expiry.is_idle:
                expiry.tick(0.0, lambda: ())
