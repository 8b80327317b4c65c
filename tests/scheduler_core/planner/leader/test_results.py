"""What follows from the answers of the API server: for who waits, and for what is remembered."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gputopo.crd.reservations import EntryPhase
from gputopo.kube.objects import ObjectMeta
from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CreateReservation,
    DeletePod,
    ProbeExtenderPod,
    TouchPod,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.ledger import without_entries
from scheduler_core.planner.commit.observations import RefusedWrite, SilentExtender
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.backlog import AVOID_NODE_S, GangBacklog
from scheduler_core.planner.leader.context import PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.results import WriteResults
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.wait_times import WaitTimes
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.packing.model import LEVELS, Unplaced
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod_request import InvalidRequest
from scheduler_core.runtime.event_writer import EventDraft
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, member, members
from tests.scheduler_core.planner.leader.idle_executor import Idle
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1), "w-1": ("n2", 1)})
TOUCH = TouchPod(member("w-0"), PLAN.key)
ALONE = GangName("team", "pod.uid-a")
BATCH = plan("pods-1", {"a": ("n1", 1), "gone": ("n2", 1)}, gang="")


class Ears(Idle):
    """Hears what is told."""

    def __init__(self) -> None:
        self.told: list[EventDraft] = []
        self.waits: list[tuple[str, GangName, float]] = []

    def write_event(self, what: EventDraft) -> None:
        """Somebody listens."""
        self.told.append(what)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Somebody counts."""
        self.waits.append((outcome, gang.name, seconds))


class Office(NamedTuple):
    """The rooms of a term that are in question."""

    ears: Ears
    view: PlannerView
    backlog: GangBacklog
    consequences: WriteResults

    def know(self, *found: Member) -> None:
        """The watch of pods shows them."""
        touched = self.view.apply_batch(
            Batch(PlannerPod, tuple(PlannerPod(each.uid, None, each) for each in found)), 0.0
        )
        for name in touched:
            self.backlog.update_gang(name, self.view.gang_members.get_gang(name))

    def strike(self, reservation: ReservationUpdate, phase: EntryPhase) -> None:
        """The ledger listed it, and does so no more."""
        self.view.apply_batch(Batch(ReservationUpdate, (reservation,)), 0.0)
        over = ledger(entry(reservation, phase))
        self.view.apply_batch(Batch(LedgerUpdate, (over,)), 0.0)
        what = WriteLedger(over, without_entries(over.spec, [reservation.key]))
        self.consequences.apply_done(
            WriteAnswer(what, WriteOutcome.DONE, ObjectMeta("gpus", "L", resource_version="9", generation=9))
        )


@pytest.fixture
def office() -> Office:
    ears = Ears()
    settled = PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), LEVELS)
    given = TermContext(settled, lambda: BUILT_IN, ears, TermClock(lambda: 50.0, lambda: 1000.0))
    view = PlannerView(Policy(), "gpus", "me")
    backlog = GangBacklog(given, view.gang_members)
    return Office(ears, view, backlog, WriteResults(given, view, backlog, WaitTimes(given, view.gang_members)))


def test_a_proposal_that_was_withdrawn_is_not_made_again_on_what_is_known(office: Office) -> None:
    office.know(*members(2))
    office.strike(PLAN, PROPOSED)

    (waiting,) = office.backlog.queue.ordered()
    assert office.backlog.unplaced == {LLM: Unplaced("there was a place, and others were faster")}
    assert waiting.unfit_state is not None


