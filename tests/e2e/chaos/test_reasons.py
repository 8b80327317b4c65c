"""The check of reasons finds reasons that are not true. Without a control plane."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from scheduler_core.evaluation.transient import RESERVED_MESSAGE, RETRY_MESSAGE
from tests.api_objects import Object, pod
from tests.e2e.chaos.reasons import NodeTruth, Objects, untrue_gangs, untrue_pods
from tests.e2e.gangs.members import Asked, gang
from tests.e2e.scheduler.running import gpu_pod
from tests.simulated_node.shapes import islands_4_4

TOPOLOGY = islands_4_4()
FULL, HALF, SPLIT, EMPTY = (
    NodeTruth(TOPOLOGY, frozenset(free), {}) for free in ((), (0, 1, 2, 3), (2, 3, 4, 5), range(8))
)
RESERVED = EMPTY._replace(reserved={"other": 8})
NO_GPUS = "Insufficient nvidia.com/gpu"


def waiting(made: Object, message: str) -> Object:
    """Return the pod with kube-scheduler's message."""
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return made | {"status": {"phase": "Pending", "conditions": [said]}}


@pytest.mark.parametrize(
    ("made", "nodes", "reasons", "fault"),
    [
        pytest.param(gpu_pod("a", 4), (FULL, FULL), f"2 {NO_GPUS}", "", id="no GPU is free"),
        pytest.param(gpu_pod("a", 4), (FULL, HALF), f"2 {NO_GPUS}", "it fits on n1", id="it fits"),
        pytest.param(
            gpu_pod("a", 4), (FULL, RESERVED), f"2 {NO_GPUS}", "is not true of 2 nodes", id="reserved instead"
        ),
        pytest.param(gpu_pod("a", 4), (FULL, RESERVED), f"1 {Reason.RESERVED.value}, 1 {NO_GPUS}", "", id="reserved"),
        pytest.param(gpu_pod("a", 4), (FULL, FULL), f"1 {NO_GPUS}", "are not 2 nodes", id="a node is missing"),
        pytest.param(
            gpu_pod("a", 4, {"island": "required"}),
            (FULL, SPLIT),
            f"1 {Reason.ISLAND.value}, 1 {NO_GPUS}",
            "",
            id="island",
        ),
        pytest.param(
            gpu_pod("a", 4, {"island": "required"}), (HALF,), f"1 {Reason.ISLAND.value}", "it fits", id="in one"
        ),
    ],
)
def test_reasons_of_pods(made: Object, nodes: tuple[NodeTruth, ...], reasons: str, fault: str) -> None:
    message = f"0/{len(nodes)} nodes are available: {reasons}. preemption: 0/2 nodes are available: 2 No victims."
    found = untrue_pods([waiting(made, message)], {f"n{number}": each for number, each in enumerate(nodes)})

    assert len(found) == bool(fault)
    assert all(fault in each for each in found)


@pytest.mark.parametrize(
    ("message", "node", "is_true"),
    [
        pytest.param(RESERVED_MESSAGE, RESERVED, True, id="reserved"),
        pytest.param(RESERVED_MESSAGE, FULL, False, id="nothing is reserved"),
        pytest.param(RESERVED_MESSAGE, EMPTY, False, id="it fits"),
        pytest.param(RETRY_MESSAGE, RESERVED, False, id="all reports of kubelets are there"),
    ],
)
def test_errors_without_counts(message: str, node: NodeTruth, *, is_true: bool) -> None:
    assert (untrue_pods([waiting(gpu_pod("a", 4), message)], {"n0": node}) == []) is is_true


def test_the_error_of_a_malformed_pod_quotes_the_value() -> None:
    made = gpu_pod("a", 1, {"island": "perhaps"})
    text = f"0/1 nodes are available: 1 {Reason.MALFORMED.value}: gputopo.io/island: 'perhaps' is not required"

    assert untrue_pods([waiting(made, text)], {"n0": EMPTY}) == []
    assert untrue_pods([waiting(made, text.replace("perhaps", "maybe"))], {"n0": EMPTY}) != []


def shown(**fields: Any) -> Object:
    """Return the page with one gang."""
    usual: Object = {"name": "g", "reason": "x", "missing": [], "next_try_s": None, "trouble": None, "rollbacks": 0}
    return {"gangs": [usual | fields]}


GANG = gang("g", Asked(2, 4))


@pytest.mark.parametrize(
    ("page", "members", "node", "is_true"),
    [
        pytest.param({"gangs": []}, GANG, FULL, False, id="not listed"),
        pytest.param(shown(phase="queued"), GANG, HALF, True, id="one member fits"),
        pytest.param(shown(phase="queued"), GANG, EMPTY, False, id="it fits"),
        pytest.param(shown(phase="queued"), GANG, RESERVED, True, id="reserved for another gang"),
        pytest.param(shown(phase="held"), GANG, EMPTY._replace(reserved={"g": 8}), False, id="its own hold is free"),
        pytest.param(
            shown(phase="queued", next_try_s=9.0, trouble="late", rollbacks=1), GANG, EMPTY, True, id="backs off"
        ),
        pytest.param(shown(phase="queued", reason=""), GANG, FULL, False, id="without a reason"),
        pytest.param(shown(phase="committed"), GANG, FULL, False, id="no reservation is committed"),
        pytest.param(
            shown(phase="waiting for members", reason="1 of 2 members is there"),
            GANG[:1],
            EMPTY,
            True,
            id="a member is missing",
        ),
        pytest.param(
            shown(phase="waiting for members", reason="1 of 2 members is there"),
            GANG,
            EMPTY,
            False,
            id="both are there",
        ),
        pytest.param(
            shown(phase="waiting", reason="held by example.com/quota"), GANG, EMPTY, False, id="no other gate"
        ),
        pytest.param(
            shown(phase="queued", missing=[{"member": "g-0", "reason": Reason.ISLAND.value}]),
            GANG,
            HALF,
            False,
            id="islands are not required",
        ),
        pytest.param(
            shown(phase="queued", missing=[{"member": "g-0", "reason": Reason.RESERVED.value}]),
            GANG,
            FULL,
            False,
            id="reserved for a workload that has started since",
        ),
    ],
)
def test_reasons_of_gangs(page: Object, members: list[Object], node: NodeTruth, is_true: bool) -> None:
    found = untrue_gangs(page, Objects(members, [], []), {"n0": node})

    assert (found == []) is is_true


def test_ungated_and_bound_pods_are_no_waiting_gang() -> None:
    made = pod("w-0", 1) | {"status": {}}
    made["metadata"]["annotations"] = {keys.POD_GANG.key: "g"}

    assert untrue_gangs({"gangs": []}, Objects([made], [], []), {"n0": EMPTY}) == []
