"""The planner's page /gangs as it is read back."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.gangs_page import gangs_page, snapshot
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionPlan, VictimPod
from scheduler_core.planner.report.planner_page import (
    DryRunState,
    MissingMember,
    NotAPlannerError,
    PlannerGangState,
    UnitCost,
    parse_planner_page,
)
from scheduler_core.planner.status import PlannerStatus, QueuedGangStatus
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.gang.gang_pods import LLM, members

VICTIM = VictimPod("v", "b", "old", "n1", (("nvidia.com/gpu", 2),), gpu_hours=1.25, cost=3.5)


def page(dry: tuple[EvictionUnit, ...] = (), **changed: Any) -> bytes:
    """As a planner writes it."""
    roster = GangMembers()
    roster.apply_members(Batch(Member, tuple(members(2)), (), is_full_list=True))
    gang = roster.get_gang(LLM)
    assert gang is not None
    missing = (("w-1", "too few"),)
    waiting = QueuedGangStatus(gang, "queued", "1 of 2 members fits at once", None, missing, 2, 30.0, since=NOW - 90.0)
    if dry:
        waiting = waiting._replace(dry_run=PreemptionPlan(gang, dry, ()))
    status = PlannerStatus(is_leader=True, not_ready_reason=None, gangs=(waiting,))._replace(**changed)
    return gangs_page(snapshot(status, NOW)).body


def test_the_page_has_an_entry_for_each_gang() -> None:
    missing = (MissingMember("w-1", "too few"),)
    said = PlannerGangState("team", "llm", "queued", "1 of 2 members fits at once", missing, 2, 30.0, waiting_s=90.0)

    assert parse_planner_page(page()) == {LLM: said}


def test_a_dry_run_is_reported() -> None:
    unit = EvictionUnit("b/old", (VICTIM,), rule="scavengers", reason="scavenger, last checkpoint 3 min ago")
    state = parse_planner_page(page((unit,)))[LLM]

    reason = "evicts 1 pod of b/old; 1.2 GPU-hours of work are lost"
    costs = (UnitCost("b/old", 1, 1.25, 3.5, "scavengers", "scavenger, last checkpoint 3 min ago"),)
    assert state.dry_run == DryRunState(("b/old",), 1, 1.25, "scavengers", 3.5, reason, costs)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b'{"kind": "PodExplanation"}', "not the page /gangs of a planner: ", id="another page"),
        pytest.param(b"\xff\xfe", "not the page /gangs of a planner: ", id="no text"),
        pytest.param(page(is_leader=False), "this planner does not lead", id="a planner that waits"),
    ],
)
def test_documents_that_are_no_planner_page(text: bytes, why: str) -> None:
    with pytest.raises(NotAPlannerError, match=f"^{why}"):
        parse_planner_page(text)
