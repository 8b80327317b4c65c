"""PodDisruptionBudgets as they are read before an eviction, from a real HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import PlannedEviction
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.cache.full_pods import MAX_LABELS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.budgets import MAX_ENTRIES
from scheduler_core.planner.leader.budget_reads import MAX_BUDGETS, LabelledPod, check_budgets
from tests.api_server import Answer, Asked, api_server

Json = dict[str, Any]
NO_LABELS: Mapping[str, str] = MappingProxyType({})
DEEP = '{"f:a":' * 1_000 + "{}" + "}" * 1_000


def budget(name: str, allowed: int, selector: Json) -> Json:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }


def blocked(
    folder: Path, budgets: list[Json], victims: int = 1, deep: str = "", labels: Mapping[str, str] = NO_LABELS
) -> tuple[dict[str, str], list[Asked]]:
    """Return the blocked units of pods with the label app=x and more labels, one by one, and the requests."""
    pods = [
        {"metadata": {"name": f"p{at}", "uid": f"u{at}", "labels": {"app": "x", **labels}}} for at in range(victims)
    ]

    def answer(request: Asked) -> Answer:
        if "poddisruptionbudgets" in request.path:
            begin, size = int(request.query.get("continue", "0")), int(request.query["limit"])
            more = str(begin + size) if begin + size < len(budgets) else ""
            made = Answer({"metadata": {"continue": more}, "items": budgets[begin : begin + size]})
            return made._replace(body=deep) if deep else made
        name = request.path.rpartition("/")[2]
        return Answer({"metadata": {}, "items": pods} if name == "pods" else pods[int(name[1:])])

    evictions = tuple(PlannedEviction(f"u{at}", "team", f"p{at}", "n", f"team/p{at}", 8) for at in range(victims))
    with api_server(answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        try:
            return check_budgets(kube, CheckBudgets("hold", evictions)).blocked, server.asked
        finally:
            kube.close()


@pytest.mark.parametrize("victims", [1, 20])
def test_every_budget_of_its_namespace_counts_for_a_pod_with_too_many_labels(tmp_path: Path, victims: int) -> None:
    """No pod escapes its budget by labels; without a budget such a pod may be evicted."""
    many = {f"l{at}": "" for at in range(MAX_LABELS)}
    mine, other = {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}

    found = [
        blocked(tmp_path, budgets, victims, labels=many)[0]
        for budgets in ([], [budget("a", victims, other)], [budget("a", 0, mine)], [budget("a", 0, other)])
    ]

    assert [len(each) for each in found] == [0, 0, victims, victims]
    both, _ = blocked(tmp_path, [budget("a", victims, mine), budget("b", victims, other)], victims, labels=many)
    assert both["team/p0"] == "pod team/p0 has several PodDisruptionBudgets (a and b)"


def test_labels_that_are_too_many_are_dropped_when_they_are_decoded() -> None:
    for size, kept in ((MAX_LABELS, MAX_LABELS), (MAX_LABELS + 1, None)):
        text = msgspec.json.encode({"metadata": {"name": "p", "labels": {f"l{at}": "" for at in range(size)}}})
        labels = msgspec.json.decode(text, type=LabelledPod).metadata.labels
        assert (None if labels is None else len(labels)) == kept


@pytest.mark.parametrize("victims", [1, 20])
def test_budgets_that_select_the_pods_count(tmp_path: Path, victims: int) -> None:
    mine, other = {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}

    assert blocked(tmp_path, [budget("a", victims, mine), budget("b", 0, other)], victims)[0] == {}
    found, _ = blocked(tmp_path, [budget("a", victims - 1, mine)], victims)
    assert list(found) == [f"team/p{victims - 1}"]


def test_without_budgets_no_pod_is_read(tmp_path: Path) -> None:
    found, requests = blocked(tmp_path, [])

    assert (found, len(requests)) == ({}, 1)


def test_a_namespace_with_too_many_budgets_keeps_its_pods(tmp_path: Path) -> None:
    """A tenant creates them: they must not take the planner's memory or time."""
    other = {"matchLabels": {"app": "y"}}

    assert blocked(tmp_path, [budget(f"b{at}", 1, other) for at in range(MAX_BUDGETS)])[0] == {}
    found, _ = blocked(tmp_path, [budget(f"b{at}", 1, other) for at in range(MAX_BUDGETS + 1)])
    assert list(found) == ["team/p0"]
    assert str(MAX_BUDGETS) in found["team/p0"]


