"""Evictions for a capacity hold: the next steps of its intent, after any crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from gputopo.crd.reservations import (
    PlannedEviction,
    PlannedMember,
    Preemption,
    ReservationState,
    ReservationStatus,
    spec_hash,
)
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import Action, CheckBudgets, EvictPod, WriteLedger, WriteStatus
from scheduler_core.planner.commit.eviction import AGAIN_S
from scheduler_core.planner.commit.observations import BudgetCheck, Observations, PhaseSince, RefusedWrite
from scheduler_core.planner.commit.reconcile import reconcile
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from tests.scheduler_core.planner.packing.plans import HELD, PROPOSED, entry, ledger, plan

ME, NOW, WALL = "me", 1000.0, 10_000.0
PODS = {each: PlannedEviction(f"uid-{each}", "other", each, "n1", f"other/{each[0]}", 2) for each in ("a1", "a2", "b1")}
INTENT = Preemption(tuple(PODS.values()), rule="scavengers-preemptible", reason="evicts 3 pods", timeout_s=60.0)
UNITS = ("other/a", "other/b")
ALLOWED: dict[str, str] = {}
SEATS = (PlannedMember("uid-w", "w", "n1"),)


def hold(*begun: str, deadline: float | None = None) -> ReservationUpdate:
    found = plan("llm-h", held={"n1": 6})
    spec = msgspec.structs.replace(found.spec, preemption=INTENT)
    text = None if deadline is None else format_timestamp(deadline)
    status = ReservationStatus(state=ReservationState.HELD, evicting=begun, deadline=text)
    return found._replace(spec=spec, hash=spec_hash(spec), status=status)


class Case(NamedTuple):
    """Input of reconcile."""

    intent: ReservationUpdate = hold()
    present: tuple[str, ...] = ("a1", "a2", "b1")
    evicted: tuple[str, ...] = ()
    evicted_s: float = 1.0  # ago
    blocked: Mapping[str, str] | None = None  # None: not counted
    counted: float = NOW
    listed: float = NOW - 10.0
    stale: bool = False
    others: tuple[ReservationUpdate, ...] = ()
    unwanted: bool = False
    refused: str | None = None
    is_listed: bool = True
    unproved: bool = False
    gone_by: Mapping[str, float] = {}  # by name of the pod


def writes(case: Case) -> tuple[Action, ...]:
    listed = [entry(case.intent, HELD), *(entry(each, PROPOSED) for each in case.others)]
    found_ledger = ledger(*(listed if case.is_listed else ()), generation=3)
    found_ledger = found_ledger._replace(spec=msgspec.structs.replace(found_ledger.spec, planner=ME))
    check = {} if case.blocked is None else {case.intent.key: BudgetCheck(case.counted, case.blocked)}
    refusal = RefusedWrite(NOW, NOW, case.refused or "")
    observations = Observations(
        since={each.uid: PhaseSince(each.phase, case.listed, 3) for each in listed},
        budgets=check,
        evicted={f"uid-{each}": NOW - case.evicted_s for each in case.evicted},
        refused_writes={(EvictPod, "uid-a1"): refusal} if case.refused else {},
    )
    gang = Gang(GangName("team", "llm"), GangPhase.QUEUED, "")
    inputs = ReconcileInput(
        identity=ME,
        ledger=found_ledger,
        reservations={each.key: each for each in (case.intent, *case.others)},
        member=lambda _: None,
        gang=lambda _: gang,
        nodes=frozenset({"n1"}),
        exists={f"uid-{each}" for each in case.present}.__contains__,
        gone_by=lambda uid: case.gone_by.get(uid.removeprefix("uid-")),
        no_longer_fitting=frozenset(),
        unwanted_holds=frozenset({case.intent.key}) if case.unwanted else frozenset(),
        estimates={case.intent.key: None},
        observations=observations,
        now=NOW,
        wall_time=WALL,
        has_stale_view=case.stale,
        unproved={case.intent.key: None} if case.unproved else {},
        proved_seats={} if case.unproved else {case.intent.key: SEATS},
    )
    return reconcile(inputs, CommitTerms(gated=True), "gpus").writes


def evicted(case: Case) -> list[str]:
    return [each.eviction.name for each in writes(case) if isinstance(each, EvictPod)]


def counts(case: Case) -> list[tuple[str, ...]]:
    found = [each for each in writes(case) if isinstance(each, CheckBudgets)]
    return [tuple(pod.name for pod in each.evictions) for each in found]


def status(case: Case) -> ReservationStatus:
    (found,) = (each.status for each in writes(case) if isinstance(each, WriteStatus))
    return found


def test_the_budgets_are_counted_before_any_pod_is_evicted() -> None:
    assert counts(Case()) == [("a1", "a2", "b1")]
    assert evicted(Case()) == []


def test_the_room_for_the_gang_is_checked_with_the_budgets_before_the_first_eviction() -> None:
    """The proof says where its members would be."""
    (first,) = (each for each in writes(Case()) if isinstance(each, CheckBudgets))
    # An earlier version began one unit after the other.
    (next_unit,) = (
        each for each in writes(Case(hold(UNITS[0]), evicted=("a1", "a2"))) if isinstance(each, CheckBudgets)
    )

    assert (first.gang_namespace, first.seats, next_unit.seats) == ("team", SEATS, ())
    assert counts(Case(unproved=True)) == []


def test_the_status_names_all_units_and_a_deadline_before_their_pods_are_evicted() -> None:
    """One unit after the other, the owner of the second one could protect it once the first pods are gone."""
    case = Case(blocked=ALLOWED)

    assert (status(case).evicting, status(case).deadline) == (UNITS, format_timestamp(WALL + 60.0))
    assert evicted(case) == []


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(Case(hold(UNITS[0]), blocked=ALLOWED), ["a1", "a2"], id="all pods of the begun unit"),
        pytest.param(Case(hold(UNITS[0])), ["a1", "a2"], id="a new leader finishes it without a count"),
        pytest.param(Case(hold(UNITS[0]), ("a2", "b1")), ["a2"], id="a pod is gone"),
        pytest.param(Case(hold(UNITS[0]), evicted=("a1",)), ["a2"], id="a pod is evicted already"),
        pytest.param(Case(hold(UNITS[0], deadline=WALL - 1)), ["a1", "a2"], id="a begun unit is finished late"),
        pytest.param(Case(hold(*UNITS)), ["a1", "a2", "b1"], id="all units"),
        pytest.param(Case(hold(*UNITS), ("b1",)), ["b1"], id="the second unit"),
        pytest.param(Case(hold(*UNITS), stale=True), [], id="the view may be old"),
        pytest.param(Case(hold(*UNITS), listed=NOW - 1.0), [], id="extenders may not know of the hold yet"),
        pytest.param(Case(hold(*UNITS), unwanted=True), [], id="the hold is not wanted any more"),
        pytest.param(Case(hold(*UNITS), others=(plan("llm-1", {"p": ("n1", 4)}),)), [], id="the gang has places"),
        pytest.param(Case(hold(*UNITS), ()), [], id="all are gone"),
    ],
)
def test_which_pods_are_evicted(case: Case, expected: list[str]) -> None:
    assert evicted(case) == expected


def test_the_unit_that_an_earlier_version_left_begins_once_the_pods_of_the_first_are_evicted_or_gone() -> None:
    first = hold(UNITS[0], deadline=WALL + 60.0)

    assert status(Case(first, ("a2", "b1"), blocked=ALLOWED)).evicting == UNITS[:1]
    assert status(Case(first, ("a2", "b1"), ("a2",), blocked=ALLOWED)).evicting == UNITS


def test_a_late_unit_is_not_evicted_and_is_named_in_the_status() -> None:
    late = Case(hold(UNITS[0], deadline=WALL), ("b1",), blocked=ALLOWED)

    assert status(late).evicting == UNITS[:1]
    assert counts(late) == []
    assert "evictions were refused until 1970-01-01T02:46:40Z: other/b not evicted" in (status(late).reason or "")


def test_where_a_budget_forbids_one_unit_none_is_begun_and_the_hold_is_removed() -> None:
    (write,) = (each for each in writes(Case(blocked={UNITS[1]: "no"})) if isinstance(each, WriteLedger))

    assert write.spec.entries == ()
    assert evicted(Case(blocked={UNITS[1]: "no"})) == []


def test_a_begun_intent_waits_for_a_budget_that_forbids_the_next_unit() -> None:
    case = Case(hold(UNITS[0], deadline=WALL + 60.0), ("b1",), blocked={UNITS[1]: "PodDisruptionBudget other/b"})

    assert status(case).evicting == UNITS[:1]
    assert (status(case).reason or "").endswith(": other/b1; PodDisruptionBudget other/b")
    assert counts(case._replace(counted=NOW - 11.0)) == [("b1",)]


def test_an_old_count_is_not_used() -> None:
    case = Case(blocked=ALLOWED, counted=NOW - 2.5)

    assert status(case).evicting == ()
    assert counts(case) == [("a1", "a2", "b1")]


def test_a_unit_whose_pods_end_without_an_eviction_is_not_counted_again_and_again() -> None:
    ending = {"b1": WALL + 20.0}
    case = Case(hold(UNITS[0], deadline=WALL + 60.0), ("b1",), gone_by=ending)

    assert counts(case) == []
    assert counts(case._replace(gone_by={})) == [("b1",)]
    assert counts(case._replace(intent=hold())) == []


def test_a_unit_whose_pods_end_without_an_eviction_is_not_called_spared_after_the_deadline() -> None:
    case = Case(hold(UNITS[0], deadline=WALL), ("b1",), gone_by={"b1": WALL + 20.0})

    assert "not evicted" not in (status(case).reason or "")


def test_a_pod_that_does_not_end_after_its_accepted_eviction_is_evicted_again_after_a_while() -> None:
    case = Case(hold(UNITS[0]), evicted=("a1", "a2"), blocked={UNITS[1]: "no"})

    assert evicted(case) == []
    assert evicted(case._replace(evicted_s=AGAIN_S)) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("grace_s", "gone_in_s", "expected"),
    [
        pytest.param(30, 25.0, [], id="its own grace period"),
        pytest.param(30, 90.0, [], id="the clocks differ by a minute"),
        pytest.param(30, 91.0, ["a1"], id="deleted by its owner with a longer one"),
        pytest.param(3_600, 3_000.0, [], id="a long one that the policy allows"),
        pytest.param(None, 1e9, [], id="planned by an earlier version"),
    ],
)
def test_a_terminating_pod_is_evicted_if_that_ends_it_earlier(
    grace_s: int | None, gone_in_s: float, expected: list[str]
) -> None:
    found = hold("other/a")
    pod = msgspec.structs.replace(PODS["a1"], grace_s=grace_s)
    spec = msgspec.structs.replace(found.spec, preemption=Preemption((pod,), "rule"))
    case = Case(found._replace(spec=spec, hash=spec_hash(spec)), gone_by={"a1": WALL + gone_in_s})

    assert evicted(case) == expected


def test_a_pod_without_gpus_is_not_watched_and_is_evicted_once() -> None:
    cpu_only = PlannedEviction("uid-d", "other", "d", "n1", "other/d")
    found = hold("other/d")
    spec = msgspec.structs.replace(found.spec, preemption=Preemption((cpu_only,), "rule"))
    case = Case(found._replace(spec=spec, hash=spec_hash(spec)), present=())

    assert evicted(case) == ["d"]
    assert evicted(case._replace(evicted=("d",), evicted_s=0.0)) == []


def test_pods_with_gpus_are_evicted_first() -> None:
    """The owner of many pods without GPUs sees the first of them end, and could protect the others in time."""
    helpers = tuple(PlannedEviction(f"uid-h{at}", "other", f"h{at}", "n1", "other/a") for at in range(3))
    found = hold("other/a", "other/b")
    spec = msgspec.structs.replace(found.spec, preemption=Preemption((*helpers, PODS["a1"], PODS["b1"]), "rule"))

    assert evicted(Case(found._replace(spec=spec, hash=spec_hash(spec)))) == ["a1", "b1", "h0", "h1", "h2"]


def test_nothing_is_evicted_before_the_ledger_lists_the_hold() -> None:
    assert evicted(Case(hold(*UNITS), is_listed=False)) == []


def test_the_status_says_what_is_left_and_what_is_refused() -> None:
    reason = status(Case(hold(*UNITS), ("a1", "b1"), ("b1",), refused="429: budget")).reason or ""

    assert reason.startswith("evicts 2 of 3 pods for it (scavengers-preemptible): other/a1 and 1 more")
    assert reason.endswith("; the API server refuses other/a1: 429: budget")
    assert (status(Case(hold(*UNITS), ())).reason or "").endswith("; 3 pods evicted for it (scavengers-preemptible)")
