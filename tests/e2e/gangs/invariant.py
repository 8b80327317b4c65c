"""What must hold at every instant: nowhere more GPUs bound and committed than there are, and no required island broken.

And at the end gangs are there whole or not at all. Judged from the objects alone, as anybody could read them, and from
the GPUs that kubelets gave: no code of the planner or the extender takes part, but for the hash that ties a ledger's
entry to its plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, ReservationSpec, Seat, spec_hash
from gputopo.model import NodeTopology
from tests.api_objects import GPU, Object
from tests.e2e.gangs.history import Event
from tests.e2e.gangs.members import gang_of, gated, node_of
from tests.e2e.scheduler import truth

PODS, RESERVATIONS, LEDGERS = "pods", "reservations", "ledgers"
FINISHED = frozenset({"Succeeded", "Failed"})


class Plan(NamedTuple):
    """A reservation, as the API server has it."""

    hash: str
    seats: tuple[Seat, ...]


class World:
    """What the objects say at one instant."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.gone: set[str] = set()  # uids of pods that were deleted: nothing binds them any more
        self.plans: dict[str, Plan] = {}
        self.entries: tuple[LedgerEntry, ...] = ()

    def see(self, event: Event) -> None:
        """One step on."""
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
        """GPUs by node, of pods that are bound and not over."""
        taken: Counter[str] = Counter()
        for each in self.pods.values():
            if (node := node_of(each)) is not None and each["status"].get("phase") not in FINISHED:
                taken[node] += size(each)
        return taken

    def committed(self) -> Counter[str]:
        """GPUs by node, of seats that count and whose pods are neither bound nor gone."""
        taken: Counter[str] = Counter()
        for seat in self.seats(EntryPhase.COMMITTED):
            found = self.pods.get(seat.uid)
            if seat.node is not None and seat.uid not in self.gone and (found is None or node_of(found) is None):
                taken[seat.node] += sum(count for name, count in seat.gpus if name == GPU)
        return taken

    def seats(self, *phases: EntryPhase) -> list[Seat]:
        """The seats of the entries that count."""
        return [
            seat
            for entry in self.entries
            if entry.phase in phases and (plan := self.plans.get(entry.uid)) is not None and plan.hash == entry.hash
            for seat in plan.seats
        ]


def size(found: Object) -> int:
    """How many GPUs a pod asks for."""
    limits = found["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get(GPU, 0))


def violations(events: Iterable[Event], capacity: Mapping[str, int]) -> list[str]:
    """Every instant at which a node was promised twice, and every pod that its node had to refuse."""
    world, found = World(), []
    for event in events:
        world.see(event)
        taken = world.bound() + world.committed()
        found += [
            f"version {event.version}, {event.kind} {event.object['metadata']['name']}: {node} has {capacity[node]}, "
            f"{world.bound()[node]} bound and {world.committed()[node]} committed"
            for node, count in taken.items()
            if count > capacity[node]
        ]
        if event.kind == PODS and event.object["status"].get("reason") == "UnexpectedAdmissionError":
            found.append(f"{event.object['metadata']['name']}: {event.object['status']['message']}")
    return found


def broken(
    events: Iterable[Event], machines: Mapping[str, NodeTopology], given: Mapping[str, Collection[int]]
) -> list[str]:
    """Every instant at which a pod that requires an island ran without; ``given``: by uid, what kubelets gave."""
    found = []
    for event in events:
        pod = event.object
        if event.kind != PODS or pod["status"].get("phase") != "Running" or not truth.needs_an_island(pod):
            continue
        gpus, node = frozenset(given[pod["metadata"]["uid"]]), pod["spec"]["nodeName"]
        if not truth.in_one_island(machines[node], gpus):
            found.append(f"version {event.version}, {pod['metadata']['name']}: {sorted(gpus)} of {node} are no island")
    return found


def halves(pods: Iterable[Object], sizes: Mapping[str, int]) -> dict[str, int]:
    """Gangs of which some are let go or bound, and not all: how many."""
    let_go = Counter(
        gang for each in pods if (gang := gang_of(each)) is not None and (node_of(each) is not None or not gated(each))
    )
    return {name: count for name, count in let_go.items() if count != sizes[name]}
