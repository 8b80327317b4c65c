"""Invariants at every instant: no node with more GPUs bound and committed than it has, and no broken required island.

At the end, gangs are complete or absent. The checks use only API objects and the GPUs that kubelets allocated: no code
of the planner or the extender, except the hash that ties an entry of the ledger to its plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, PlannedMember, ReservationSpec, spec_hash
from gputopo.kube.rbac import LEDGERS as LEDGER_KIND
from gputopo.kube.rbac import RESERVATIONS as RESERVATION_KIND
from gputopo.model import NodeTopology
from tests.api_objects import GPU, Object
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.history import Event, History, history
from tests.e2e.gangs.members import gang_of, gated, node_of
from tests.e2e.scheduler import real_state

PODS, RESERVATIONS, LEDGERS = "pods", "reservations", "ledgers"
FINISHED = frozenset({"Succeeded", "Failed"})


@contextmanager
def watched(cluster: Cluster) -> Iterator[History]:
    """Record the objects that the invariants need."""
    collections = {PODS: cluster.pods(), RESERVATIONS: RESERVATION_KIND.path(), LEDGERS: LEDGER_KIND.path()}
    with history(cluster.api, collections) as past:
        yield past


class Plan(NamedTuple):
    """A reservation as stored."""

    hash: str
    seats: tuple[PlannedMember, ...]


class ClusterState:
    """The objects at one instant."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.gone: set[str] = set()  # uids of pods that were deleted: nothing binds them any more
        self.plans: dict[str, Plan] = {}
        self.entries: tuple[LedgerEntry, ...] = ()

    def apply_event(self, event: Event) -> None:
        """Apply one event."""
        uid, deleted = event.object["metadata"]["uid"], event.type == "DELETED"
        if event.kind == PODS:
            self.pods.pop(uid, None)
            if deleted:
                self.gone.add(uid)
            else:
                self.pods[uid] = event.object
        elif event.kind == RESERVATIONS:
            self.plans.pop(uid, None)
            if not deleted:
                spec = msgspec.convert(event.object["spec"], ReservationSpec)
                self.plans[uid] = Plan(spec_hash(spec), spec.seats)
        else:
            self.entries = () if deleted else msgspec.convert(event.object["spec"], LedgerSpec).entries

    def bound(self) -> Counter[str]:
        """Return the GPUs of bound, unfinished pods, by node."""
        taken: Counter[str] = Counter()
        for each in self.pods.values():
            if (node := node_of(each)) is not None and each["status"].get("phase") not in FINISHED:
                taken[node] += size(each)
        return taken

    def committed(self) -> Counter[str]:
        """Return the GPUs of active seats whose pods are neither bound nor deleted, by node."""
        taken: Counter[str] = Counter()
        for seat in self.seats(EntryPhase.COMMITTED):
            found = self.pods.get(seat.uid)
            if seat.node is not None and seat.uid not in self.gone and (found is None or node_of(found) is None):
                taken[seat.node] += sum(count for name, count in seat.gpus if name == GPU)
        return taken

    def seats(self, *phases: EntryPhase) -> list[PlannedMember]:
        """Return the seats of active entries."""
        return [
            seat
            for entry in self.entries
            if entry.phase in phases and (plan := self.plans.get(entry.uid)) is not None and plan.hash == entry.hash
            for seat in plan.seats
        ]


def size(found: Object) -> int:
    """Return the number of GPUs that a pod requests."""
    limits = found["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get(GPU, 0))


def violations(events: Iterable[Event], capacity: Mapping[str, int]) -> list[str]:
    """Return every instant at which a node was overcommitted, and every pod that its node rejected."""
    state, found = ClusterState(), []
    for event in events:
        state.apply_event(event)
        taken = state.bound() + state.committed()
        found += [
            f"version {event.version}, {event.kind} {event.object['metadata']['name']}: {node} has {capacity[node]}, "
            f"{state.bound()[node]} bound and {state.committed()[node]} committed"
            for node, count in taken.items()
            if count > capacity[node]
        ]
        if event.kind == PODS and event.object["status"].get("reason") == "UnexpectedAdmissionError":
            found.append(f"{event.object['metadata']['name']}: {event.object['status']['message']}")
    return found


def broken(
    events: Iterable[Event], machines: Mapping[str, NodeTopology], given: Mapping[str, Collection[int]]
) -> list[str]:
    """Return every pod that requires an island and ran without one. ``given``: allocated GPUs by pod UID."""
    found = []
    for event in events:
        pod = event.object
        if event.kind != PODS or pod["status"].get("phase") != "Running" or not real_state.needs_an_island(pod):
            continue
        gpus, node = frozenset(given[pod["metadata"]["uid"]]), pod["spec"]["nodeName"]
        if not real_state.in_one_island(machines[node], gpus):
            found.append(f"version {event.version}, {pod['metadata']['name']}: {sorted(gpus)} of {node} are no island")
    return found


def halves(pods: Iterable[Object], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the gangs with some, but not all, members ungated or bound, and their number."""
    ungated = Counter(
        gang for each in pods if (gang := gang_of(each)) is not None and (node_of(each) is not None or not gated(each))
    )
    return {name: count for name, count in ungated.items() if count != sizes[name]}
