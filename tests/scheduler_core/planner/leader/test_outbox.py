"""The writes that are sent at once, and the writes that are sent after a delay."""

from __future__ import annotations

import msgspec
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
from scheduler_core.planner.leader.backlog import GangBacklog
from scheduler_core.planner.leader.context import PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.outbox import Outbox
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1)})._replace(version="5")
BOOK = ledger(generation=3)
MADE = CreateReservation("team", "llm-1", PLAN.spec)
GO = UngateAndPin(member("w-0"), PLAN.spec.seats[0], PLAN.name)
GO_TOO = UngateAndPin(member("w-1"), PLAN.spec.seats[0], PLAN.name)
ELSEWHERE = UngateAndPin(member("x-0", namespace="other"), PLAN.spec.seats[0], PLAN.name)
SWAP = WriteLedger(BOOK, LedgerSpec("me"))


class RecordingExecutor(IdleExecutor):
    """Records writes and rounds."""

    def __init__(self) -> None:
        self.written: list[Action] = []
        self.woken: list[float] = []
        self.renewed_at = float("-inf")

    def lease_renewed_at(self) -> float:
        """Return the given time."""
        return self.renewed_at

    def execute_action(self, what: Action) -> None:
        """Record the write."""
        self.written.append(what)

    def schedule_round(self, seconds: float) -> None:
        """Record the round."""
        self.woken.append(seconds)


@pytest.fixture
def executor() -> RecordingExecutor:
    return RecordingExecutor()


@pytest.fixture
def outbox(executor: RecordingExecutor) -> Outbox:
    config = PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), LEVELS)
    given = TermContext(config, lambda: BUILT_IN, executor, TermClock())
    view = PlannerView(Policy(), "gpus", "me")
    return Outbox(given, view, GangBacklog(given, view.gang_members))


def test_an_object_has_one_write_in_flight(outbox: Outbox, executor: RecordingExecutor) -> None:
    outbox.submit_action(GO, 0.0)
    outbox.submit_action(TouchPod(GO.member, PLAN.key), 0.0)
    assert (executor.written, outbox.is_busy) == ([GO], True)

    assert outbox.record_outcome(GO, WriteOutcome.DONE, 0.0) is False
    outbox.submit_action(TouchPod(GO.member, PLAN.key), 0.0)
    assert executor.written[1:] == [TouchPod(GO.member, PLAN.key)]


def test_a_plan_is_being_written_until_it_is_answered(outbox: Outbox) -> None:
    outbox.submit_action(MADE, 0.0)
    assert outbox.is_writing_plan

    assert outbox.record_outcome(MADE, WriteOutcome.DEPOSED, 0.0) is False
    assert (outbox.is_writing_plan, outbox.is_busy) == (False, False)


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
def test_the_same_write_backs_off(
    outbox: Outbox, executor: RecordingExecutor, outcome: WriteOutcome, seconds: float
) -> None:
    outbox.submit_action(GO, 0.0)
    untaken = outbox.record_outcome(GO, outcome, 0.0)

    outbox.submit_action(GO, seconds - 1)
    assert (untaken, executor.written, executor.woken[-1]) == (outcome is not WriteOutcome.DONE, [GO], 1.0)
    outbox.submit_action(GO, seconds)
    assert executor.written == [GO, GO]


def test_a_write_based_on_another_version_does_not_back_off(outbox: Outbox, executor: RecordingExecutor) -> None:
    newer = msgspec.structs.replace(GO, member=GO.member._replace(version="8"))
    outbox.submit_action(GO, 0.0)
    outbox.record_outcome(GO, WriteOutcome.CONFLICT, 0.0)

    outbox.submit_action(newer, 0.0)

    assert executor.written == [GO, newer]


def test_the_next_ledger_write_does_not_back_off(outbox: Outbox, executor: RecordingExecutor) -> None:
    outbox.submit_action(SWAP, 0.0)
    outbox.record_outcome(SWAP, WriteOutcome.DONE, 0.0)

    outbox.submit_action(SWAP, 0.0)

    assert executor.written == [SWAP, SWAP]


@pytest.mark.parametrize(
    "unanswered", [pytest.param(SWAP, id="the ledger"), pytest.param(ELSEWHERE, id="another namespace too")]
)
def test_an_unavailable_api_server_pauses_all_writes_for_a_doubling_time(
    outbox: Outbox, executor: RecordingExecutor, unanswered: Action
) -> None:
    assert outbox.record_outcome(GO, WriteOutcome.UNANSWERED, 0.0)
    assert not outbox.is_paused(0.0)

    now = 0.0
    for pause in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0):
        assert not outbox.record_outcome(unanswered, WriteOutcome.UNANSWERED, now)
        assert executor.woken[-1] == pytest.approx(pause)
        assert outbox.is_paused(now)
        now += pause
        assert not outbox.is_paused(now)
    outbox.record_outcome(GO_TOO, WriteOutcome.DONE, now)
    outbox.record_outcome(SWAP, WriteOutcome.UNANSWERED, now)
    assert executor.woken[-1] == pytest.approx(0.2)


def test_an_api_server_that_renews_the_lease_is_not_unavailable(outbox: Outbox, executor: RecordingExecutor) -> None:
    executor.renewed_at = 0.0

    assert [outbox.record_outcome(each, WriteOutcome.UNANSWERED, 5.0) for each in (GO, ELSEWHERE)] == [True, True]
    assert not outbox.is_paused(5.0)
    assert not outbox.record_outcome(GO, WriteOutcome.UNANSWERED, 5.1)
    assert outbox.is_paused(5.1)


def test_a_write_without_an_answer_is_sent_again_after_a_doubling_time(
    outbox: Outbox, executor: RecordingExecutor
) -> None:
    for _ in range(5):
        outbox.record_outcome(GO, WriteOutcome.UNANSWERED, 0.0)

    assert executor.woken == [2.0, 4.0, 8.0, 16.0, 16.0]


def test_writes_in_flight_do_not_extend_a_pause(outbox: Outbox, executor: RecordingExecutor) -> None:
    outbox.record_outcome(SWAP, WriteOutcome.UNANSWERED, 0.0)

    assert [outbox.record_outcome(each, WriteOutcome.UNANSWERED, 0.1) for each in (GO, GO_TOO, ELSEWHERE)] == [
        False
    ] * 3

    assert (executor.woken, outbox.is_paused(0.2)) == ([0.2, 0.1, 0.1, 0.1], False)


def test_only_expired_back_offs_are_dropped(outbox: Outbox, executor: RecordingExecutor) -> None:
    touches = [TouchPod(member(f"m-{number}"), PLAN.key) for number in range(10_003)]
    for number, touch in enumerate(touches):
        outbox.record_outcome(touch, WriteOutcome.CONFLICT, number / 1000)

    outbox.submit_action(touches[0], 10.1)
    outbox.submit_action(touches[-1], 10.1)

    assert executor.written == [touches[0]]


def test_expired_back_offs_do_not_pile_up(outbox: Outbox) -> None:
    for number in range(2_000):
        outbox.record_outcome(TouchPod(member(f"m-{number}"), PLAN.key), WriteOutcome.DONE, 10.0 * number)

    assert len(outbox._backed_off) <= 256


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
def test_version_and_namespace_of_a_write(what: Action, version: str, namespace: str) -> None:
    assert (what.version, what.namespace) == (version, namespace)
