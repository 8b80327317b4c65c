"""The effects of answers of the API server on the backlog, the view and Events."""

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
from scheduler_core.planner.leader.backlog import AVOID_NODE_S, WITHDRAWN, WITHDRAWN_NODE_S, GangBacklog
from scheduler_core.planner.leader.context import PlannerConfig, TermClock, TermContext
from scheduler_core.planner.leader.outbox import Outbox
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.packing.model import LEVELS, Unplaced
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod_request import InvalidRequest
from scheduler_core.runtime.event_writer import EventDraft
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, member, members
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

PLAN = plan("llm-1", {"w-0": ("n1", 1), "w-1": ("n2", 1)})
TOUCH = TouchPod(member("w-0"), PLAN.key)
ALONE = GangName("team", "pod.uid-a")
BATCH = plan("pods-1", {"a": ("n1", 1), "gone": ("n2", 1)}, gang="")


class RecordingExecutor(IdleExecutor):
    """Records Events and waiting times."""

    def __init__(self) -> None:
        self.events: list[EventDraft] = []
        self.waits: list[tuple[str, GangName, float]] = []

    def write_event(self, draft: EventDraft) -> None:
        self.events.append(draft)

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        self.waits.append((outcome, gang.name, seconds))


class Parts(NamedTuple):
    """The parts of a term that answers affect."""

    executor: RecordingExecutor
    view: PlannerView
    backlog: GangBacklog
    outbox: Outbox

    def show_pods(self, *found: Member) -> None:
        """Apply these pods as the watch shows them."""
        touched = self.view.apply_batch(
            Batch(PlannerPod, tuple(PlannerPod(each.uid, None, each) for each in found)), 0.0
        )
        for name in touched:
            self.backlog.update_gang(name, self.view.gang_members.get_gang(name))

    def answer(self, action: Action, outcome: WriteOutcome, error: str = "") -> None:
        """The API server answers a write, at second 50."""
        self.outbox.apply_answer(WriteAnswer(action, outcome, error=error))

    def remove_entry(self, reservation: ReservationUpdate, phase: EntryPhase) -> None:
        """The ledger listed this reservation, and lists it no more."""
        self.view.apply_batch(Batch(ReservationUpdate, (reservation,)), 0.0)
        over = ledger(entry(reservation, phase))
        self.view.apply_batch(Batch(LedgerUpdate, (over,)), 0.0)
        action = WriteLedger(over, without_entries(over.spec, [reservation.key]))
        self.outbox.apply_answer(
            WriteAnswer(action, WriteOutcome.DONE, ObjectMeta("gpus", "L", resource_version="9", generation=9))
        )


@pytest.fixture
def parts() -> Parts:
    executor = RecordingExecutor()
    config = PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), LEVELS)
    context = TermContext(config, lambda: BUILT_IN, executor, TermClock(lambda: 50.0, lambda: 1000.0))
    view = PlannerView(Policy(), "gpus", "me")
    backlog = GangBacklog(context, view.gang_members)
    return Parts(executor, view, backlog, Outbox(context, view, backlog))


def test_a_withdrawn_proposal_is_not_planned_again_at_once_and_then_on_other_nodes(parts: Parts) -> None:
    parts.show_pods(*members(2))
    nodes = {seat.node for seat in PLAN.spec.seats}

    parts.remove_entry(PLAN, PROPOSED)

    (waiting,) = parts.backlog.queue.ordered()
    assert parts.backlog.unplaced == {LLM: Unplaced(WITHDRAWN)}
    assert waiting.unfit_state is not None
    assert parts.backlog.avoided_nodes(LLM, 50.0) == nodes
    assert parts.backlog.avoided_nodes(LLM, 50.0 + WITHDRAWN_NODE_S) == set()