@pytest.mark.parametrize(
    ("reservation", "phase", "waits"),
    [
        pytest.param(BATCH, COMMITTED, [("bound", ALONE, 900.0)], id="single pods that are there"),
        pytest.param(PLAN, COMMITTED, [], id="a gang was counted when its status said so"),
        pytest.param(plan("llm-h", held={"n1": 1}), HELD, [], id="room"),
    ],
)
def test_whose_wait_ends_when_the_ledger_forgets_an_entry(
    office: Office, reservation: ReservationUpdate, phase: EntryPhase, waits: list[tuple[str, GangName, float]]
) -> None:
    office.know(member("a", BOUND, gang=ALONE), *members(2, BOUND))

    office.strike(reservation, phase)

    assert (office.ears.waits, office.backlog.unplaced) == (waits, {})


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        pytest.param(SilentExtender(3, 10.0), False, SilentExtender(3, 10.0, asked=50.0), id="its pod runs"),
        pytest.param(SilentExtender(3, 10.0), True, SilentExtender(3, 10.0, asked=50.0, gone=50.0), id="it has ended"),
        pytest.param(
            SilentExtender(3, 10.0, 20.0, 20.0), True, SilentExtender(3, 10.0, 50.0, 20.0), id="it had ended before"
        ),
    ],
)
def test_what_is_heard_of_the_pod_of_a_silent_extender(
    office: Office, before: SilentExtender, after: SilentExtender, *, gone: bool
) -> None:
    office.view.observations = office.view.observations._replace(silent_extenders={"x": before})

    office.consequences.apply_probe(ProbeExtenderPod("x", "team/x"), gone=gone, now=50.0)
    office.consequences.apply_probe(ProbeExtenderPod("spoke-again", "team/y"), gone=gone, now=50.0)

    assert office.view.observations.silent_extenders == {"x": after}


def test_members_that_cannot_be_understood_are_told(office: Office) -> None:
    office.know(member("w-0", request=InvalidRequest("gang-size: 0")))

    assert [(each.reason, each.message) for each in office.ears.told] == [
        ("GangRefused", "gang llm: w-0: gang-size: 0")
    ]


def test_who_holds_room_is_not_set_back_when_that_is_refused(office: Office) -> None:
    office.know(*members(2))
    room = plan("llm-h", held={"n1": 1})

    office.backlog.mark_refused(CreateReservation("team", "llm-h", room.spec), "no")

    assert (office.backlog.unplaced, [each.rollbacks for each in office.backlog.queue.ordered()]) == ({}, [0])


def test_a_gang_of_which_no_pod_is_left_waits_and_nobody_is_told(office: Office) -> None:
    office.backlog.mark_refused(CreateReservation("team", PLAN.name, PLAN.spec), "no")
    office.know(*members(2))

    assert ([each.rollbacks for each in office.backlog.queue.ordered()], office.ears.told) == ([1], [])


def test_nodes_that_were_reached_in_vain_are_avoided_for_a_while_by_those_who_did_not_get_there(
    office: Office,
) -> None:
    reached, late = member("a", BOUND, gang=ALONE), member("b", gang=GangName("team", "pod.uid-b"))
    office.know(reached, late)
    batch = plan("pods-2", {"a": ("n1", 1), "b": ("n2", 1), "gone": ("n3", 1)}, gang="")

    office.backlog.mark_rolled_back(batch, "late")

    assert office.backlog.all_avoided_nodes(50.0) == {late.gang_request.gang: frozenset({"n2"})}
    assert office.backlog.avoided_nodes(late.gang_request.gang, 50.0 + AVOID_NODE_S) == frozenset()
    assert office.backlog.avoided_nodes(ALONE, 50.0) == frozenset()


def test_a_refusal_is_remembered_of_pods_only(office: Office) -> None:
    office.consequences.apply_refused(CreateReservation("team", PLAN.name, PLAN.spec), "no", 50.0)
    assert office.view.observations.refused_writes == {}

    office.consequences.apply_unanswered(TOUCH, "no answer", 50.0, elsewhere=False)
    assert office.view.observations.refused_writes == {
        (TouchPod, "uid-w-0"): RefusedWrite(50.0, 50.0, "no answer", answered=False)
    }
    assert office.view.observations.touched == frozenset()


@pytest.mark.parametrize(
    ("what", "elsewhere"),
    [
        pytest.param(TOUCH, True, id="pods of other namespaces"),
        pytest.param(WriteStatus(PLAN, PLAN.status), False, id="its reservation"),
    ],
)
def test_where_more_than_pods_of_one_namespace_is_not_answered_only_what_was_refused_is_remembered(
    office: Office, what: Action, *, elsewhere: bool
) -> None:
    office.consequences.apply_refused(DeletePod(member("w-0")), "no", 40.0)
    office.consequences.apply_unanswered(TOUCH, "no answer", 50.0, elsewhere=False)

    office.consequences.apply_unanswered(what, "no answer", 60.0, elsewhere=elsewhere)

    assert office.view.observations.refused_writes == {(DeletePod, "uid-w-0"): RefusedWrite(40.0, 40.0, "no")}
