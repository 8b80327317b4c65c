"""Evictions that are tried as dry runs, by a real HTTP server."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputopo.crd.reservations import PlannedEviction
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PREEMPTOR
from scheduler_core.planner.leader.eviction_trials import find_refused_evictions
from tests.api_server import Answer, Asked, api_server

EVICTIONS = tuple(
    PlannedEviction(f"u-{name}", "team", name, "n", f"team/{name[0]}", 0 if name == "a3" else 8)
    for name in ("a1", "a2", "a3", "b1", "c1")
)
BUDGET = {"message": "no", "details": {"causes": [{"reason": "DisruptionBudget"}]}}
NO_DRY_RUN = {"message": 'admission webhook "x" does not support dry run'}


def tried(folder: Path, answers: dict[str, Answer]) -> tuple[dict[str, str], list[Asked]]:
    """Return the refused units, and the requests. ``answers``: by name of the pod; else the eviction is accepted."""
    accepted = Answer({"kind": "Status"}, 201)
    with api_server(lambda asked: answers.get(asked.path.split("/")[-2], accepted)) as server:
        kube = from_kubeconfig(PREEMPTOR, server.kubeconfig(folder / "config"))
        try:
            return find_refused_evictions(kube, EVICTIONS), server.asked
        finally:
            kube.close()


def test_no_trial_evicts_a_pod(tmp_path: Path) -> None:
    refused, requests = tried(tmp_path, {})

    assert refused == {}
    assert [each.path.split("/")[-2] for each in requests] == ["a1", "a2", "b1", "c1"]
    assert {each.query.get("dryRun") for each in requests} == {"All"}
    assert {each.body["deleteOptions"]["preconditions"]["uid"] for each in requests} == {"u-a1", "u-a2", "u-b1", "u-c1"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(Answer(BUDGET, 429), "429: no", id="a budget"),
        pytest.param(Answer({"message": "denied by x"}, 403), "403: denied by x", id="a webhook"),
        pytest.param(Answer({"message": "denied by x"}, 422), "422: denied by x", id="an admission policy"),
    ],
)
def test_a_unit_is_refused_with_the_reason_of_the_api_server(tmp_path: Path, answer: Answer, why: str) -> None:
    refused, requests = tried(tmp_path, {"a1": answer})

    assert list(refused) == ["team/a"]
    assert refused["team/a"].endswith(f"/pods/a1/eviction: {why}")
    assert "a2" not in {each.path.split("/")[-2] for each in requests}  # one reason of a unit is enough


def test_a_webhook_that_does_not_answer_is_not_waited_for_again(tmp_path: Path) -> None:
    refused, requests = tried(tmp_path, {"a1": Answer({"message": "webhook failed"}, 500)})

    assert list(refused) == ["team/a", "team/b", "team/c"]
    assert {each.rpartition(": ")[2] for each in refused.values()} == {"webhook failed"}
    assert len(requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer({"message": "gone", "details": {"name": "a1"}}, 404), id="the pod is gone"),
        pytest.param(Answer({"message": "another uid"}, 409), id="another pod has its name"),
        pytest.param(Answer(NO_DRY_RUN, 400), id="a webhook that has side effects"),
    ],
)
def test_what_refuses_no_eviction(tmp_path: Path, answer: Answer) -> None:
    assert tried(tmp_path, {"a1": answer})[0] == {}
