"""Evictions for a capacity hold: which are due, in which order, and what the status says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from gputopo.crd.reservations import PlannedEviction, Preemption, ReservationState, ReservationStatus, spec_hash
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import Action, EvictPod, WriteStatus
from scheduler_core.planner.commit.eviction import AGAIN_S
from scheduler_core.planner.commit.observations import Observations, PhaseSince, RefusedWrite
from scheduler_core.planner.commit.reconcile import reconcile
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import HELD, entry, ledger, plan

NOW, WALL = 1000.0, 50_000.0
A = PlannedEviction("uid-a", "other", "a", "n1", "other/scrap", 4)
B = PlannedEviction("uid-b", "other", "b", "n1", "other/scrap", 4)
C = PlannedEviction("uid-c", "other", "c", "n1", "other/c", 2)
CPU_ONLY = PlannedEviction("uid-d", "other", "d", "n1", "other/d")
LATER, PAST = format_timestamp(WALL + 100), format_timestamp(WALL - 100)


def hold(*evictions: PlannedEviction, deadline: str | None = LATER) -> ReservationUpdate:
    made = plan("llm-h", held={"n1": 8}, status=ReservationStatus(state=ReservationState.HELD, deadline=deadline))
    spec = msgspec.structs.replace(made.spec, preemption=Preemption(evictions, "scavengers-yield", timeout_s=600.0))
    return made._replace(spec=spec, hash=spec_hash(spec))


def writes(
    of: ReservationUpdate,
    present: set[str],
    *,
    evicted: Mapping[str, float] = MappingProxyType({}),
    refused: Mapping[tuple[type, str], RefusedWrite] = MappingProxyType({}),
    is_listed: bool = True,
    is_stale: bool = False,
) -> tuple[Action, ...]:
    listed = entry(of, HELD)
    found = ledger(*((listed,) if is_listed else ()), generation=3)
    found = found._replace(spec=msgspec.structs.replace(found.spec, planner="me"))
    memory = Observations(
        since={listed.uid: PhaseSince(HELD, NOW, 3)}, evicted=evicted, refused_writes=refused, ledger_seen_at=0.0
    )
    gang = Gang(GangName("team", "llm"), GangPhase.QUEUED, "", ready=(member("x"),))
    inputs = ReconcileInput(
        identity="me",
        ledger=found,
        reservations={of.key: of},
        member=lambda _: None,
        gang=lambda _: gang,
        nodes={"n1"},
        no_longer_fitting=(),
        unwanted_holds=(),
        estimates={of.key: None},
        observations=memory,
        now=NOW,
        wall_time=WALL,
        exists=present.__contains__,
        has_stale_view=is_stale,
    )
    return reconcile(inputs, CommitTerms(gated=True), "gpus")


def evictions(found: tuple[Action, ...]) -> list[str]:
    return [each.eviction.name for each in found if isinstance(each, EvictPod)]


def reason(found: tuple[Action, ...]) -> str:
    (text,) = (each.status.reason for each in found if isinstance(each, WriteStatus))
    return text or ""


ALL = {"uid-a", "uid-b", "uid-c"}


def test_nothing_is_evicted_before_the_ledger_lists_the_hold() -> None:
    assert evictions(writes(hold(A, B), ALL, is_listed=False)) == []


def test_the_deadline_is_written_before_the_first_eviction() -> None:
    found = writes(hold(A, B, deadline=None), ALL)

    (write,) = found
    assert isinstance(write, WriteStatus)
    assert write.status.deadline == format_timestamp(WALL + 600)
    assert write.status.state is ReservationState.HELD


def test_all_listed_pods_that_exist_are_evicted() -> None:
    assert evictions(writes(hold(A, B, C), ALL)) == ["a", "b", "c"]
    assert evictions(writes(hold(A, B, C), {"uid-b"})) == ["b"]
    assert evictions(writes(hold(A, B, C), set())) == []


def test_nothing_is_evicted_on_a_stale_view() -> None:
    assert evictions(writes(hold(A, B, C), ALL, is_stale=True)) == []


def test_a_pod_whose_eviction_was_accepted_is_evicted_again_only_after_a_while() -> None:
    assert evictions(writes(hold(A, B), ALL, evicted={"uid-a": NOW - 1})) == ["b"]
    assert evictions(writes(hold(A, B), ALL, evicted={"uid-a": NOW - AGAIN_S})) == ["a", "b"]


def test_after_the_deadline_a_unit_that_was_begun_is_finished_and_the_others_are_spared() -> None:
    refused: dict[tuple[type, str], RefusedWrite] = {
        (EvictPod, "uid-c"): RefusedWrite(NOW - 99, NOW, "429: the budget keeps 1 pod")
    }

    found = writes(hold(A, B, C, deadline=PAST), {"uid-b", "uid-c"}, refused=refused)

    assert evictions(found) == ["b"]
    assert "other/c spared" in reason(found)
    assert "the API server refuses other/c: 429: the budget keeps 1 pod" in reason(found)
    assert evictions(writes(hold(A, B, C, deadline=PAST), ALL)) == []


def test_a_successor_continues_from_the_objects_alone() -> None:
    """It has observed nothing: of the unit, one pod is gone."""
    assert evictions(writes(hold(A, B, C, deadline=PAST), {"uid-b", "uid-c"})) == ["b"]


def test_a_pod_without_gpus_is_not_watched_and_is_evicted_once() -> None:
    assert evictions(writes(hold(CPU_ONLY), set())) == ["d"]
    assert evictions(writes(hold(CPU_ONLY), set(), evicted={"uid-d": 0.0})) == []


@pytest.mark.parametrize(
    ("present", "text"),
    [
        ({"uid-a", "uid-b"}, "evicts 2 of 2 pods for it (scavengers-yield): other/a and 1 more"),
        ({"uid-b"}, "evicts 1 of 2 pods for it (scavengers-yield): other/b"),
        (set(), "; 2 pods evicted for it (scavengers-yield)"),
    ],
)
def test_the_status_says_what_is_left(present: set[str], text: str) -> None:
    assert text in reason(writes(hold(A, B), present))
