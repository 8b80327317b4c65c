"""The planner's pages and metrics."""

from __future__ import annotations

import json
from pathlib import Path

from gputopo.crd.reservations import Preemption, ReservationState, ReservationStatus
from scheduler_core.planner.commit.actions import ReleasePod, TouchPod, WriteStatus
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.metrics import PlannerMetrics, status_samples
from scheduler_core.planner.status import PlannerStatus
from scheduler_core.planner.status_page import planner_app
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import plan
from tests.scheduler_core.planner.serving_planner import Elected, nowhere, serving
from tests.scheduler_core.runtime.served import serving as served


def test_a_follower_serves_its_pages(tmp_path: Path) -> None:
    metrics = PlannerMetrics()
    service = serving(nowhere(tmp_path), Elected(None, "403: no"))
    metrics.register_status(service.status)
    with served(planner_app(service, metrics.registry)) as running:
        ready, gangs, metrics_page = (running.ask("GET", path) for path in ("/readyz", "/gangs", "/metrics"))

    assert ready == (503, b"no planner holds the Lease yet: 403: no\n")
    assert json.loads(gangs[1])["leads"] is False
    lines = metrics_page[1].decode().splitlines()
    assert [line for line in lines if line.startswith("gputopo_planner_leader ")] == ["gputopo_planner_leader 0.0"]


def test_with_a_stale_cache_the_leader_is_not_ready() -> None:
    status = PlannerStatus(is_leader=True, not_ready_reason="nothing is planned", is_stale=True)
    found = {name: value for name, _, value in status_samples(status, 0.0)}

    assert (found["gputopo_planner_leader"], found["gputopo_planner_ready"], found["gputopo_planner_cache_stale"]) == (
        True,
        False,
        True,
    )


def test_work_counts_as_lost_only_where_pods_were_evicted() -> None:
    """A preemption that was stopped before the first eviction counted as lost work, and a stuck one once more."""
    metrics = PlannerMetrics()
    for outcome in ("begun", "stuck", "won", "stopped"):
        metrics.count_preemption(outcome, Preemption((), "rule", gpu_hours=2.0, cost=3.0))
    metrics.count_dry_run(4.0, 5.0)
    metrics.count_dry_run(0.5, None)

    def counted(name: str) -> dict[str, float]:
        family = next(each for each in metrics.registry.collect() if each.name == name)
        return {each.labels["outcome"]: each.value for each in family.samples if each.name.endswith("_total")}

    assert counted("gputopo_planner_preemptions").keys() == {"begun", "stuck", "won", "stopped"}
    assert counted("gputopo_planner_preemption_lost_gpu_hours") == {"begun": 2.0, "won": 2.0, "dry-run": 4.5}
    assert counted("gputopo_planner_preemption_lost_cost") == {"begun": 3.0, "won": 3.0, "dry-run": 5.0}


def test_writes_waits_plans_and_events_are_counted() -> None:
    metrics, pod, reservation = PlannerMetrics(), member("a"), plan("llm-1")
    late = ReservationStatus(ReservationState.ROLLING_BACK)
    rolling_back, again = WriteStatus(reservation, late), WriteStatus(reservation._replace(status=late), late)
    for what, outcome in (
        (ReleasePod(pod, "no place", "gate-timeout"), WriteOutcome.DONE),
        (ReleasePod(pod, "no place", "gate-timeout"), WriteOutcome.CONFLICT),
        (rolling_back, WriteOutcome.DONE),
        (again, WriteOutcome.DONE),
        (TouchPod(pod, "x"), WriteOutcome.DONE),
    ):
        metrics.count_answer(WriteAnswer(what, outcome))
    metrics.count_wait("bound", 2.0, alone=True)
    metrics.count_plan(0.2, placed=False)
    metrics.count_event("written")

    def said(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert said("gputopo_planner_released_total", reason="gate-timeout") == 1.0
    assert said("gputopo_planner_writes_total", kind="ReleasePod", outcome="conflict") == 1.0
    assert said("gputopo_planner_rollbacks_total") == 1.0
    assert said("gang_scheduling_wait_seconds_sum", outcome="bound", kind="single") == 2.0
    assert said("gputopo_planner_plan_seconds_count", outcome="unplaced") == 1.0
    assert said("gputopo_planner_events_total", outcome="written") == 1.0
