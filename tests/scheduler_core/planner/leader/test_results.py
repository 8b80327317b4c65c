"""What follows from the answers of the API server: for who waits, and for what is remembered."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gputopo.crd.reservations import Phase
from gputopo.kube.objects import Metadata
from scheduler_core.cache.events import Batch, LedgerSeen, ReservationSeen
from scheduler_core.planner.commit.actions import (
    AskForPod,
    CreateReservation,
    DeletePod,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.ledger import striking
from scheduler_core.planner.commit.observations import Denial, Silence
from scheduler_core.planner.commit.state import Terms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import Candidate
from scheduler_core.planner.leader.backlog import AVOID_S, Backlog
from scheduler_core.planner.leader.context import Clock, Given, Settled
from scheduler_core.planner.leader.queue import Pace
from scheduler_core.planner.leader.results import Consequences
from scheduler_core.planner.leader.view import View
from scheduler_core.planner.leader.wait_times import Waits
from scheduler_core.planner.leader.writer import Answer, Outcome
from scheduler_core.planner.packing.model import LEVELS, Unplaced
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod_request import Refused
from scheduler_core.runtime.event_writer import Tell
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, member, members
from tests.scheduler_core.planner.leader.idle_executor import Idle
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1), "w-1": ("n2", 1)})
TOUCH = Touch(member("w-0"), PLAN.key)
ALONE = GangName("team", "pod.uid-a")
BATCH = plan("pods-1", {"a": ("n1", 1), "gone": ("n2", 1)}, gang="")


class Ears(Idle):
    """Hears what is told."""

    def __init__(self) -> None:
        self.told: list[Tell] = []
        self.waits: list[tuple[str, GangName, float]] = []

    def tell(self, what: Tell) -> None:
        """Somebody listens."""
        self.told.append(what)

    def placed(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Somebody counts."""
        self.waits.append((outcome, gang.name, seconds))


class Office(NamedTuple):
    """The rooms of a term that are in question."""

    ears: Ears
    view: View
    backlog: Backlog
    consequences: Consequences

    def know(self, *found: Member) -> None:
        """The watch of pods shows them."""
        touched = self.view.take(Batch(Candidate, tuple(Candidate(each.uid, None, each) for each in found)), 0.0)
        for name in touched:
            self.backlog.put(name, self.view.roster.gang(name))

    def strike(self, reservation: ReservationSeen, phase: Phase) -> None:
        """The ledger listed it, and does so no more."""
        self.view.take(Batch(ReservationSeen, (reservation,)), 0.0)
        over = ledger(entry(reservation, phase))
        self.view.take(Batch(LedgerSeen, (over,)), 0.0)
        what = WriteLedger(over, striking(over.spec, [reservation.key]))
        self.consequences.done(Answer(what, Outcome.DONE, Metadata("gpus", "L", resource_version="9", generation=9)))


@pytest.fixture
def office() -> Office:
    ears = Ears()
    settled = Settled("gpus", "gputopo", Terms(), Pace(), LEVELS)
    given = Given(settled, lambda: BUILT_IN, ears, Clock(lambda: 50.0, lambda: 1000.0))
    view = View(Policy(), "gpus", "me")
    backlog = Backlog(given, view.roster)
    return Office(ears, view, backlog, Consequences(given, view, backlog, Waits(given, view.roster)))


def test_a_proposal_that_was_withdrawn_is_not_made_again_on_what_is_known(office: Office) -> None:
    office.know(*members(2))
    office.strike(PLAN, PROPOSED)

    (waiting,) = office.backlog.queue.order()
    assert office.backlog.unplaced == {LLM: Unplaced("there was a place, and others were faster")}
    assert waiting.misfit is not None


