"""The smallest number of pods whose end would make another pod fit. Pure.

One pod first, then two on a node, then all on a node; of as many pods those that hold fewest devices. A trial makes a
node's state without the pods and judges it, as Filter would. What is tried is bounded: of each kind the cheapest
``MOST_TRIALS``, pairs only on the ``MOST_PAIRED`` nodes that lack fewest devices, and a tenth of that on nodes that
would not suit even if they were empty (the device plugin may choose better among fewer, so some of them might).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import combinations
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

MAX_TRIALS = 1_000
MAX_PAIRED = 500
# The other reasons stay, whoever ends: an unknown node, a malformed request.
_LIFTED = frozenset(Reason) - {Reason.UNKNOWN_NODE, Reason.MALFORMED}


class Eviction(NamedTuple):
    """Pods that would have to end."""

    devices: int  # that they hold
    node: str
    pods: tuple[Occupant, ...]


class _EvictableNode(NamedTuple):
    """A node on which pods could end."""

    missing: int  # devices, beyond those that are free
    record: NodeRecord
    pods: tuple[tuple[int, Occupant], ...]  # devices that each holds of those asked for


def smallest_eviction(
    profile: PodProfile,
    refused: Mapping[str, Reason],
    table: Snapshot,
    now: float,
    policy: Policy,
    judged: Callable[[NodeState], bool],
) -> Eviction | None:
    """The first that is found to be enough; None where none of those tried is. ``judged``: whether a state suits."""
    places = _places(profile, refused, table)
    suits_empty = _suits_empty(table, now, policy, judged)
    hopeful = [place for place in places if suits_empty(place.record)]
    others = [place for place in places if not suits_empty(place.record)]
    rounds = (
        (_of(hopeful, 1), MAX_TRIALS),
        (_of(others, 1), MAX_TRIALS // 10),
        (_of(_closest(hopeful, MAX_PAIRED), 2), MAX_TRIALS),
        (_of(_closest(others, MAX_PAIRED // 10), 2), MAX_TRIALS // 10),
        (map(_all, hopeful), MAX_TRIALS),
    )
    for endings, most in rounds:
        for ending in nsmallest(most, endings, key=_cost):
            if judged(state_of(after_evictions(table.records[ending.node], ending.pods), now, policy)):
                return ending
    return None


def _suits_empty(
    table: Snapshot, now: float, policy: Policy, judged: Callable[[NodeState], bool]
) -> Callable[[NodeRecord], bool]:
    """Whether a node would suit without any pod, worked out once for all machines that are alike."""
    known: dict[tuple[object, ...], bool] = {}

    def suits(record: NodeRecord) -> bool:
        state, machine = table.states[record.name], record.machine
        alike = (state.shape, machine.allocatable, state.described, state.stale, state.degraded, state.single_numa)
        if alike not in known:
            known[alike] = judged(state_of(after_evictions(record, record.pods), now, policy))
        return known[alike]

    return suits


def _closest(places: Iterable[_EvictableNode], most: int) -> list[_EvictableNode]:
    return nsmallest(most, places, key=lambda place: (place.missing, place.record.name))


def _places(profile: PodProfile, refused: Mapping[str, Reason], table: Snapshot) -> list[_EvictableNode]:
    wanted = dict(profile.device_request.totals)
    held: dict[int, int] = {}  # by identity of a profile: many pods share one

    def holds(pod: Occupant) -> int:
        found = held.get(id(pod.profile))
        if found is None:
            found = sum(count for resource, count in pod.profile.device_request.totals if resource in wanted)
            held[id(pod.profile)] = found
        return found

    places = []
    for name, reason in refused.items():
        record = table.records.get(name)
        if record is None or not record.pods or reason not in _LIFTED:
            continue
        offered = dict(record.machine.allocatable)
        if any(offered.get(resource, 0) < count for resource, count in wanted.items()):
            continue
        state = table.states[name]
        missing = sum(max(0, count - state.free_devices(resource)) for resource, count in wanted.items())
        running = (pod for pod in record.pods if pod.uid not in record.reserved)  # a place that is kept cannot end
        pods = tuple((count, pod) for pod in running if (count := holds(pod)))
        places.append(_EvictableNode(missing, record, pods))
    return places


def _of(places: Iterable[_EvictableNode], number: int) -> Iterator[Eviction]:
    """That many pods of a node, where they hold what is missing."""
    for place in places:
        for chosen in combinations(place.pods, number):
            devices = sum(count for count, _ in chosen)
            if devices >= place.missing:
                yield Eviction(devices, place.record.name, tuple(pod for _, pod in chosen))


def _all(place: _EvictableNode) -> Eviction:
    return Eviction(sum(count for count, _ in place.pods), place.record.name, tuple(pod for _, pod in place.pods))


def _cost(ending: Eviction) -> tuple[int, int, str, Sequence[str]]:
    return len(ending.pods), ending.devices, ending.node, [pod.uid for pod in ending.pods]
