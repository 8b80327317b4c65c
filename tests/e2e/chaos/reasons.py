"""The reasons of waiting pods and gangs, compared with the objects of the API server and the GPUs of the kubelets.

No code of the planner or the extender decides what is true here: free GPUs are those that no kubelet allocated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gputopo.crd.reservations import ReservationSpec
from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from gputopo.model import NodeTopology
from scheduler_core.evaluation.transient import RESERVED_MESSAGE
from tests.api_objects import GPU, Object
from tests.e2e.gangs.invariant import FINISHED, size
from tests.e2e.gangs.members import gang_of, gated, node_of
from tests.e2e.scheduler import real_state
from tests.e2e.scheduler.running import condition

_INSUFFICIENT = f"Insufficient {GPU}"
_COUNTED = re.compile(r"(\d+) (.+)")
_PRESENT = re.compile(r"(\d+) of (?:at least )?(\d+) members? (?:is|are) there")
_BY_STATE = {
    "Held": "held",
    "Proposed": "proposed",
    "Committed": "committed",
    "RollingBack": "rolling back",
    "Failed": "failed",
}


class NodeTruth(NamedTuple):
    """A node as it is."""

    topology: NodeTopology
    free: frozenset[int]  # GPUs that no kubelet allocated, and that no bound pod will get
    reserved: Mapping[str, int]  # GPUs that the ledger reserves, by gang; "": single pods

    def fits(self, gpus: int, *, island: bool, gang: str = "") -> bool:
        """Return whether a pod surely fits, without GPUs that are reserved for others."""
        reserved = sum(number for name, number in self.reserved.items() if name != gang)
        if len(self.free) - reserved < gpus:
            return False
        return not island or (not reserved and real_state.surely_in_one_island(self.topology, self.free, gpus))

    def reasons(self, gpus: int, *, island: bool) -> set[str]:
        """Return the texts that say truly why such a pod does not fit; empty: it fits."""
        if len(self.free) < gpus:
            return {_INSUFFICIENT, Reason.TOO_FEW_GPUS.value}
        found = {Reason.RESERVED.value} if self.reserved else set()
        if island and (self.reserved or not real_state.surely_in_one_island(self.topology, self.free, gpus)):
            found.add(Reason.ISLAND.value)
        return found


class Objects(NamedTuple):
    """The objects of one moment."""

    pods: Sequence[Object]
    reservations: Sequence[Object]
    entries: Sequence[Object]  # of the ledger


def nodes_of(
    found: Objects, machines: Mapping[str, NodeTopology], given: Mapping[str, Sequence[int]]
) -> dict[str, NodeTruth] | None:
    """Return the nodes; None while a kubelet has not admitted a bound pod. ``given``: allocated GPUs by pod UID."""
    taken: dict[str, set[int]] = {name: set() for name in machines}
    unbound = set()
    for pod in found.pods:
        uid, node = pod["metadata"]["uid"], node_of(pod)
        if node is None:
            unbound.add(uid)
        elif pod["status"].get("phase") not in FINISHED and size(pod):
            if uid not in given:
                return None
            taken[node].update(given[uid])
    listed = {each["uid"] for each in found.entries}
    reserved: dict[str, Counter[str]] = {name: Counter() for name in machines}
    for each in found.reservations:
        if each["metadata"]["uid"] in listed:
            spec = msgspec.convert(each["spec"], ReservationSpec)
            for seat in spec.seats:
                if seat.node is not None and seat.uid in unbound:
                    reserved[seat.node][spec.gang] += sum(count for _, count in seat.gpus)
            for held in spec.held:
                reserved[held.node][spec.gang] += held.gpus
    return {
        name: NodeTruth(topology, frozenset(each.index for each in topology.usable) - taken[name], reserved[name])
        for name, topology in machines.items()
    }


def untrue_pods(pods: Iterable[Object], nodes: Mapping[str, NodeTruth]) -> list[str]:
    """Return the ungated pods that wait for another reason than kube-scheduler's message states."""
    waiting = [each for each in pods if node_of(each) is None and not each["spec"].get("schedulingGates")]
    return [
        f"pod {each['metadata']['name']}: {fault}: {condition(each).get('message')!r}"
        for each in waiting
        if (fault := _fault_of_pod(each, nodes)) is not None
    ]


