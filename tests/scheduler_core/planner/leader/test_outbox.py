"""Which writes are sent, and which wait."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import LedgerSpec, LedgerStatus, ReservationSpec, ReservationStatus
from scheduler_core.planner.commit.actions import (
    AskForPod,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    LetGo,
    Release,
    StripFinalizer,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.state import Terms
from scheduler_core.planner.leader.context import Clock, Given, Settled
from scheduler_core.planner.leader.outbox import Sending, namespace_of, version_of
from scheduler_core.planner.leader.queue import Pace
from scheduler_core.planner.leader.view import View
from scheduler_core.planner.leader.writer import Outcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import Idle
from tests.scheduler_core.planner.packing.plans import ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1)})._replace(version="5")
BOOK = ledger(generation=3)
MADE = CreateReservation("team", "llm-1", PLAN.spec)
GO = LetGo(member("w-0"), PLAN.spec.seats[0], PLAN.name)
GO_TOO = LetGo(member("w-1"), PLAN.spec.seats[0], PLAN.name)
ELSEWHERE = LetGo(member("x-0", namespace="other"), PLAN.spec.seats[0], PLAN.name)
SWAP = WriteLedger(BOOK, LedgerSpec("me"))


class Hands(Idle):
    """What was handed over."""

    def __init__(self) -> None:
        self.written: list[Write] = []
        self.woken: list[float] = []

    def write(self, what: Write) -> None:
        """Nothing answers by itself."""
        self.written.append(what)

    def wake(self, seconds: float) -> None:
        """Nobody sleeps."""
        self.woken.append(seconds)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def sending(hands: Hands) -> Sending:
    given = Given(Settled("gpus", "gputopo", Terms(), Pace(), LEVELS), lambda: BUILT_IN, hands, Clock())
    return Sending(given, View(Policy(), "gpus", "me"))


def test_of_one_object_one_write_is_under_way(sending: Sending, hands: Hands) -> None:
    sending.submit(GO, 0.0)
    sending.submit(Touch(GO.member, PLAN.key), 0.0)
    assert (hands.written, sending.busy) == ([GO], True)

    assert sending.answered(GO, Outcome.DONE, 0.0) is False
    sending.submit(Touch(GO.member, PLAN.key), 0.0)
    assert hands.written[1:] == [Touch(GO.member, PLAN.key)]


def test_a_plan_is_being_written_until_it_is_answered(sending: Sending) -> None:
    sending.submit(MADE, 0.0)
    assert sending.plans

    assert sending.answered(MADE, Outcome.DEPOSED, 0.0) is False
    assert (sending.plans, sending.busy) == (False, False)


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [(Outcome.DONE, 2.0), (Outcome.CONFLICT, 2.0), (Outcome.GONE, 2.0), (Outcome.AWAY, 2.0), (Outcome.REFUSED, 30.0)],
    ids=lambda each: each.value if isinstance(each, Outcome) else "",
)
def test_the_same_is_not_sent_again_at_once(sending: Sending, hands: Hands, outcome: Outcome, seconds: float) -> None:
    sending.submit(GO, 0.0)
    untaken = sending.answered(GO, outcome, 0.0)

    sending.submit(GO, seconds - 1)
    assert (untaken, hands.written, hands.woken[-1]) == (outcome is not Outcome.DONE, [GO], 1.0)
    sending.submit(GO, seconds)
    assert hands.written == [GO, GO]


def test_what_was_worked_out_from_another_version_is_sent_at_once(sending: Sending, hands: Hands) -> None:
    newer = GO._replace(member=GO.member._replace(version="8"))
    sending.submit(GO, 0.0)
    sending.answered(GO, Outcome.CONFLICT, 0.0)

    sending.submit(newer, 0.0)

    assert hands.written == [GO, newer]


def test_a_ledger_that_was_written_is_written_again_as_soon_as_there_is_more(sending: Sending, hands: Hands) -> None:
    sending.submit(SWAP, 0.0)
    sending.answered(SWAP, Outcome.DONE, 0.0)

    sending.submit(SWAP, 0.0)

    assert hands.written == [SWAP, SWAP]


@pytest.mark.parametrize(
    "unanswered", [pytest.param(SWAP, id="the ledger"), pytest.param(ELSEWHERE, id="another namespace too")]
)
def test_where_nobody_answers_nothing_is_sent_for_a_while_that_doubles(
    sending: Sending, hands: Hands, unanswered: Write
) -> None:
    assert sending.answered(GO, Outcome.AWAY, 0.0)
    assert not sending.paused(0.0)

    now = 0.0
    for pause in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        assert not sending.answered(unanswered, Outcome.AWAY, now)
        assert hands.woken[-1] == pytest.approx(pause)
        assert sending.paused(now)
        now += pause
        assert not sending.paused(now)
    sending.answered(GO_TOO, Outcome.DONE, now)
    sending.answered(SWAP, Outcome.AWAY, now)
    assert hands.woken[-1] == pytest.approx(0.2)


def test_writes_that_were_under_way_when_nobody_answered_make_no_pause_longer(sending: Sending, hands: Hands) -> None:
    sending.answered(SWAP, Outcome.AWAY, 0.0)

    assert [sending.answered(each, Outcome.AWAY, 0.1) for each in (GO, GO_TOO, ELSEWHERE)] == [False] * 3

    assert (hands.woken, sending.paused(0.2)) == ([0.2, 0.1, 0.1, 0.1], False)


def test_of_very_many_refusals_only_those_that_are_over_are_forgotten(sending: Sending, hands: Hands) -> None:
    touches = [Touch(member(f"m-{number}"), PLAN.key) for number in range(10_003)]
    for number, touch in enumerate(touches):
        sending.answered(touch, Outcome.CONFLICT, number / 1000)

    sending.submit(touches[0], 10.1)
    sending.submit(touches[-1], 10.1)

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
        (Release(GO.member, "", ""), "7", "team"),
        (Touch(GO.member, PLAN.key), "7", "team"),
        (StripFinalizer(GO.member, "f"), "7", "team"),
        (DeletePod(GO.member), "7", "team"),
        (AskForPod("x", "team/x"), "", ""),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else each,
)
def test_what_a_write_is_of(what: Write, version: str, namespace: str) -> None:
    assert (version_of(what), namespace_of(what)) == (version, namespace)