@pytest.mark.parametrize(
    ("reservation", "phase", "waits"),
    [
        pytest.param(BATCH, COMMITTED, [("bound", ALONE, 900.0)], id="single pods that are there"),
        pytest.param(PLAN, COMMITTED, [], id="a gang was counted when its status said so"),
        pytest.param(plan("llm-h", held={"n1": 1}), HELD, [], id="room"),
    ],
)
def test_whose_wait_ends_when_the_ledger_forgets_an_entry(
    office: Office, reservation: ReservationSeen, phase: Phase, waits: list[tuple[str, GangName, float]]
) -> None:
    office.know(member("a", BOUND, gang=ALONE), *members(2, BOUND))

    office.strike(reservation, phase)

    assert (office.ears.waits, office.backlog.unplaced) == (waits, {})


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        pytest.param(Silence(3, 10.0), False, Silence(3, 10.0, asked=50.0), id="its pod runs"),
        pytest.param(Silence(3, 10.0), True, Silence(3, 10.0, asked=50.0, gone=50.0), id="it has ended"),
        pytest.param(Silence(3, 10.0, 20.0, 20.0), True, Silence(3, 10.0, 50.0, 20.0), id="it had ended before"),
    ],
)
def test_what_is_heard_of_the_pod_of_a_silent_extender(
    office: Office, before: Silence, after: Silence, *, gone: bool
) -> None:
    office.view.memory = office.view.memory._replace(silent={"x": before})

    office.consequences.heard_of(AskForPod("x", "team/x"), gone=gone, now=50.0)
    office.consequences.heard_of(AskForPod("spoke-again", "team/y"), gone=gone, now=50.0)

    assert office.view.memory.silent == {"x": after}


def test_members_that_cannot_be_understood_are_told(office: Office) -> None:
    office.know(member("w-0", request=Refused("gang-size: 0")))

    assert [(each.reason, each.message) for each in office.ears.told] == [
        ("GangRefused", "gang llm: w-0: gang-size: 0")
    ]


def test_who_holds_room_is_not_set_back_when_that_is_refused(office: Office) -> None:
    office.know(*members(2))
    room = plan("llm-h", held={"n1": 1})

    office.backlog.set_back(CreateReservation("team", "llm-h", room.spec), "no")

    assert (office.backlog.unplaced, [each.rollbacks for each in office.backlog.queue.order()]) == ({}, [0])


def test_a_gang_of_which_no_pod_is_left_waits_and_nobody_is_told(office: Office) -> None:
    office.backlog.set_back(CreateReservation("team", PLAN.name, PLAN.spec), "no")
    office.know(*members(2))

    assert ([each.rollbacks for each in office.backlog.queue.order()], office.ears.told) == ([1], [])


def test_nodes_that_were_reached_in_vain_are_avoided_for_a_while_by_those_who_did_not_get_there(
    office: Office,
) -> None:
    reached, late = member("a", BOUND, gang=ALONE), member("b", gang=GangName("team", "pod.uid-b"))
    office.know(reached, late)
    batch = plan("pods-2", {"a": ("n1", 1), "b": ("n2", 1), "gone": ("n3", 1)}, gang="")

    office.backlog.taken_back(batch, "late")

    assert office.backlog.all_avoided(50.0) == {late.wanted.gang: frozenset({"n2"})}
    assert office.backlog.avoided(late.wanted.gang, 50.0 + AVOID_S) == frozenset()
    assert office.backlog.avoided(ALONE, 50.0) == frozenset()


def test_a_refusal_is_remembered_of_pods_only(office: Office) -> None:
    office.consequences.refused(CreateReservation("team", PLAN.name, PLAN.spec), "no", 50.0)
    assert office.view.memory.denied == {}

    office.consequences.unanswered(TOUCH, "no answer", 50.0, elsewhere=False)
    assert office.view.memory.denied == {(Touch, "uid-w-0"): Denial(50.0, 50.0, "no answer", answered=False)}
    assert office.view.memory.touched == frozenset()


@pytest.mark.parametrize(
    ("what", "elsewhere"),
    [
        pytest.param(TOUCH, True, id="pods of other namespaces"),
        pytest.param(WriteStatus(PLAN, PLAN.status), False, id="its reservation"),
    ],
)
def test_where_more_than_pods_of_one_namespace_is_not_answered_only_what_was_refused_is_remembered(
    office: Office, what: Write, *, elsewhere: bool
) -> None:
    office.consequences.refused(DeletePod(member("w-0")), "no", 40.0)
    office.consequences.unanswered(TOUCH, "no answer", 50.0, elsewhere=False)

    office.consequences.unanswered(what, "no answer", 60.0, elsewhere=elsewhere)

    assert office.view.memory.denied == {(DeletePod, "uid-w-0"): Denial(40.0, 40.0, "no")}
