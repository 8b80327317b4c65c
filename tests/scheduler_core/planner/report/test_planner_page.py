"""The planner's page /gangs as it is read back."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.members import Roster
from scheduler_core.planner.gangs_page import gangs_page, snapshot
from scheduler_core.planner.report.planner_page import Missing, NotAPlannerError, Said, read_said
from scheduler_core.planner.status import GangStatus, Status
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.gang.gang_pods import LLM, members


def page(**changed: Any) -> bytes:
    """As a planner writes it."""
    roster = Roster()
    roster.take(Batch(Member, tuple(members(2)), (), complete=True))
    gang = roster.gang(LLM)
    assert gang is not None
    missing = (("w-1", "too few"),)
    waiting = GangStatus(gang, "queued", "1 of 2 members fits at once", None, missing, 2, 30.0, since=NOW - 90.0)
    status = Status(leads=True, unready=None, gangs=(waiting,))._replace(**changed)
    return gangs_page(snapshot(status, NOW)).body


def test_what_it_says_of_each_gang() -> None:
    missing = (Missing("w-1", "too few"),)
    said = Said("team", "llm", "queued", "1 of 2 members fits at once", missing, 2, 30.0, waiting_s=90.0)

    assert read_said(page()) == {LLM: said}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b'{"kind": "PodExplanation"}', "this is no planner's page /gangs: ", id="another page"),
        pytest.param(b"\xff\xfe", "this is no planner's page /gangs: ", id="no text"),
        pytest.param(page(leads=False), "this planner does not lead", id="a planner that waits"),
    ],
)
def test_what_is_no_such_page(text: bytes, why: str) -> None:
    with pytest.raises(NotAPlannerError, match=f"^{why}"):
        read_said(text)
