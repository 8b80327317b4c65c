"""The planner's status, on /gangs and in metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gputopo.crd.reservations import ReservationState, ReservationStatus
from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.gangs_page import gangs_page, snapshot
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.metrics import status_samples
from scheduler_core.planner.status import HoldStatus, PlannerStatus, QueuedGangStatus, planner_status
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod_request import InvalidRequest
from tests.scheduler_core.planner.gang.gang_pods import BOUND, LLM, RUNNING, member, members
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, entry, ledger, plan


def status_of(
    found: Iterable[Member], *kept: tuple[ReservationUpdate, Any], unlisted: ReservationUpdate | None = None
) -> PlannerStatus:
    """Return the status of a leader that has seen these objects."""
    term = LeaderTerm(
        PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), {}),
        lambda: BUILT_IN,
        "me",
        IdleExecutor(),
        TermClock(),
    )
    reservations = [each for each, _ in kept] + ([] if unlisted is None else [unlisted])
    term.apply_batch(
        Batch(PlannerPod, tuple(PlannerPod(each.uid, None, each) for each in found), (), is_full_list=True)
    )
    term.apply_batch(Batch(ReservationUpdate, tuple(reservations), (), is_full_list=True))
    term.apply_batch(
        Batch(LedgerUpdate, (ledger(*(entry(each, phase) for each, phase in kept)),), (), is_full_list=True)
    )
    term.leads = True
    return planner_status(term, True, None, (), 0.0)


def page_of(found: PlannerStatus) -> Any:
    """The first page of /gangs."""
    return json.loads(gangs_page(snapshot(found, 200.0)).body)


def phases(found: PlannerStatus) -> dict[GangName, tuple[str, str | None]]:
    return {each.gang.name: (each.phase, each.reservation) for each in found.gangs}


def test_gpus_are_reserved_for_members_without_a_node() -> None:
    there = [member("w-0", BOUND), member("w-1", BOUND, node=None)]
    seats = plan("llm-1", {"w-0": ("n1", 8), "w-1": ("n2", 4)})
    held = plan("hold-1", held={"n3": 2}, gang="other")

    assert status_of(there, (seats, COMMITTED), (held, HELD)).held_gpus == 6


def test_a_batch_of_single_pods_is_counted_once() -> None:
    names = [GangName("team", f"pod.{name}") for name in "abc"]
    pods = [member(name.name[-1], gang=name, size=1) for name in names]
    batch = plan("pods-1", dict.fromkeys("abc", ("n1", 1)), gang="")

    found = status_of(pods, (batch, COMMITTED))

    assert found.held_gpus == 3
    assert phases(found) == dict.fromkeys(names, ("committed", "pods-1"))


def test_a_failed_reservation_reserves_nothing_and_ends_once_the_gang_runs() -> None:
    failed = plan("llm-1", {"w-0": ("n1", 8)}, status=ReservationStatus(ReservationState.FAILED, "too late"))

    waiting = status_of(members(1), unlisted=failed)
    running = status_of(members(1, RUNNING), unlisted=failed)

    assert (waiting.held_gpus, phases(waiting)) == (0, {LLM: ("failed", "llm-1")})
    assert phases(running) == {LLM: ("running", None)}


def test_a_pod_with_an_invalid_gang_is_listed_by_its_own_name() -> None:
    name = GangName("team", "pod.uid-p")
    refused = member("p", gang=name, request=InvalidRequest("gputopo.io/gang: 'Bad_Name' is not a name"))
    found = status_of([refused])

    (page,) = page_of(found)["pods"]
    assert (page["pod"], page["phase"], page["reason"]) == (
        "p",
        "refused",
        "p: gputopo.io/gang: 'Bad_Name' is not a name",
    )
    assert ("gputopo_planner_gangs", ("refused",), 1) in list(status_samples(found, 200.0))


def test_holds_and_limits_are_in_the_metrics() -> None:
    gang = QueuedGangStatus(Gang(LLM, GangPhase.QUEUED, ""), "queued", "", limit="heldGpus")
    found = PlannerStatus(True, None, gangs=(gang,), holds=(HoldStatus("a", 8, 100.0, 2), HoldStatus("a", 4, 150.0, 0)))

    samples = list(status_samples(found, 200.0))

    assert [each for each in samples if "_hold_" in each[0] or "limited" in each[0]] == [
        ("gputopo_planner_capacity_hold_gpus", (), 12),
        ("gputopo_planner_capacity_hold_age_seconds", (), 100.0),
        ("gputopo_planner_capacity_hold_higher_priority_pods", (), 2),
        ("gputopo_planner_limited_gangs", ("queuedGangs",), 0),
        ("gputopo_planner_limited_gangs", ("gatedPods",), 0),
        ("gputopo_planner_limited_gangs", ("startingGangs",), 0),
        ("gputopo_planner_limited_gangs", ("heldGpus",), 1),
        ("gputopo_planner_limited_gangs", ("maxHoldAge",), 0),
    ]
    assert page_of(found)["gangs"][0]["limit"] == "heldGpus"


def test_a_follower_reports_the_leader() -> None:
    page = page_of(planner_status(None, False, None, (), 0.0, "planner-0_1f"))

    assert (page["leads"], page["holder"], page["gangs"]) == (False, "planner-0_1f", [])
