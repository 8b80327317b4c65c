"""The fewest pods that would have to end for another pod to fit. Pure.

One pod first, then two of a node, then all of a node; among equal numbers the pods with the fewest devices. A trial
evaluates a node's state without the pods, as Filter would. Trials are bounded: of each kind the cheapest
``MAX_TRIALS``, pairs only on the ``MAX_PAIRED`` nodes that lack the fewest devices, and a tenth of that on nodes that
do not fit even when empty (the device plugin may choose better among fewer GPUs, so some of them may fit).
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
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

MAX_TRIALS = 1_000
MAX_PAIRED = 500
# The end of pods changes neither an unknown node nor a malformed request.
_LIFTED = frozenset(Reason) - {Reason.UNKNOWN_NODE, Reason.MALFORMED}


class Eviction(NamedTuple):
    """Pods of a node that would have to end."""

    devices: int  # of these pods
    node: str
    pods: tuple[Occupant, ...]


class _EvictableNode(NamedTuple):
    """A node whose pods could end."""

    missing: int  # devices, beyond the free ones
    record: NodeRecord
    pods: tuple[tuple[int, Occupant], ...]  # with the number of their devices that the other pod requests


def smallest_eviction(
    profile: PodProfile,
    refused: Mapping[str, Reason],
    table: ClusterSnapshot,
    now: float,
    policy: Policy,
    fits: Callable[[NodeState], bool],
) -> Eviction | None:
    """Return the first eviction that is enough; None where no trial is. ``fits``: whether the pod fits a state."""
    places = _places(profile, refused, table)
    fits_empty = _fits_empty(table, now, policy, fits)
    likely = [place for place in places if fits_empty(place.record)]
    others = [place for place in places if not fits_empty(place.record)]
    rounds = (
        (_of_size(likely, 1), MAX_TRIALS),
        (_of_size(others, 1), MAX_TRIALS // 10),
        (_of_size(_closest(likely, MAX_PAIRED), 2), MAX_TRIALS),
        (_of_size(_closest(others, MAX_PAIRED // 10), 2), MAX_TRIALS // 10),
        (map(_all_pods, likely), MAX_TRIALS),
    )
    for evictions, most in rounds:
        for eviction in nsmallest(most, evictions, key=_cost):
            record = after_evictions(table.records[eviction.node], eviction.pods)
            if fits(state_of(record, now, policy)):
                return eviction
    return None


def _fits_empty(
    table: ClusterSnapshot, now: float, policy: Policy, fits: Callable[[NodeState], bool]
) -> Callable[[NodeRecord], bool]:
    """Return a function: True if the pod fits a node without its pods. Equal nodes are evaluated once."""
    known: dict[tuple[object, ...], bool] = {}

    def fits_without_pods(record: NodeRecord) -> bool:
        state, machine = table.states[record.name], record.machine
        equivalent = (state.shape, machine.allocatable, state.described, state.stale, state.degraded, state.kubelet)
        if equivalent not in known:
            known[equivalent] = fits(state_of(after_evictions(record, record.pods), now, policy))
        return known[equivalent]

    return fits_without_pods


def _closest(places: Iterable[_EvictableNode], most: int) -> list[_EvictableNode]:
    return nsmallest(most, places, key=lambda place: (place.missing, place.record.name))


def _places(profile: PodProfile, refused: Mapping[str, Reason], table: ClusterSnapshot) -> list[_EvictableNode]:
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
        running = (pod for pod in record.pods if pod.uid not in record.reserved)  # a reserved place cannot end
        pods = tuple((count, pod) for pod in running if (count := holds(pod)))
        places.append(_EvictableNode(missing, record, pods))
    return places


def _of_size(places: Iterable[_EvictableNode], number: int) -> Iterator[Eviction]:
    """Yield that many pods of a node, where they hold the missing devices."""
    for place in places:
        for chosen in combinations(place.pods, number):
            devices = sum(count for count, _ in chosen)
            if devices >= place.missing:
                yield Eviction(devices, place.record.name, tuple(pod for _, pod in chosen))


def _all_pods(place: _EvictableNode) -> Eviction:
    return Eviction(sum(count for count, _ in place.pods), place.record.name, tuple(pod for _, pod in place.pods))


def _cost(eviction: Eviction) -> tuple[int, int, str, Sequence[str]]:
    return len(eviction.pods), eviction.devices, eviction.node, [pod.uid for pod in eviction.pods]