@pytest.mark.parametrize(
    ("reservation", "phase", "waits"),
    [
        pytest.param(BATCH, COMMITTED, [("bound", ALONE, 900.0)], id="bound single pods"),
        pytest.param(PLAN, COMMITTED, [], id="a gang, counted when its status was written"),
        pytest.param(plan("llm-h", held={"n1": 1}), HELD, [], id="a capacity hold"),
    ],
)
def test_waits_that_end_when_the_ledger_removes_an_entry(
    parts: Parts, reservation: ReservationUpdate, phase: EntryPhase, waits: list[tuple[str, GangName, float]]
) -> None:
    parts.show_pods(member("a", BOUND, gang=ALONE), *members(2, BOUND))

    parts.remove_entry(reservation, phase)

    assert (parts.executor.waits, parts.backlog.unplaced) == (waits, {})


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        pytest.param(SilentExtender(3, 10.0), False, SilentExtender(3, 10.0, probed_at=50.0), id="its pod runs"),
        pytest.param(
            SilentExtender(3, 10.0), True, SilentExtender(3, 10.0, probed_at=50.0, gone_at=50.0), id="it has ended"
        ),
        pytest.param(
            SilentExtender(3, 10.0, 20.0, 20.0), True, SilentExtender(3, 10.0, 50.0, 20.0), id="it had ended before"
        ),
    ],
)
def test_the_pod_of_a_silent_extender_is_recorded(
    parts: Parts, before: SilentExtender, after: SilentExtender, *, gone: bool
) -> None:
    parts.view.observations = parts.view.observations._replace(silent_extenders={"x": before})

    outcome = WriteOutcome.GONE if gone else WriteOutcome.DONE
    parts.answer(ProbeExtenderPod("x", "team/x"), outcome)
    parts.answer(ProbeExtenderPod("not-silent-any-more", "team/y"), outcome)

    assert parts.view.observations.silent_extenders == {"x": after}


def test_invalid_members_get_an_event(parts: Parts) -> None:
    parts.show_pods(member("w-0", request=InvalidRequest("gang-size: 0")))

    assert [(each.reason, each.message) for each in parts.executor.events] == [
        ("GangRefused", "gang llm: w-0: gang-size: 0")
    ]


def test_a_refused_capacity_hold_starts_no_back_off(parts: Parts) -> None:
    parts.show_pods(*members(2))
    hold = plan("llm-h", held={"n1": 1})

    parts.backlog.mark_refused(CreateReservation("team", "llm-h", hold.spec), "no")

    assert (parts.backlog.unplaced, [each.rollbacks for each in parts.backlog.queue.ordered()]) == ({}, [0])


def test_a_gang_without_pods_backs_off_and_gets_no_event(parts: Parts) -> None:
    parts.backlog.mark_refused(CreateReservation("team", PLAN.name, PLAN.spec), "no")
    parts.show_pods(*members(2))

    assert ([each.rollbacks for each in parts.backlog.queue.ordered()], parts.executor.events) == ([1], [])


def test_unbound_pods_avoid_their_nodes_for_a_while(
    parts: Parts,
) -> None:
    reached, late = member("a", BOUND, gang=ALONE), member("b", gang=GangName("team", "pod.uid-b"))
    parts.show_pods(reached, late)
    batch = plan("pods-2", {"a": ("n1", 1), "b": ("n2", 1), "gone": ("n3", 1)}, gang="")

    parts.backlog.mark_rolled_back(batch, "late")

    names = [late.gang_request.gang, ALONE]
    assert parts.backlog.all_avoided_nodes(names, 50.0) == {late.gang_request.gang: frozenset({"n2"})}
    assert parts.backlog.avoided_nodes(late.gang_request.gang, 50.0 + AVOID_NODE_S) == frozenset()
    assert parts.backlog.avoided_nodes(ALONE, 50.0) == frozenset()


def test_only_refused_writes_of_pods_are_recorded(parts: Parts) -> None:
    parts.answer(CreateReservation("team", PLAN.name, PLAN.spec), WriteOutcome.REFUSED, "no")
    assert parts.view.observations.refused_writes == {}

    parts.answer(TOUCH, WriteOutcome.UNANSWERED, "no answer")
    assert parts.view.observations.refused_writes == {
        (TouchPod, "uid-w-0"): RefusedWrite(50.0, 50.0, "no answer", answered=False)
    }
    assert parts.view.observations.touched == frozenset()


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(TouchPod(member("x-0", namespace="other"), PLAN.key), id="pods of other namespaces"),
        pytest.param(WriteStatus(PLAN, PLAN.status), id="its reservation"),
    ],
)
def test_unanswered_writes_are_forgotten_when_more_than_pods_of_one_namespace_are_not_answered(
    parts: Parts, action: Action
) -> None:
    parts.answer(DeletePod(member("w-0")), WriteOutcome.REFUSED, "no")
    parts.answer(TOUCH, WriteOutcome.UNANSWERED, "no answer")
    assert len(parts.view.observations.refused_writes) == 2

    parts.answer(action, WriteOutcome.UNANSWERED, "no answer")

    assert parts.view.observations.refused_writes == {(DeletePod, "uid-w-0"): RefusedWrite(50.0, 50.0, "no")}