def _fault_of_pod(pod: Object, nodes: Mapping[str, NodeTruth]) -> str | None:
    message, gpus, island = condition(pod).get("message") or "", size(pod), real_state.needs_an_island(pod)
    if Reason.MALFORMED.value in message:
        values = pod["metadata"].get("annotations", {}).values()
        return None if any(repr(value) in message for value in values) else "quotes no value of the pod"
    counts = Counter[str]()
    for part in message.partition(" preemption:")[0].partition(": ")[2].removesuffix(".").split(", "):
        if (found := _COUNTED.fullmatch(part)) is not None:
            counts[found[2]] += int(found[1])
    possible = {name: each.reasons(gpus, island=island) for name, each in nodes.items()}
    if fitting := [name for name, texts in possible.items() if not texts]:
        return f"it fits on {', '.join(fitting)}"
    if message == RESERVED_MESSAGE:
        return None if any(Reason.RESERVED.value in texts for texts in possible.values()) else "nothing is reserved"
    if sum(counts.values()) != len(nodes):
        return f"{counts} are not {len(nodes)} nodes"
    for text, number in counts.items():
        if number > sum(text in texts for texts in possible.values()):
            return f"{text!r} is not true of {number} nodes"
    return None


def untrue_gangs(page: Object, found: Objects, nodes: Mapping[str, NodeTruth]) -> list[str]:
    """Return the gangs with gated pods that wait for another reason than the planner's page states."""
    listed = {each["name"]: each for each in page["gangs"]}
    states = {(each["spec"]["gang"], each.get("status", {}).get("state")) for each in found.reservations}
    members: dict[str, list[Object]] = {}
    for each in found.pods:
        if (name := gang_of(each)) is not None and "deletionTimestamp" not in each["metadata"]:
            members.setdefault(name, []).append(each)
    untrue = []
    for name, own in members.items():
        if any(gated(each) for each in own):
            fault = "it is not listed" if name not in listed else _fault_of_gang(listed[name], own, nodes, states)
            if fault is not None:
                untrue.append(f"gang {name}: {fault}: {listed.get(name)}")
    return untrue


def _fault_of_gang(
    shown: Object, members: Sequence[Object], nodes: Mapping[str, NodeTruth], states: set[tuple[str, str]]
) -> str | None:
    phase, reason, name = shown["phase"], shown["reason"], shown["name"]
    sizes = {each["metadata"]["annotations"][keys.POD_GANG_SIZE.key] for each in members}
    if not reason:
        return "no reason"
    if phase == "waiting for members":
        counts = _PRESENT.search(reason)
        there = counts is not None and (int(counts[1]), counts[2]) == (len(members), min(sizes))
        return None if there and len(members) < int(min(sizes)) else f"{len(members)} of {sizes} are there"
    if phase == "refused":
        return None if len(sizes) > 1 and all(value in reason for value in sizes) else f"its sizes are {sizes}"
    if phase == "waiting":
        gates = {gate["name"] for each in members for gate in each["spec"].get("schedulingGates", ())} - {keys.GATE}
        return None if gates and all(gate in reason for gate in gates) else f"its gates are {gates}"
    if phase in _BY_STATE.values() and phase != "held":
        return (
            None
            if any(_BY_STATE.get(state) == phase for gang, state in states if gang == name)
            else "no such reservation"
        )
    if phase not in {"queued", "held", "bound", "running"}:
        return f"phase {phase}"
    waiting = [each for each in members if gated(each)]
    if shown["next_try_s"] and shown["trouble"] and shown["rollbacks"]:
        return None  # it waits after a rollback
    if fits_gang(waiting, nodes, name):
        return "it fits"
    missing = dict(_missing(shown, waiting))
    allowed = {
        text
        for each in nodes.values()
        for one in waiting
        for text in each.reasons(size(one), island=real_state.needs_an_island(one))
    }
    wrong = {
        member: why for member, why in missing.items() if why in {each.value for each in Reason} and why not in allowed
    }
    return f"not true: {wrong}" if wrong else None


def _missing(shown: Object, waiting: Sequence[Object]) -> Iterator[tuple[str, str]]:
    names = {each["metadata"]["name"] for each in waiting}
    for each in shown["missing"]:
        if each["member"] in names:
            yield each["member"], each["reason"]


def fits_gang(members: Sequence[Object], nodes: Mapping[str, NodeTruth], gang: str) -> bool:
    """Return whether equal members surely fit together: as many islands of free, unreserved GPUs as members."""
    gpus, island = size(members[0]), real_state.needs_an_island(members[0])
    places = 0
    for each in nodes.values():
        if any(number for name, number in each.reserved.items() if name != gang):
            continue
        free = each.free
        while len(free) >= gpus and each._replace(free=free).fits(gpus, island=island, gang=gang):
            places += 1
            free -= frozenset(sorted(free)[:gpus]) if not island else _an_island(each.topology, free, gpus)
    return places >= len(members)


def _an_island(topology: NodeTopology, free: frozenset[int], gpus: int) -> frozenset[int]:
    islands = [free & frozenset(island.gpus) for island in topology.islands or ()]
    return frozenset(sorted(next(each for each in islands if len(each) >= gpus))[:gpus])
