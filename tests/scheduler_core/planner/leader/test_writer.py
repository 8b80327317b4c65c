"""The requests of each write, and the outcomes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gputopo.crd.reservations import (
    LedgerSpec,
    LedgerStatus,
    PlannedEviction,
    ReservationState,
    ReservationStatus,
)
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import UnavailableError
from gputopo.kube.rbac import PLANNER, PREEMPTOR, Role
from scheduler_core.planner.commit.actions import (
    Action,
    CheckBudgets,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    EvictPod,
    ProbeExtenderPod,
    ReleasePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.writer import ActionExecutor, WriteOutcome
from tests.api_server import Answer, ApiServer, Asked, api_server
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import ledger, plan

ROLE = Role(PLANNER.name, {**PLANNER.verbs, **PREEMPTOR.verbs})
PLAN = plan("llm-1", {"a": ("n1", 4)})._replace(version="5")
POD = member("a")._replace(version="7")
VICTIM = PlannedEviction("u", "team", "a", "n1", "team/batch", 4)


def answering(uid: str, version: str, node: str | None = None) -> Callable[[Asked], Answer]:
    """Return a server with this pod that accepts each write."""

    def answer(asked: Asked) -> Answer:
        if asked.method != "GET":
            return Answer({"metadata": {"name": PLAN.name, "resourceVersion": "9"}})
        metadata = {"name": "a", "namespace": "team", "uid": uid, "resourceVersion": version}
        return Answer({"metadata": metadata, "spec": {} if node is None else {"nodeName": node}})

    return answer


@contextmanager
def writing(
    folder: Path, answer: Callable[[Asked], Answer], *, holds: bool = True
) -> Iterator[tuple[ActionExecutor, ApiServer]]:
    with api_server(answer) as server:
        kube = from_kubeconfig(ROLE, server.kubeconfig(folder / "config"))
        try:
            yield ActionExecutor(kube, lambda: holds, lambda: 0.0), server
        finally:
            kube.close()


LEDGER = ledger()._replace(version="3")
API, PODS = "/apis/gputopo.io/v1alpha1", "/api/v1/namespaces/team/pods/a"
NAMED = f"{API}/namespaces/team/placementreservations/{PLAN.name}"
SENT: list[tuple[Action, str, str]] = [
    (CreateLedger("gpus", LedgerSpec()), "POST", f"{API}/placementledgers"),
    (WriteLedger(LEDGER, LedgerSpec()), "PUT", f"{API}/placementledgers/gpus"),
    (DropRegistration(LEDGER, LedgerStatus({})), "PUT", f"{API}/placementledgers/gpus/status"),
    (CreateReservation("team", PLAN.name, PLAN.spec), "POST", f"{API}/namespaces/team/placementreservations"),
    (WriteStatus(PLAN, ReservationStatus(ReservationState.BOUND)), "PATCH", f"{NAMED}/status"),
    (DeleteReservation(PLAN), "DELETE", NAMED),
    (UngateAndPin(POD, PLAN.spec.seats[0], PLAN.name), "PATCH", PODS),
    (ReleasePod(POD, "no place", "gate-timeout"), "PATCH", PODS),
    (TouchPod(POD, PLAN.key), "PATCH", PODS),
    (DeletePod(POD), "DELETE", PODS),
    (EvictPod(VICTIM, PLAN), "POST", f"{PODS}/eviction"),
    (ProbeExtenderPod("x", "team/a"), "GET", PODS),
]


@pytest.mark.parametrize(("what", "method", "path"), SENT, ids=[type(each[0]).__name__ for each in SENT])
def test_each_write_is_one_call(tmp_path: Path, what: Action, method: str, path: str) -> None:
    with writing(tmp_path, lambda _: Answer({"metadata": {"name": "a", "uid": "u", "resourceVersion": "9"}})) as (
        writer,
        server,
    ):
        found = writer.execute_action(what)

    assert [(each.method, each.path) for each in server.asked] == [(method, path)]
    version = None if method == "DELETE" or path.endswith("/eviction") else "9"
    assert (found.outcome, found.metadata and found.metadata.resource_version) == (WriteOutcome.DONE, version)


@pytest.mark.parametrize(
    ("status", "outcome", "sent"),
    [
        pytest.param(200, WriteOutcome.DONE, ["DELETE", "PATCH"], id="allowed"),
        pytest.param(422, WriteOutcome.REFUSED, ["DELETE"], id="refused"),
    ],
)
def test_a_finalizer_stays_on_a_pod_that_cannot_be_deleted(
    tmp_path: Path, status: int, outcome: WriteOutcome, sent: list[str]
) -> None:
    def answer(asked: Asked) -> Answer:
        return Answer({"metadata": {"name": "a", "uid": "u"}}, status if asked.method == "DELETE" else 200)

    with writing(tmp_path, answer) as (writer, server):
        found = writer.execute_action(StripFinalizer(POD, "batch.kubernetes.io/job-tracking"))

    assert (found.outcome, [each.method for each in server.asked]) == (outcome, sent)
    assert server.asked[0].body == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": POD.uid},
        "dryRun": ["All"],
    }


def test_only_an_unchanged_pod_is_deleted(tmp_path: Path) -> None:
    with writing(tmp_path, lambda _: Answer({})) as (writer, server):
        writer.execute_action(DeletePod(POD))
        writer.execute_action(DeletePod(POD._replace(version="")))

    assert [each.body["preconditions"] for each in server.asked] == [
        {"uid": POD.uid, "resourceVersion": "7"},
        {"uid": POD.uid},
    ]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (409, WriteOutcome.CONFLICT),
        (404, WriteOutcome.GONE),
        (503, WriteOutcome.UNANSWERED),
        (500, WriteOutcome.UNANSWERED),
        (403, WriteOutcome.REFUSED),
        (422, WriteOutcome.REFUSED),
    ],
)
def test_outcomes_of_writes(tmp_path: Path, status: int, outcome: WriteOutcome) -> None:
    with writing(tmp_path, lambda _: Answer({"message": "no"}, status)) as (writer, _):
        found = writer.execute_action(TouchPod(POD, PLAN.key))

    assert (found.outcome, found.error) == (outcome, f"PATCH {PODS}: {status}: no")


def test_a_deposed_planner_sends_nothing(tmp_path: Path) -> None:
    with writing(tmp_path, lambda _: Answer({}), holds=False) as (writer, server):
        found = writer.execute_action(TouchPod(POD, PLAN.key))

    assert (found.outcome, server.asked) == (WriteOutcome.DEPOSED, [])


def ledger_of(version: str) -> dict[str, Any]:
    return {"metadata": {"name": "gpus", "uid": "L", "resourceVersion": version, "generation": 4}, "spec": {}}


def test_a_ledger_is_read_again_after_a_conflict(tmp_path: Path) -> None:
    answers = {"PUT": Answer({"message": "changed"}, 409), "GET": Answer(ledger_of("8"))}
    with writing(tmp_path, lambda asked: answers[asked.method]) as (writer, _):
        found = writer.execute_action(WriteLedger(LEDGER, LedgerSpec()))

    assert found.ledger is not None
    assert (found.outcome, found.ledger.version, found.ledger.generation) == (WriteOutcome.CONFLICT, "8", 4)


def test_the_outcome_is_unknown_if_the_ledger_cannot_be_read_again(tmp_path: Path) -> None:
    answers = {"PUT": Answer({"message": "changed"}, 409), "GET": Answer({"message": "busy"}, 503)}
    with writing(tmp_path, lambda asked: answers[asked.method]) as (writer, _):
        found = writer.execute_action(WriteLedger(LEDGER, LedgerSpec()))

    path = f"{API}/placementledgers/gpus"
    assert (found.outcome, found.ledger) == (WriteOutcome.UNANSWERED, None)
    assert found.error == f"PUT {path}: 409: changed; GET {path}: 503: busy"


def test_reading_the_ledger(tmp_path: Path) -> None:
    answers = [Answer(ledger_of("8")), Answer({"message": "none"}, 404), Answer({"message": "busy"}, 503)]
    with writing(tmp_path, lambda _: answers.pop(0)) as (writer, _):
        found = writer.get_ledger("gpus")
        assert (found and found.version, writer.get_ledger("gpus")) == ("8", None)
        with pytest.raises(UnavailableError, match="503: busy"):
            writer.get_ledger("gpus")


@pytest.mark.parametrize(
    ("uid", "node", "outcome", "methods"),
    [
        pytest.param(POD.uid, None, WriteOutcome.DONE, ["GET", "PATCH"], id="unbound, perhaps edited"),
        pytest.param(POD.uid, "n1", WriteOutcome.CONFLICT, ["GET"], id="bound"),
        pytest.param("another", None, WriteOutcome.GONE, ["GET"], id="another pod of that name"),
    ],
)
def test_a_plan_is_rolled_back_only_if_its_late_pod_is_unbound(
    tmp_path: Path, uid: str, node: str | None, outcome: WriteOutcome, methods: list[str]
) -> None:
    with writing(tmp_path, answering(uid, "8", node)) as (writer, server):
        found = writer.execute_action(WriteStatus(PLAN, ReservationStatus(ReservationState.ROLLING_BACK, "late"), POD))

    assert (found.outcome, [each.method for each in server.asked]) == (outcome, methods)


@pytest.mark.parametrize(
    ("action", "node", "outcome", "methods"),
    [
        pytest.param(DeletePod(POD), None, WriteOutcome.DONE, ["DELETE", "GET", "DELETE"], id="delete"),
        pytest.param(
            DeletePod(POD), "n1", WriteOutcome.CONFLICT, ["DELETE", *["GET"] * 4], id="delete, but it is bound"
        ),
        pytest.param(TouchPod(POD, PLAN.key), None, WriteOutcome.DONE, ["PATCH", "GET", "PATCH"], id="touch"),
    ],
)
def test_a_pod_that_somebody_edits_all_the_time_is_written_by_its_present_version(
    tmp_path: Path, action: Action, node: str | None, outcome: WriteOutcome, methods: list[str]
) -> None:
    present = answering(POD.uid, "8", node)

    def answer(asked: Asked) -> Answer:
        body = asked.body or {}
        version = body.get("preconditions", body.get("metadata", {})).get("resourceVersion")
        return Answer({"message": "changed"}, 409) if asked.method != "GET" and version != "8" else present(asked)

    with writing(tmp_path, answer) as (writer, server):
        found = writer.execute_action(action)

    assert (found.outcome, [each.method for each in server.asked]) == (outcome, methods)


def test_budgets_are_counted_for_pods_that_still_exist(tmp_path: Path) -> None:
    replaced = PlannedEviction("old", "team", "b", "n1", "team/batch")

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("poddisruptionbudgets"):
            budget = {"metadata": {"name": "web", "namespace": "team"}, "spec": {"selector": {}}}
            return Answer({"items": [budget | {"status": {"disruptionsAllowed": 0}}], "metadata": {}})
        return Answer({"metadata": {"name": asked.path.rpartition("/")[2], "uid": "u"}})

    with writing(tmp_path, answer) as (writer, _):
        found = writer.execute_action(CheckBudgets("hold", (VICTIM, replaced)))

    reason = "PodDisruptionBudget team/web allows 0 more evictions of the 1 needed"
    assert (found.outcome, found.blocked) == (WriteOutcome.DONE, {"team/batch": reason})


@pytest.mark.parametrize("dry_run_for", [None, GangName("team", "llm")])
def test_evictions_are_tried_unless_the_policy_allows_none(tmp_path: Path, dry_run_for: GangName | None) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.method == "POST":
            return Answer({"message": "denied by a webhook"}, 403)
        return Answer({"metadata": {}, "items": []})

    with writing(tmp_path, answer) as (writer, server):
        found = writer.execute_action(CheckBudgets("hold", (VICTIM,), dry_run_for=dry_run_for))

    tried = [each.query for each in server.asked if each.method == "POST"]
    assert tried == ([{"dryRun": "All"}] if dry_run_for is None else [])
    assert list(found.blocked) == (["team/batch"] if dry_run_for is None else [])


def test_an_eviction_that_a_budget_forbids_is_refused_and_does_not_stop_other_writes(tmp_path: Path) -> None:
    body = {"message": "no", "details": {"causes": [{"reason": "DisruptionBudget"}]}}

    with writing(tmp_path, lambda _: Answer(body, 429)) as (writer, _):
        assert writer.execute_action(EvictPod(VICTIM, PLAN)).outcome is WriteOutcome.REFUSED
