"""The checks of the crash tests find violations."""

from __future__ import annotations

from typing import Any

import msgspec

from gputopo.crd.reservations import EntryPhase, LedgerEntry, LedgerSpec, PlannedMember, ReservationSpec, spec_hash
from tests.api_objects import GPU, Object
from tests.e2e.gangs.history import Event
from tests.e2e.gangs.invariant import LEDGERS, PODS, RESERVATIONS, broken, halves, violations
from tests.e2e.gangs.members import Asked, member
from tests.simulated_node.shapes import islands_4_4

CAPACITY = {"gpu-0": 8}
PLAN = ReservationSpec("train", (PlannedMember("uid-train-0", "train-0", "gpu-0", ((GPU, 4),)),))


def pod(number: int, node: str | None, **status: str) -> Object:
    """Return a member of 4 GPUs, ungated if it has a node."""
    made = member("train", number, Asked(2, 4))
    made["metadata"]["uid"] = f"uid-train-{number}"
    if node is not None:
        made["spec"] |= {"nodeName": node, "schedulingGates": []}
    return made | {"status": status or {"phase": "Pending"}}


def plan(changed: ReservationSpec = PLAN) -> Object:
    """Return the reservation."""
    return {"metadata": {"uid": "plan", "name": "train-1"}, "spec": msgspec.to_builtins(changed)}


def ledger(phase: EntryPhase) -> Object:
    """Return the ledger with the reservation."""
    spec = LedgerSpec("me", 1, (LedgerEntry("plan", "default", "train-1", spec_hash(PLAN), phase),))
    return {"metadata": {"uid": "ledger", "name": "gpus"}, "spec": msgspec.to_builtins(spec)}


def story(*steps: tuple[str, Object], **ended: str) -> list[Event]:
    """Return the events in order."""
    return [Event(at, kind, ended.get(f"step{at}", "MODIFIED"), each) for at, (kind, each) in enumerate(steps)]


def found(*steps: tuple[str, Object], **ended: Any) -> list[str]:
    """Return the violations of these events."""
    return [each.partition(":")[0] for each in violations(story(*steps, **ended), CAPACITY)]


def test_a_seat_counts_once_its_plan_is_committed_and_until_its_pod_is_bound() -> None:
    others = [(PODS, pod(at, "gpu-0")) for at in (1, 2)]
    proposed = [(RESERVATIONS, plan()), (LEDGERS, ledger(EntryPhase.PROPOSED)), *others]

    assert found(*proposed) == []
    assert found(*proposed, (LEDGERS, ledger(EntryPhase.COMMITTED))) == ["version 4, ledgers gpus"]
    assert found(*proposed[:3], (LEDGERS, ledger(EntryPhase.COMMITTED)), (PODS, pod(0, "gpu-0"))) == []


def test_a_plan_of_another_hash_does_not_count() -> None:
    others = [(PODS, pod(at, "gpu-0")) for at in (1, 2)]
    other = msgspec.structs.replace(PLAN, attempt=2)

    assert found((RESERVATIONS, plan(other)), (LEDGERS, ledger(EntryPhase.COMMITTED)), *others) == []


def test_finished_and_deleted_pods_use_nothing() -> None:
    three = [(PODS, pod(at, "gpu-0")) for at in (1, 2, 3)]

    assert found(*three) == ["version 2, pods train-3"]
    assert found((PODS, pod(1, "gpu-0", phase="Succeeded")), *three[1:]) == []
    assert found(three[0], three[0], *three[1:], step1="DELETED") == []


def test_a_deleted_pod_frees_its_seat() -> None:
    committed = [(PODS, pod(0, None)), (RESERVATIONS, plan()), (LEDGERS, ledger(EntryPhase.COMMITTED))]
    others = [(PODS, pod(at, "gpu-0")) for at in (1, 2)]

    assert found(*committed, *others) == ["version 4, pods train-2"]
    assert found(*committed, (PODS, pod(0, None)), *others, step3="DELETED") == []


def test_a_pod_that_its_node_rejects_is_found() -> None:
    refused = pod(0, "gpu-0", phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices")

    assert violations(story((PODS, refused)), CAPACITY) == ["train-0: no healthy devices"]


def test_a_deleted_pod_that_ran_without_its_island_is_found() -> None:
    machines, given = {"gpu-0": islands_4_4()}, {"uid-train-1": (0, 1, 2, 4)}
    runs = pod(1, "gpu-0", phase="Running")
    asked = runs | {"metadata": runs["metadata"] | {"annotations": {"gputopo.io/island": "required"}}}
    ran = [(PODS, asked), (PODS, asked | {"status": {"phase": "Succeeded"}})]

    assert broken(story((PODS, runs)), machines, given) == []
    assert broken(story(*ran), machines, {"uid-train-1": (4, 5, 6, 7)}) == []
    assert broken(story(*ran), machines, given) == ["version 0, train-1: [0, 1, 2, 4] of gpu-0 are no island"]


def test_a_gang_with_one_ungated_member_is_partly_started() -> None:
    assert halves([pod(0, None), pod(1, "gpu-0")], {"train": 2}) == {"train": 1}
    assert halves([pod(0, "gpu-0"), pod(1, "gpu-0")], {"train": 2}) == {}
    assert halves([pod(0, None), pod(1, None)], {"train": 2}) == {}
