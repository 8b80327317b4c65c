"""Which preemptions in progress are proved for the present cluster, and which are to be proved again. No I/O.

A proof holds as long as nothing changes that it depends on: the nodes of the hold, the other pods on them, the gang,
the policy, and what is known about the victims. The proof itself runs on the hold search thread
(``preemption.recheck``). Backfilled pods (``yields``) need no proof: the capacity is held for the gang already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gputopo.crd.reservations import PlannedMember, Preemption
from scheduler_core.cache.node_record import is_hold
from scheduler_core.planner.commit.eviction_progress import is_late, left_evictions, untouched_units
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.capacity_holds import CapacityHolds
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang, fit_inputs
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.preemption.recheck import PlannedPods

# Until a preemption that was not proved is checked again, doubled each time: not all that a plan needs is visible.
AGAIN_S, MAX_AGAIN_S = 5.0, 300.0
TIMEOUT_S = 60.0  # a preemption without a proof for so long counts as not proved: its cluster changes all the time
MOST_CHECKS = 16  # after so many, changes of the victims do not count: their owners could change them all the time
TOLERATED_S = 3_600.0  # after a change of a gang that was to be evicted, such changes in its namespace do not count
NOT_IN_TIME = f"the cluster changed too often to prove within {TIMEOUT_S:g} s that the gang would fit"


class CheckRequest(NamedTuple):
    """A preemption in progress that is to be proved again."""

    waiting: QueuedGang
    planned: PlannedPods


class _ProofState(NamedTuple):
    """All that a proof depends on, as far as it is visible."""

    cluster: Any  # without the pods that are to be evicted
    victims: Mapping[str, Any]  # by UID, and by name of their gangs: of units of which no pod is evicted yet


class _Due(NamedTuple):
    hold: CapacityHold
    planned: PlannedPods
    state: _ProofState


class _Checked(NamedTuple):
    state: _ProofState
    why_not: str | None
    at: float  # monotonic seconds
    times: int
    again_s: float  # until the next check, where it was not proved
    seats: tuple[PlannedMember, ...] = ()  # of the gang, where it was proved

    def is_valid(self, now: _ProofState) -> bool:
        """Return True if the result holds in this state, in which some victims may be gone."""
        is_same = all(self.state.victims.get(uid) == each for uid, each in now.victims.items())
        return self.state.cluster == now.cluster and (is_same or self.times >= MOST_CHECKS)


class EvictionChecks:
    """Proofs of preemptions in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, queue: GangQueue, holds: CapacityHolds, context: TermContext) -> None:
        self._view, self._queue, self._holds, self._context = view, queue, holds, context
        self._checked: dict[str, _Checked] = {}  # by UID of the hold
        self._unproved_since: dict[str, float] = {}  # by UID of the hold, monotonic seconds
        self._due: list[_Due] = []
        self._running: _Due | None = None
        self._tolerated: dict[str, float] = {}  # by namespace: until when, monotonic seconds

    def unproved(self, inputs: ReconcileInput) -> Mapping[str, str | None]:
        """Return, by UID of holds, why their evictions are not proved; None: they are not checked yet."""
        opened = list(self._open(inputs))
        self._checked = {uid: known for each in opened if (known := self._checked.get(uid := each.planned.hold))}
        found: dict[str, str | None] = {}
        self._due = []
        for each in opened:
            uid, known = each.planned.hold, self._checked.get(each.planned.hold)
            if known is not None and not known.is_valid(each.state):
                known = None
            if known is None or known.why_not is not None:
                found[uid] = None if known is None else known.why_not
                if known is None or inputs.now - known.at >= known.again_s:
                    self._due.append(each)
        unknown = {uid for uid, why_not in found.items() if why_not is None}
        self._unproved_since = {uid: self._unproved_since.get(uid, inputs.now) for uid in unknown}
        late = {uid for uid, since in self._unproved_since.items() if inputs.now - since >= TIMEOUT_S}
        return found | dict.fromkeys(late, NOT_IN_TIME)

    def next_check(self) -> CheckRequest | None:
        """Return the next preemption to prove; None: none can be. An incomplete gang cannot be planned."""
        for each in self._due:
            waiting = self._queue.get_queued(each.hold.gang)
            if waiting is not None and self._view.in_progress().is_free(waiting.gang):
                self._running = each
                return CheckRequest(waiting, each.planned)
        return None

    def proved_seats(self) -> Mapping[str, tuple[PlannedMember, ...]]:
        """Return the seats of gangs once the pods are evicted, by UID of holds, as of the last proof."""
        return {uid: each.seats for uid, each in self._checked.items() if each.why_not is None}

    def apply_result(
        self, why_not: str | None, seats: tuple[PlannedMember, ...], now: float, changed: str | None = None
    ) -> None:
        """Record the result of the last check. ``now``: monotonic seconds; ``changed``: ``EvictionProof.changed``.

        The owners of running pods can change their gangs all the time, so such changes stop only one preemption.
        """
        self._tolerated = {name: until for name, until in self._tolerated.items() if now < until}
        if changed is not None:
            self._tolerated[changed] = now + TOLERATED_S
        if self._running is not None:
            uid = self._running.planned.hold
            before = self._checked.get(uid)
            again_s = AGAIN_S
            if before is not None and before.why_not is not None:
                again_s = min(MAX_AGAIN_S, 2 * before.again_s)
            times = 1 if before is None else 1 + before.times
            self._checked[uid] = _Checked(self._running.state, why_not, now, times, again_s, seats)
            self._running = None

    def _open(self, inputs: ReconcileInput) -> Iterator[_Due]:
        """Yield the preemptions with units of which no pod is evicted yet, and may be."""
        for hold in self._holds.open_holds():
            intent, reservation = hold.spec.preemption, hold.reservation
            if intent is None or intent.yields:
                continue
            untouched = untouched_units(inputs, reservation, intent)
            if is_late(inputs, reservation):  # no further unit begins
                untouched &= set(reservation.status.evicting)
            if untouched:
                left = tuple(left_evictions(inputs, intent))
                tolerated = frozenset(self._tolerated)
                planned = PlannedPods(reservation.key, tuple(hold.nodes), left, untouched, tolerated)
                yield _Due(hold, planned, self._state(hold, intent, planned))

    def _state(self, hold: CapacityHold, intent: Preemption, planned: PlannedPods) -> _ProofState:
        view, listed = self._view, {each.uid for each in intent.evictions}
        records = [view.cache.snapshot.records.get(name) for name in planned.nodes]
        others = frozenset(
            pod.uid
            for record in records
            if record is not None
            for pod in record.pods
            if pod.uid not in listed and not is_hold(pod.uid) and view.gone_by(pod.uid) is None
        )
        waiting = self._queue.get_queued(hold.gang)
        cluster = (
            None if waiting is None else fit_inputs(waiting.gang),
            tuple(None if each is None else each.machine for each in records),
            tuple(view.rules.get(name) for name in planned.nodes),
            others,
            self._context.policies().preemption,
        )
        untouched = [each.uid for each in planned.left if each.unit in planned.untouched]
        facts = self._view.disruptions.gang_facts()
        victims = {uid: self._victim(uid, facts) for uid in untouched}
        return _ProofState(cluster, victims | self._sizes_of_gangs(untouched))

    def _victim(self, uid: str, facts_of_gangs: Mapping[GangName, Any]) -> Any:
        """Return what is known about a victim and its owners."""
        view = self._view
        pod, member, state = view.cache.pods.get(uid), view.gang_members.get_member(uid), view.disruptions.pod(uid)
        owner = None if pod is None else pod.occupant.owner
        gangs = (None if member is None else member.gang_request.gang, None if state is None else state.jobset)
        declared = tuple(None if name is None else facts_of_gangs.get(name) for name in gangs)
        return state, view.disruptions.owner_facts(owner), declared

    def _sizes_of_gangs(self, uids: Iterable[str]) -> dict[str, Any]:
        """Return the number of running members and the minimum of these pods' gangs, by name of the gang."""
        members = (self._view.gang_members.get_member(uid) for uid in uids)
        names = dict.fromkeys(each.gang_request.gang for each in members if each is not None)
        found = ((name.title, self._view.gang_members.get_gang(name)) for name in names)
        return {
            title: (sum(not each.is_terminating for each in gang.placed), gang.required_members)
            for title, gang in found
            if gang is not None
        }
