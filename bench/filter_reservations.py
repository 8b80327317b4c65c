"""The planner of the fleet of ``bench/filter_fleet.py``: capacity holds, and a gang that is placed each second.

Each second a gang of four members is proposed on nodes with free GPUs. Once the extender has acknowledged it, it is
committed and its pods are bound. A second later the kubelets have reported them, and the reservation is deleted. Its
pods end after 20 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from queue import SimpleQueue
from random import Random
from typing import Any, Protocol

import msgspec

from gputopo.crd.reservations import (
    LEDGERS,
    RESERVATIONS,
    EntryPhase,
    HeldCapacity,
    LedgerEntry,
    PlannedMember,
    ReservationSpec,
    spec_hash,
)
from gputopo.labels.keys import GPU_RESOURCES

HOLDS, MEMBERS = 50, 4
_TURN_S, _LIFE_S = 1.0, 20.0
_WRITE_S = 0.05  # between the writes of a reservation and of the ledger
Event = tuple[str, str, bytes]  # kind, type and object
Containers = tuple[int, ...]  # GPUs of each container of a pod


class Nodes(Protocol):
    """The nodes, as far as the planner reads and changes them."""

    count: int
    late: list[dict[str, Containers]]
    held: list[dict[str, tuple[Containers, list[int]]]]
    reserved: list[int]

    def free(self, at: int) -> int: ...
    def report_pod(self, at: int, pod: str) -> None: ...
    def changed_report(self, at: int) -> Event: ...


@dataclass
class Reservation:
    """A reservation that is in effect."""

    name: str
    spec: ReservationSpec
    phase: EntryPhase
    gpus: int = 0  # of each member
    places: list[int] = field(default_factory=list)  # nodes of the members
    generation: int = 0  # of the ledger that proposed it
    ends: float = 0.0

    @property
    def entry(self) -> LedgerEntry:
        """Return the entry of the ledger."""
        return LedgerEntry(f"uid-{self.name}", "team", self.name, spec_hash(self.spec), self.phase)

    @property
    def object(self) -> bytes:
        """Return the object."""
        metadata = {"name": self.name, "namespace": "team", "uid": f"uid-{self.name}", "resourceVersion": "5"}
        return msgspec.json.encode({"metadata": metadata, "spec": self.spec})


class Reservations:
    """The reservations and their ledger. ``applied``: statuses that extenders have applied."""

    def __init__(self, nodes: Nodes, name_of: Callable[[int], str]) -> None:
        self._nodes, self._name_of, self._random = nodes, name_of, Random(7)
        self.applied: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._extenders: dict[str, Any] = {}
        self._generation, self._version = 1, 10
        self._next, self._write_at = 0.0, inf  # the next turn; when the ledger is written
        self._there: list[Reservation] = []
        self._ending: list[Reservation] = []  # their pods run
        self._to_delete: list[Reservation] = []  # once the ledger no longer lists them
        for number in range(HOLDS):
            at = self._random.randrange(nodes.count)
            spec = ReservationSpec(f"held-{number}", held=(HeldCapacity(name_of(at), 4),), priority=10)
            self._there.append(Reservation(f"held-{number}", spec, EntryPhase.HELD))
        self._number = 0

    def list_objects(self, kind: str) -> list[bytes]:
        """Return all objects of a kind."""
        return [self._ledger] if kind == LEDGERS else [each.object for each in self._there]

    @property
    def _ledger(self) -> bytes:
        self._version += 1
        metadata = {"name": "gpus", "uid": "uid-ledger", "resourceVersion": str(self._version)}
        spec = {"planner": "p", "epoch": 1, "entries": [each.entry for each in self._there]}
        status = {"extenders": self._extenders}
        return msgspec.json.encode(
            {"metadata": {**metadata, "generation": self._generation}, "spec": spec, "status": status}
        )

    def events(self, now: float) -> Iterator[Event]:
        """Yield the events that are due. ``now``: monotonic seconds."""
        while not self.applied.empty():
            self._extenders |= self.applied.get().get("status", {}).get("extenders", {})
            yield LEDGERS, "MODIFIED", self._ledger
        if now >= self._write_at:
            self._write_at, self._generation = inf, self._generation + 1
            yield LEDGERS, "MODIFIED", self._ledger
            while self._to_delete:
                yield RESERVATIONS, "DELETED", self._to_delete.pop().object
        if now < self._next:
            return
        self._next, self._write_at = now + _TURN_S, now + _WRITE_S
        for each in [each for each in self._there if each.phase is EntryPhase.COMMITTED]:
            yield from self._report(each, now)
        acknowledged = max((each["generation"] for each in self._extenders.values()), default=0)
        for each in self._there:
            if each.phase is EntryPhase.PROPOSED and each.generation <= acknowledged:
                yield from self._bind(each)
        yield from self._propose()
        for each in [each for each in self._ending if each.ends <= now]:
            yield from self._end(each)

    def _propose(self) -> Iterator[Event]:
        gpus = self._random.choice((1, 2, 4))
        name, seats, places = f"gang-{self._number}", list[PlannedMember](), list[int]()
        self._number += 1
        for rank in range(MEMBERS):
            at = self._random.randrange(self._nodes.count)
            while self._nodes.free(at) < gpus:
                at = self._random.randrange(self._nodes.count)
            self._nodes.reserved[at] += gpus
            places.append(at)
            pod = f"{name}-{rank}"
            seats.append(PlannedMember(f"uid-{pod}", pod, self._name_of(at), ((GPU_RESOURCES[0], gpus),), rank=rank))
            yield "pods", "ADDED", pod_object(pod, None, gpus)
        spec = ReservationSpec(name, tuple(seats))
        new = Reservation(name, spec, EntryPhase.PROPOSED, gpus, places, self._generation + 1)
        self._there.append(new)
        yield RESERVATIONS, "ADDED", new.object

    def _bind(self, each: Reservation) -> Iterator[Event]:
        each.phase = EntryPhase.COMMITTED
        for rank, at in enumerate(each.places):
            self._nodes.reserved[at] -= each.gpus
            self._nodes.late[at][f"{each.name}-{rank}"] = (each.gpus,)
            yield "pods", "MODIFIED", pod_object(f"{each.name}-{rank}", self._name_of(at), each.gpus)

    def _report(self, each: Reservation, now: float) -> Iterator[Event]:
        for rank, at in enumerate(each.places):
            self._nodes.report_pod(at, f"{each.name}-{rank}")
            yield self._nodes.changed_report(at)
        self._there.remove(each)
        each.ends = now + _LIFE_S
        self._ending.append(each)
        self._to_delete.append(each)

    def _end(self, each: Reservation) -> Iterator[Event]:
        self._ending.remove(each)
        for rank, at in enumerate(each.places):
            del self._nodes.held[at][f"{each.name}-{rank}"]
            yield "pods", "DELETED", pod_object(f"{each.name}-{rank}", self._name_of(at), each.gpus)
            yield self._nodes.changed_report(at)


def pod_object(pod: str, node: str | None, *gpus: int) -> bytes:
    """Return a Pod. ``node``: None if it is not bound; ``gpus``: of each container."""
    metadata = {"name": pod, "namespace": "team", "uid": f"uid-{pod}", "resourceVersion": "5"}
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": f"c{number}",
                "resources": {"limits": {"cpu": "8"} | ({GPU_RESOURCES[0]: str(each)} if each else {})},
            }
            for number, each in enumerate(gpus)
        ]
    }
    status = {"phase": "Pending"} if node is None else {"phase": "Running"}
    return msgspec.json.encode(
        {"metadata": metadata, "spec": spec if node is None else {**spec, "nodeName": node}, "status": status}
    )
