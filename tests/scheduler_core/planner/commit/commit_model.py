"""The commit protocol as a state machine: two planners, two extenders, and the events between them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from gputopo.crd import reservations
from gputopo.labels import keys
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CheckBudgets,
    CreateReservation,
    ProbeExtenderPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.ledger import without_entries
from scheduler_core.planner.commit.state import CommitTerms
from tests.scheduler_core.planner.commit.apiserver import NODES, OWN, ApiServer, Conflict, Json, NotFound
from tests.scheduler_core.planner.commit.processes import BIND_S, Answering, Flags, Planner, Scheduler

HELD, PROPOSED, COMMITTED = reservations.EntryPhase
LAG_S = 5.0  # largest lag of a watch that is not cut off
_AT_ONCE = 6
# What may happen next, and how often: a uniform choice would mostly kill what has hardly begun.
OFTEN = {
    "gang_comes": 6,
    "pod_comes": 10,
    "pod_goes": 4,
    "somebody_deletes_a_plan": 1,
    "somebody_deletes_the_ledger": 1,
    "pod_is_filtered": 22,
    "binding_lands": 6,
    "extender_looks": 3,
    "extender_is_heard": 6,
    "extender_speaks": 8,
    "all_speak": 10,
    "extender_ends": 2,
    "extender_starts": 6,
    "extender_is_cut_off": 1,
    "extender_is_back": 4,
    "planner_starts": 8,
    "planner_is_killed": 1,
    "planner_writes": 12,
    "planner_works": 12,
    "planner_sends_late": 2,
    "late_write_lands": 2,
    "something_is_heard": 6,
    "one_hears_all": 8,
    "time_passes": 3,
}
# An admission policy lets only planners write their annotations: so plans that are deleted by hand are recreated.
TERMS = CommitTerms(settle_s=2 * LAG_S, guarded=True)


class Mutant(NamedTuple):
    """A part of the protocol that is left out."""

    terms: CommitTerms = TERMS
    flags: Flags = Flags()
    swaps: bool = True  # the ledger is written by compare-and-swap
    falls_back: bool = True  # a capacity hold stays until its gang is committed
    lists_first: bool = True  # the ledger lists a hold before the first of its pods is evicted
    together: bool = True  # all units of a hold begin in one write


class Flight(NamedTuple):
    """A pod that passed Filter."""

    uid: str
    node: str
    until: float


class Commit(RuleBasedStateMachine):
    """The cluster, with its rules and invariants."""

    mutant = Mutant()
    harmless = mutant  # nothing is left out: gangs restart as a whole
    actions: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.server = ApiServer(NODES)
        if not self.mutant.swaps:
            self.server.write_ledger = self._overwritten  # type: ignore[method-assign]
        self.gangs: dict[str, int] = {}
        self.started = 0
        self.planners: list[Planner | None] = [None, None]
        self.extenders: list[Answering | None] = [None, None]
        self.extender_pods = ["", ""]  # of extenders that ended
        self.schedulers = [Scheduler(self.server), Scheduler(self.server)]
        self.late: list[tuple[Planner, Action]] = []
        self.unheld: set[str] = set()  # UIDs of holds that a planner found unwanted, or that were deleted by hand
        self.flights: list[Flight] = []

    def _overwritten(self, over: Any, spec: Any) -> Any:
        ledger = self.server.ledger
        assert ledger is not None
        return ApiServer.write_ledger(self.server, over._replace(version=ledger.version), spec)

    @initialize()
    def begin(self) -> None:
        for side in (0, 1):
            self._start_extender(side)
        self._start_planner(0)
        self.planner_works(0, 0)
        for _ in range(3):
            self.quieten()
            self.pass_time(16)
        self.quieten()

    @rule(acts=st.binary(min_size=3 * _AT_ONCE, max_size=3 * _AT_ONCE))
    def things_happen(self, acts: bytes) -> None:
        """Run several steps: drawing each by itself takes longer than the step."""
        for at in range(0, len(acts), 3):
            action, side, pick = acts[at : at + 3]
            getattr(self, self.actions[action % len(self.actions)])(side % 2, pick)
            self.no_node_is_promised_twice()
        self.what_is_held_is_not_lost()

    # Actions of people and controllers.

    def gang_comes(self, _: int, pick: int) -> None:
        if len(self.gangs) < 3:
            name, size = f"g{len(self.gangs)}", 1 + pick % 4
            self.gangs[name] = size
            for _ in range(size):
                self.server.create_pod(name, 1, name, size)

    def pod_comes(self, side: int, pick: int) -> None:
        """Some pods have a higher priority than the gangs, and ignore capacity holds."""
        if len(self.server.pods) < 8:
            self.server.create_pod(f"pod-{side}", 1, priority=pick % 2)

    def pod_goes(self, _: int, pick: int) -> None:
        if not self.server.pods:
            return
        uid = picked(sorted(self.server.pods), pick)
        gang = _gang(self.server.pods[uid])
        self.server.delete_pod(uid)
        self._replace(gang)

    def _replace(self, gang: str | None) -> None:
        """Create another pod, as the gang's controller does."""
        if gang in self.gangs and len(self._members(gang)) < self.gangs[gang]:
            self.server.create_pod(gang, 1, gang, self.gangs[gang])

    def somebody_deletes_a_plan(self, _: int, pick: int) -> None:
        """Delete a reservation by hand. Late writes of a planner that lost the Lease are not fenced afterwards."""
        if self.server.reservations:
            uid = picked(sorted(self.server.reservations), pick)
            self.unheld.add(uid)
            self.server.delete_reservation(uid)
            self._lose_what_is_late()

    def somebody_deletes_the_ledger(self, _: int, __: int) -> None:
        """Delete it by hand, as above."""
        if self.server.ledger is not None:
            self.server.delete_ledger()
            self._lose_what_is_late()

    def _lose_what_is_late(self) -> None:
        self.late = [each for each in self.late if not isinstance(each[1], UngateAndPin)]

    # Actions of kube-scheduler.

    def pod_is_filtered(self, side: int, pick: int) -> None:
        extender, scheduler = self.extenders[side], self.schedulers[side]
        waiting = [uid for uid, pod in self.server.pods.items() if self._may_try(pod, side)]
        if extender is None or not waiting:
            return
        uid = picked(sorted(waiting), pick)
        pod = self.server.pods[uid]
        names = scheduler.feasible(pod, OWN[side])
        nodes = extender.filter(pod, names) if names else ()
        if nodes:
            node = picked(sorted(nodes), pick)
            scheduler.assumed[uid] = (node, 1)
            self.flights.append(Flight(uid, node, self.server.now + BIND_S))

    def _may_try(self, pod: Json, side: int) -> bool:
        """Members belong to the first scheduler, on any node; each other pod to one scheduler and one node."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        mine = side == 0 if _gang(pod) else name.startswith(f"pod-{side}")
        open_ = not pod["spec"]["schedulingGates"] and not pod["spec"].get("nodeName")
        return mine and open_ and uid not in self.schedulers[side].assumed

    def binding_lands(self, _: int, pick: int) -> None:
        if not self.flights:
            return
        flight = picked(self.flights, pick)
        self.flights.remove(flight)
        self._bind(flight)

    def _bind(self, flight: Flight) -> None:
        try:
            self.server.bind(flight.uid, flight.node)
        except (Conflict, NotFound):
            self._unassume(flight.uid)

    def _unassume(self, uid: str) -> None:
        for each in self.schedulers:
            each.assumed.pop(uid, None)

    # Actions of extenders.

    def extender_looks(self, side: int, _: int) -> None:
        extender = self.extenders[side]
        if extender is not None:
            extender.look()

    def extender_is_heard(self, side: int, _: int) -> None:
        extender = self.extenders[side]
        if extender is not None and extender.said and extender.silent_since is None:
            self.server.apply(extender.me, extender.said.pop(0))

    def extender_speaks(self, side: int, _: int) -> None:
        """The extender receives all events, updates, and its answer is received."""
        extender = self.extenders[side]
        if extender is not None and extender.silent_since is None:
            hear_all(extender)
            extender.look()
            while extender.said:
                self.server.apply(extender.me, extender.said.pop(0))

    def all_speak(self, side: int, _: int) -> None:
        """Extenders answer, then a planner acts."""
        for each in (0, 1):
            self.extender_speaks(each, 0)
        self.planner_works(side, 0)

    def extender_ends(self, side: int, _: int) -> None:
        if (extender := self.extenders[side]) is not None:
            self.extender_pods[side] = extender.pod
        self.extenders[side] = None

    def extender_starts(self, side: int, pick: int) -> None:
        """Often its container restarts; else it starts in another pod."""
        if self.extenders[side] is None:
            self._start_extender(side, self.extender_pods[side] if pick % 3 else "")

    def _start_extender(self, side: int, pod: str = "") -> None:
        self.started += 1
        self.extenders[side] = Answering(self.server, f"e{self.started}", self.mutant.flags, pod)

    def extender_is_cut_off(self, side: int, _: int) -> None:
        extender = self.extenders[side]
        ledger = self.server.ledger
        if extender is not None and ledger is not None and extender.me in ledger.extenders:
            extender.silent_since = extender.silent_since or self.server.now

    def extender_is_back(self, side: int, _: int) -> None:
        if (extender := self.extenders[side]) is not None:
            extender.silent_since = None

    # Actions of planners.

    def planner_starts(self, side: int, pick: int) -> None:
        """Rarely two at once, as when the Lease failed to exclude the second."""
        planner, other = self.planners[side], self.planners[1 - side]
        if (planner is None or planner.deposed) and (other is None or other.deposed or pick % 8 == 7):
            self._start_planner(side)

    def _start_planner(self, side: int) -> None:
        self.started += 1
        self.planners[side] = Planner(self.server, f"p{self.started}", self.mutant.terms)

    def planner_is_killed(self, side: int, _: int) -> None:
        self.planners[side] = None

    def planner_writes(self, side: int, pick: int) -> None:
        """Do one of the writes, often the last of this process."""
        planner = self.planners[side]
        writes = () if planner is None else planner.writes()
        if planner is None or not writes:
            return
        self._write(planner, picked(writes, pick))
        if pick % 12 == 11:
            self.planners[side] = None

    def planner_works(self, side: int, _: int) -> None:
        """Receive all events, and write until no write is due."""
        planner = self.planners[side]
        if planner is not None and planner.watcher is not None:
            hear_all(planner)
        for _ in range(20):
            writes = () if planner is None else planner.writes()
            if planner is None or not writes:
                return
            for each in writes:
                self._write(planner, each)

    def planner_sends_late(self, side: int, pick: int) -> None:
        """The planner stops just before a write; the write may arrive later."""
        planner = self.planners[side]
        writes = () if planner is None else planner.writes()
        if planner is not None and writes:
            self.late.append((planner, picked(writes, pick)))

    def late_write_lands(self, _: int, pick: int) -> None:
        if self.late:
            self._write(*self.late.pop(pick % len(self.late)))

    def _write(self, planner: Planner, what: Action) -> None:
        if isinstance(what, ProbeExtenderPod):
            living = {each.pod for each in self.extenders if each is not None}
            planner.heard_of(what, gone=what.pod not in living)
            return
        if isinstance(what, CheckBudgets):
            planner.budgets_counted(what)
            return
        if isinstance(what, WriteLedger) and not self.mutant.falls_back:
            what = msgspec.structs.replace(what, spec=without_entries(what.spec, self._held_of_proposed(what)))
        if isinstance(what, WriteStatus) and not self.mutant.together:
            what = _with_one_unit(what)
        gangs = {uid: _gang(pod) for uid, pod in self.server.pods.items()}
        self.unheld |= planner.unheld
        try:
            made = planner.send(what)
        except (Conflict, NotFound):
            planner.refused(what)
        else:
            planner.answered(what, made)
            if isinstance(what, CreateReservation) and not self.mutant.lists_first:
                self._evict_at_once(made)
            self.units_begin_together()
        for uid in gangs.keys() - self.server.pods.keys():
            self._replace(gangs[uid])

    def _evict_at_once(self, hold: ReservationUpdate) -> None:
        intent = hold.spec.preemption
        if intent is None:
            return
        begun = tuple(dict.fromkeys(each.unit for each in intent.evictions))
        # All else that an eviction needs is there.
        status = msgspec.structs.replace(hold.status, evicting=begun, deadline=self.server.deletion_timestamp)
        self.server.write_status(hold, status)
        for each in intent.evictions:
            if each.uid in self.server.pods:
                self.server.evict_pod(each.uid)

    def _held_of_proposed(self, what: WriteLedger) -> set[str]:
        proposed = {self._gang_for(each.uid) for each in what.spec.entries if each.phase is PROPOSED}
        return {each.uid for each in what.spec.entries if each.phase is HELD and self._gang_for(each.uid) in proposed}

    # Time.

    def something_is_heard(self, _: int, pick: int) -> None:
        found = [(process, kind) for process in self._hearing() for kind in process.watcher.behind()]
        if found:
            process, kind = picked(found, pick)
            process.hear(process.watcher.hear(kind))

    def one_hears_all(self, _: int, pick: int) -> None:
        found = self._hearing()
        hear_all(picked(found, pick))

    def time_passes(self, _: int, pick: int) -> None:
        self.pass_time(picked((1, 2, 6, 11, 31, 70, 165), pick))

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.server.now += 1.0
            for each in self._hearing():
                oldest = each.watcher.oldest()
                if oldest is not None and self.server.now - oldest >= LAG_S:
                    hear_all(each)
            for flight in [each for each in self.flights if each.until <= self.server.now]:
                self.flights.remove(flight)
                self._unassume(flight.uid)
            for extender in filter(None, self.extenders):
                extender.look()

    def quieten(self) -> None:
        """All processes receive all events and are received."""
        for _ in range(4):
            for each in self._hearing():
                hear_all(each)
            for side in (0, 1):
                self.extender_looks(side, 0)
                while (extender := self.extenders[side]) is not None and extender.said:
                    self.extender_is_heard(side, 0)

    def _hearing(self) -> list[Any]:
        answering = [each for each in self.extenders if each is not None and each.silent_since is None]
        planning = [each for each in self.planners if each is not None and each.watcher is not None]
        return [*self.schedulers, *answering, *planning]

    def _members(self, gang: str) -> list[Json]:
        return [pod for pod in self.server.pods.values() if _gang(pod) == gang]

    # Invariants.

    def no_node_is_promised_twice(self) -> None:
        for node, there in NODES.items():
            bound, committed = self.server.bound(node), self.server.committed(node)
            assert bound + committed <= there, f"{node}: {bound} bound + {committed} committed of {there}"

    def what_is_held_is_not_lost(self) -> None:
        """A hold ends by the write that commits its gang, or once a planner finds the gang gone or no longer waiting.

        A proposal that is withdrawn leaves the hold as it is.
        """
        ledgers = [event.object for event in self.server.events if event.kind is LedgerUpdate]
        for before, after in pairwise(ledgers):
            if before is None or after is None:
                continue  # deleted by hand
            left = {each.uid: each.phase for each in after.spec.entries}
            committed = {self._gang_for(uid) for uid, phase in left.items() if phase is COMMITTED}
            for each in before.spec.entries:
                lost = each.phase is HELD and each.uid not in left and each.uid not in self.unheld
                assert not lost or self._gang_for(each.uid) in committed, f"what was held by {each.name} is lost"

    def units_begin_together(self) -> None:
        """Else the owners of the others could protect them, and the first would be evicted in vain."""
        for hold in self.server.reservations.values():
            left = self._units_left(hold).difference(hold.status.evicting)
            assert not hold.status.evicting or not left, f"{hold.name}: a unit begins without {sorted(left)}"

    def begun_units_are_evicted_completely(self) -> None:
        """After a time without failures. If the hold is no longer listed, the rest of a begun unit is spared."""
        ledger = self.server.ledger
        held = {each.uid for each in ledger.spec.entries if each.phase is HELD} if ledger is not None else set()
        for uid in held & self.server.reservations.keys():
            hold = self.server.reservations[uid]
            left = self._units_left(hold).intersection(hold.status.evicting)
            assert not left, f"{hold.name}: {sorted(left)} is not evicted completely"

    def _units_left(self, hold: ReservationUpdate) -> set[str]:
        """Return the units with pods that exist."""
        intent = hold.spec.preemption
        return {each.unit for each in intent.evictions if each.uid in self.server.pods} if intent is not None else set()

    def _gang_for(self, uid: str) -> str:
        """Return the gang that a reservation is or was for."""
        shown = (each.object for each in self.server.events if each.kind is ReservationUpdate and each.key == uid)
        return str(next(shown).spec.gang)

    def teardown(self) -> None:
        """Without further failures, each gang runs or restarts as a whole."""
        if self.mutant != self.harmless:
            return
        self.late.clear()
        self.planners = [None, None]
        for side in (0, 1):
            self.extender_is_back(side, 0)
            self.extender_starts(side, 0)
        self._start_planner(0)
        for _ in range(60):
            self._all_works()
            self.no_node_is_promised_twice()
        self.begun_units_are_evicted_completely()
        for gang, size in self.gangs.items():
            members = self._members(gang)
            nodes = [pod["spec"].get("nodeName") for pod in members]
            gated = [bool(pod["spec"]["schedulingGates"]) for pod in members]
            assert len(members) == size
            assert all(node is not None or held for node, held in zip(nodes, gated, strict=True)), f"{gang}: {nodes}"
            # A replacement waits while there is no capacity, or capacity is reserved for another gang.
            assert all(nodes) or all(gated) or self._is_short_of(gated.count(True)), f"{gang}: {nodes}"
        self.what_is_held_is_not_lost()

    def _is_short_of(self, gpus: int) -> bool:
        ledger = self.server.ledger
        free = (there - self.server.bound(node) - self.server.committed(node) for node, there in NODES.items())
        return ledger is None or any(each.phase is HELD for each in ledger.spec.entries) or sum(free) < gpus

    def _all_works(self) -> None:
        self.quieten()
        self.planner_works(0, 0)
        for side in (0, 1):
            for pick in range(len(self.server.pods)):
                self.pod_is_filtered(side, pick)
        for flight in self.flights:
            self._bind(flight)
        self.flights.clear()
        self.pass_time(6)


def _with_one_unit(what: WriteStatus) -> WriteStatus:
    """Return the status with only one of the units begun."""
    return msgspec.structs.replace(what, status=msgspec.structs.replace(what.status, evicting=what.status.evicting[:1]))


def hear_all(process: Any) -> None:
    for kind in process.watcher.behind():
        while kind in process.watcher.behind():
            process.hear(process.watcher.hear(kind))


def picked(found: Any, pick: int) -> Any:
    return found[pick % len(found)]


def _gang(pod: Json) -> str | None:
    named: str | None = pod["metadata"]["annotations"].get(keys.POD_GANG.key)
    return named


def weighed(often: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(action for action, times in often.items() for _ in range(times))


Commit.actions = weighed(OFTEN)
USUAL = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