def test_a_namespace_with_too_large_budgets_keeps_its_pods_and_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Each eviction there takes the API server long, because it reads all of them."""
    large = [budget(f"b{at}", 1, {"matchLabels": {"app": "y"}}) for at in range(MAX_BUDGETS)]
    for each in large:
        each["metadata"]["annotations"] = {"a": "x" * 300_000}

    found, requests = blocked(tmp_path, large)

    assert list(found) == ["team/p0"]
    assert "2 MiB" in found["team/p0"]
    assert len(requests) == 1


def test_what_is_not_read_of_one_namespace_keeps_no_pods_of_another(tmp_path: Path) -> None:
    evictions = tuple(PlannedEviction(f"u{at}", f"t{at}", f"p{at}", "n", f"t{at}/p{at}", 8) for at in range(2))

    def answer(request: Asked) -> Answer:
        return Answer({}, status=503) if "/t0/" in request.path else Answer({"metadata": {}, "items": []})

    with api_server(answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(tmp_path / "config"))
        try:
            assert list(check_budgets(kube, CheckBudgets("hold", evictions)).blocked) == ["t0/p0"]
        finally:
            kube.close()


def test_a_selector_of_too_many_entries_counts_as_for_all_pods(tmp_path: Path) -> None:
    entries = [{"key": f"k{at}", "operator": "Exists"} for at in range(MAX_ENTRIES + 1)]

    assert list(blocked(tmp_path, [budget("b", 0, {"matchExpressions": entries})])[0]) == ["team/p0"]
    assert blocked(tmp_path, [budget("b", 0, {"matchExpressions": entries[1:]})])[0] == {}


def test_a_budget_that_nests_deeply_counts(tmp_path: Path) -> None:
    metadata = f'{{"name":"b","namespace":"team","managedFields":[{{"fieldsV1":{DEEP}}}]}}'
    item = f'{{"metadata":{metadata},"spec":{{"selector":{{}}}},"status":{{}}}}'

    found, _ = blocked(tmp_path, [], deep=f'{{"metadata":{{}},"items":[{item}]}}')

    assert found == {"team/p0": "PodDisruptionBudget team/b allows 0 more evictions of the 1 needed"}


def forbidden(folder: Path, budgets: list[Json], labels: list[Json], chosen: int = 1) -> frozenset[str]:
    """Return the UIDs of the pods that are left out, of pods with these labels; the first ones are to be evicted."""
    pods = [{"metadata": {"name": f"p{at}", "uid": f"u{at}", "labels": each}} for at, each in enumerate(labels)]

    def answer(request: Asked) -> Answer:
        name = request.path.rpartition("/")[2]
        if name in ("poddisruptionbudgets", "pods"):
            return Answer({"metadata": {}, "items": pods if name == "pods" else budgets})
        return Answer(pods[int(name[1:])])

    evictions = tuple(PlannedEviction(f"u{at}", "team", f"p{at}", "n", f"team/p{at}", 8) for at in range(chosen))
    with api_server(answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        try:
            return check_budgets(kube, CheckBudgets("hold", evictions, finds_forbidden=True)).forbidden
        finally:
            kube.close()


X, Y, Z = {"app": "x"}, {"app": "y"}, {"app": "z"}


def test_the_other_pods_that_budgets_forbid_are_found_with_the_first(tmp_path: Path) -> None:
    budgets = [budget("a", 0, {"matchLabels": X}), budget("b", 0, {"matchLabels": Y}), budget("c", 1, {})]
    without = [budgets[0], budgets[1], budget("c", 1, {"matchLabels": Z})]

    assert forbidden(tmp_path, without, [X, X, Y, Z, {}]) == {"u0", "u1", "u2"}
    assert forbidden(tmp_path, budgets, [X, X, Y, Z]) == {"u0", "u1", "u2"}, "c allows one"
    assert forbidden(tmp_path, [budgets[2]], [X, Y]) == frozenset(), "no chosen unit is blocked"


def test_what_a_budget_allows_is_used_up_by_the_units_that_it_allows(tmp_path: Path) -> None:
    """The next search may choose the first pod again, and must not try the others of the budget one by one."""
    assert forbidden(tmp_path, [budget("a", 1, {"matchLabels": X})], [X, X, X, Y], chosen=2) == {"u1", "u2"}


def test_pods_with_several_budgets_are_found(tmp_path: Path) -> None:
    several = [budget("a", 5, {"matchLabels": X}), budget("b", 5, {"matchLabels": X})]

    assert forbidden(tmp_path, several, [X, X, Y]) == {"u0", "u1"}
