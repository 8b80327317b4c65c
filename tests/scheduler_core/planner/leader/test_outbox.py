"""Which writes are sent, and which wait."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import LedgerSpec, LedgerStatus, ReservationSpec, ReservationStatus
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    ProbeExtenderPod,
    ReleasePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.leader.context import PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.outbox import Outbox, namespace_of, version_of
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import Idle
from tests.scheduler_core.planner.packing.plans import ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1)})._replace(version="5")
BOOK = ledger(generation=3)
MADE = CreateReservation("team", "llm-1", PLAN.spec)
GO = UngateAndPin(member("w-0"), PLAN.spec.seats[0], PLAN.name)
GO_TOO = UngateAndPin(member("w-1"), PLAN.spec.seats[0], PLAN.name)
ELSEWHERE = UngateAndPin(member("x-0", namespace="other"), PLAN.spec.seats[0], PLAN.name)
SWAP = WriteLedger(BOOK, LedgerSpec("me"))


class Hands(Idle):
    """What was handed over."""

    def __init__(self) -> None:
        self.written: list[Action] = []
        self.woken: list[float] = []

    def execute_action(self, what: Action) -> None:
        """Nothing answers by itself."""
        self.written.append(what)

    def schedule_round(self, seconds: float) -> None:
        """Nobody sleeps."""
        self.woken.append(seconds)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def sending(hands: Hands) -> Outbox:
    given = TermContext(
        PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), LEVELS), lambda: BUILT_IN, hands, TermClock()
    )
    return Outbox(given, PlannerView(Policy(), "gpus", "me"))


def test_of_one_object_one_write_is_under_way(sending: Outbox, hands: Hands) -> None:
    sending.submit_action(GO, 0.0)
    sending.submit_action(TouchPod(GO.member, PLAN.key), 0.0)
    assert (hands.written, sending.is_busy) == ([GO], True)

    assert sending.apply_answer(GO, WriteOutcome.DONE, 0.0) is False
    sending.submit_action(TouchPod(GO.member, PLAN.key), 0.0)
    assert hands.written[1:] == [TouchPod(GO.member, PLAN.key)]


def test_a_plan_is_being_written_until_it_is_answered(sending: Outbox) -> None:
    sending.submit_action(MADE, 0.0)
    assert sending.is_writing_plan

    assert sending.apply_answer(MADE, WriteOutcome.DEPOSED, 0.0) is False
    assert (sending.is_writing_plan, sending.is_busy) == (False, False)


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        (WriteOutcome.DONE, 2.0),
        (WriteOutcome.CONFLICT, 2.0),
        (WriteOutcome.GONE, 2.0),
        (WriteOutcome.UNANSWERED, 2.0),
        (WriteOutcome.REFUSED, 30.0),
    ],
    ids=lambda each: each.value if isinstance(each, WriteOutcome) else "",
)
def test_the_same_is_not_sent_again_at_once(
    sending: Outbox, hands: Hands, outcome: WriteOutcome, seconds: float
) -> None:
    sending.submit_action(GO, 0.0)
    untaken = sending.apply_answer(GO, outcome, 0.0)

    sending.submit_action(GO, seconds - 1)
    assert (untaken, hands.written, hands.woken[-1]) == (outcome is not WriteOutcome.DONE, [GO], 1.0)
    sending.submit_action(GO, seconds)
    assert hands.written == [GO, GO]


def test_what_was_worked_out_from_another_version_is_sent_at_once(sending: Outbox, hands: Hands) -> None:
    newer = GO._replace(member=GO.member._replace(version="8"))
    sending.submit_action(GO, 0.0)
    sending.apply_answer(GO, WriteOutcome.CONFLICT, 0.0)

    sending.submit_action(newer, 0.0)

    assert hands.written == [GO, newer]


def test_a_ledger_that_was_written_is_written_again_as_soon_as_there_is_more(sending: Outbox, hands: Hands) -> None:
    sending.submit_action(SWAP, 0.0)
    sending.apply_answer(SWAP, WriteOutcome.DONE, 0.0)

    sending.submit_action(SWAP, 0.0)

    assert hands.written == [SWAP, SWAP]


@pytest.mark.parametrize(
    "unanswered", [pytest.param(SWAP, id="the ledger"), pytest.param(ELSEWHERE, id="another namespace too")]
)
def test_where_nobody_answers_nothing_is_sent_for_a_while_that_doubles(
    sending: Outbox, hands: Hands, unanswered: Action
) -> None:
    assert sending.apply_answer(GO, WriteOutcome.UNANSWERED, 0.0)
    assert not sending.is_paused(0.0)

    now = 0.0
    for pause in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        assert not sending.apply_answer(unanswered, WriteOutcome.UNANSWERED, now)
        assert hands.woken[-1] == pytest.approx(pause)
        assert sending.is_paused(now)
        now += pause
        assert not sending.is_paused(now)
    sending.apply_answer(GO_TOO, WriteOutcome.DONE, now)
    sending.apply_answer(SWAP, WriteOutcome.UNANSWERED, now)
    assert hands.woken[-1] == pytest.approx(0.2)


def test_writes_that_were_under_way_when_nobody_answered_make_no_pause_longer(sending: Outbox, hands: Hands) -> None:
    sending.apply_answer(SWAP, WriteOutcome.UNANSWERED, 0.0)

    assert [sending.apply_answer(each, WriteOutcome.UNANSWERED, 0.1) for each in (GO, GO_TOO, ELSEWHERE)] == [False] * 3

    assert (hands.woken, sending.is_paused(0.2)) == ([0.2, 0.1, 0.1, 0.1], False)


def test_of_very_many_refusals_only_those_that_are_over_are_forgotten(sending: Outbox, hands: Hands) -> None:
    touches = [TouchPod(member(f"m-{number}"), PLAN.key) for number in range(10_003)]
    for number, touch in enumerate(touches):
        sending.apply_answer(touch, WriteOutcome.CONFLICT, number / 1000)

    sending.submit_action(touches[0], 10.1)
    sending.submit_action(touches[-1], 10.1)

    assert hands.written == [touches[0]]


@pytest.mark.parametrize(
    ("what", "version", "namespace"),
    [
        (CreateLedger("gpus", LedgerSpec()), "", ""),
        (SWAP, "3", ""),
        (DropRegistration(BOOK, LedgerStatus()), "3", ""),
        (MADE, "", "team"),
        (CreateReservation("gputopo", "pods-1", ReservationSpec("")), "", "gputopo"),
        (WriteStatus(PLAN, ReservationStatus()), "5", "team"),
        (DeleteReservation(PLAN), "5", "team"),
        (GO, "7", "team"),
        (ELSEWHERE, "7", "other"),
        (ReleasePod(GO.member, "", ""), "7", "team"),
        (TouchPod(GO.member, PLAN.key), "7", "team"),
        (StripFinalizer(GO.member, "f"), "7", "team"),
        (DeletePod(GO.member), "7", "team"),
        (ProbeExtenderPod("x", "team/x"), "", ""),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else each,
)
def test_what_a_write_is_of(what: Action, version: str, namespace: str) -> None:
    assert (version_of(what), namespace_of(what)) == (version, namespace)
