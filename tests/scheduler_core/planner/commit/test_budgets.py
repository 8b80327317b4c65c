"""Counting PodDisruptionBudgets for units as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import PlannedEviction
from scheduler_core.planner.commit.budgets import DisruptionBudget, blocked_units

WEB: dict[str, Any] = {"matchLabels": {"app": "web"}}


def budget(name: str, allowed: int, selector: dict[str, Any] | None = None, **more: Any) -> DisruptionBudget:
    raw = {
        "metadata": {"name": name, "namespace": "team", "generation": more.get("generation", 1)},
        "spec": {"selector": WEB if selector is None else selector},
        "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
    }
    return msgspec.convert(raw, DisruptionBudget)


def pods(unit: str, number: int, namespace: str = "team") -> list[PlannedEviction]:
    return [PlannedEviction(f"{unit}-{at}", namespace, f"{unit}-{at}", "n1", unit) for at in range(number)]


def blocked(evictions: list[PlannedEviction], *budgets: DisruptionBudget, app: str = "web") -> dict[str, str]:
    return blocked_units(evictions, budgets, {each.uid: {"app": app} for each in evictions})


def test_a_unit_is_charged_as_a_whole() -> None:
    assert blocked(pods("u", 3), budget("b", 3)) == {}
    assert blocked(pods("u", 3), budget("b", 2)) == {
        "u": "PodDisruptionBudget team/b allows 2 more evictions of the 3 needed"
    }


def test_an_allowed_unit_is_charged_before_the_next_and_a_forbidden_one_is_not() -> None:
    found = blocked([*pods("u", 2), *pods("v", 2), *pods("w", 1)], budget("b", 3))

    assert list(found) == ["v"]


@pytest.mark.parametrize(
    "budgets",
    [
        pytest.param((budget("b", 0, {"matchLabels": {"app": "db"}}),), id="other pods"),
        pytest.param((budget("b", 0, {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),), id="not"),
        pytest.param((msgspec.structs.replace(budget("b", 0), spec=type(budget("b", 0).spec)()),), id="no selector"),
        pytest.param((), id="no budget"),
    ],
)
def test_budgets_of_other_pods_do_not_count(budgets: tuple[DisruptionBudget, ...]) -> None:
    assert blocked(pods("u", 3), *budgets) == {}


def test_an_empty_selector_matches_all_pods_of_the_namespace() -> None:
    assert list(blocked(pods("u", 1), budget("b", 0, {}))) == ["u"]
    assert blocked(pods("u", 1, "elsewhere"), budget("b", 0, {})) == {}


def test_a_pod_with_several_budgets_can_never_be_evicted() -> None:
    assert blocked(pods("u", 1), budget("b", 5), budget("c", 5)) == {
        "u": "pod team/u-0 has several PodDisruptionBudgets (b and c)"
    }


def test_a_changed_budget_is_waited_for() -> None:
    assert blocked(pods("u", 1), budget("b", 5, generation=2)) == {
        "u": "PodDisruptionBudget team/b has changed and is not counted yet"
    }


def test_pods_that_are_gone_need_no_budget() -> None:
    assert blocked_units(pods("u", 2), [budget("b", 1)], {"u-0": {"app": "web"}}) == {}
