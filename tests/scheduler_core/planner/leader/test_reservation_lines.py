"""The log of reservations: proposed, committed, bound, rolled back, with durations."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import PlannedMember, ReservationSpec, ReservationState, ReservationStatus
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation, WriteStatus
from scheduler_core.planner.leader.reservation_lines import LINES_PER_S, ReservationLines
from scheduler_core.planner.metrics import TIMES

SPEC = ReservationSpec("llm", (PlannedMember("u0", "llm-0", "n1"), PlannedMember("u1", "llm-1", "n2")))
UPDATE = ReservationUpdate("uid", "team", "llm-1", SPEC, "hash")


def became(state: ReservationState, before: ReservationState | None, reason: str | None = None) -> WriteStatus:
    return WriteStatus(UPDATE._replace(status=ReservationStatus(before)), ReservationStatus(state, reason))


def test_each_step_of_a_reservation_is_a_line_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    lines = ReservationLines(lambda: now[0])
    steps = (
        CreateReservation("team", "llm-1", SPEC),
        became(ReservationState.PROPOSED, None),
        became(ReservationState.COMMITTED, ReservationState.PROPOSED),
        became(ReservationState.COMMITTED, ReservationState.COMMITTED, "another reason"),
        became(ReservationState.BOUND, ReservationState.COMMITTED),
        became(ReservationState.ROLLING_BACK, ReservationState.COMMITTED, "llm-1 is gone"),
    )
    with caplog.at_level(logging.INFO, "scheduler_core.planner.leader.reservation_lines"):
        for action in steps:
            lines.write_done(action, 0.5)
            now[0] += 2.0
        lines.write_wait("team/llm", "placed", 61.25)

    fields: list[dict[str, Any]] = [each.__dict__["fields"] for each in caplog.records]
    assert [(each.get("state"), each.get("since_planned_s")) for each in fields[:-1]] == [
        ("proposed", 0.5),
        ("committed", 4.5),
        ("bound", 8.5),
        ("rolling-back", 10.5),
    ]
    assert fields[0] == {
        "state": "proposed",
        "reservation": "team/llm-1",
        "gang": "team/llm",
        "pods": 2,
        "nodes": 2,
        "on": ["n1", "n2"],
        "attempt": 1,
        "since_planned_s": 0.5,
        "write_s": 0.5,
        "reason": None,
    }
    assert fields[3]["reason"] == "llm-1 is gone"
    assert fields[-1] == {"gang": "team/llm", "outcome": "placed", "waited_s": 61.25}


def test_a_reservation_of_an_earlier_planner_has_no_known_duration(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "scheduler_core.planner.leader.reservation_lines"):
        ReservationLines().write_done(became(ReservationState.BOUND, ReservationState.COMMITTED), 0.1)

    assert caplog.records[0].__dict__["fields"]["since_planned_s"] is None


def test_lines_and_memory_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    lines = ReservationLines(lambda: 0.0)
    with caplog.at_level(logging.INFO, "scheduler_core.planner.leader.reservation_lines"):
        for number in range(11_000):
            lines.write_done(CreateReservation("team", f"r{number}", msgspec.structs.replace(SPEC, seats=())), 0.0)

    assert LINES_PER_S <= len(caplog.records) <= LINES_PER_S + 2
    assert len(vars(lines)["_planned_at"]) == 10_000


def test_waits_around_ten_minutes_have_a_bucket() -> None:
    """The alert and its users ask for gangs that wait longer than 10 minutes."""
    assert 600 in TIMES["gang_scheduling_wait_seconds"].buckets
