"""The first lines of `gputopo why pod` for a gated pod, or one that the planner ungated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.labels.keys import GATE
from scheduler_core.planner.report.gates import gates_reason, unhandled_reason
from scheduler_core.request.full_pod import FullPod
from tests.scheduler_core.planner.gang.pod_objects import LLM, gang_pod

OURS, KUEUE, QUOTA = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/quota"}
WAITS = "the gate gputopo.io/gang holds it until the planner has a place for it"
SEE = "with its gang llm: see `gputopo why gang llm -n team`"
_HANDED_OVER = "plans do not follow the rules"
SPREAD = {
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    ]
}
RESERVED = {"gputopo.io/reservation": "llm-1"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"annotations": LLM, "schedulingGates": [OURS]}, f"{WAITS}, {SEE}", id="a member"),
        pytest.param(
            {"annotations": LLM, "schedulingGates": [OURS, KUEUE]},
            f"{WAITS}, {SEE}; the gate kueue.x-k8s.io/admission holds it too",
            id="a member that Kueue holds too",
        ),
        pytest.param({"schedulingGates": [OURS]}, WAITS, id="a pod of its own"),
        pytest.param(
            {"annotations": LLM, "schedulingGates": [KUEUE, QUOTA]},
            "the gates kueue.x-k8s.io/admission, example.com/quota hold it, and no scheduler sees it until then",
            id="gates of others",
        ),
        pytest.param(
            {"annotations": {**LLM, **RESERVED}},
            f"the planner ungated it for its place in the reservation llm-1, {SEE}",
            id="ungated",
        ),
        pytest.param(
            {"annotations": {"gputopo.io/planned": "true", **RESERVED}},
            "the planner ungated it for its place in the reservation llm-1",
            id="ungated, a single pod",
        ),
        pytest.param(
            {"annotations": {"gputopo.io/gang": "Bad_Name"}, "schedulingGates": [OURS, KUEUE]},
            "the gate gputopo.io/gang holds it until the quoted value is corrected: in the object that creates the "
            "pod, and by kubectl annotate --overwrite pod w-0 -n team; the gate "
            "kueue.x-k8s.io/admission holds it too",
            id="an invalid gang",
        ),
        pytest.param({"annotations": LLM}, None, id="a member without a gate"),
        pytest.param(
            {"annotations": LLM, **SPREAD},
            f"{_HANDED_OVER} of its members (topology spread), so kube-scheduler chooses their nodes, one by "
            "one: the gang may start in part",
            id="a gang that was handed over",
        ),
        pytest.param(
            {"annotations": {"gputopo.io/planned": "true"}, **SPREAD},
            "plans do not follow its rules (topology spread), so kube-scheduler chooses its node",
            id="a single pod that was handed over",
        ),
        pytest.param(SPREAD, None, id="any other pod, with rules"),
        pytest.param(
            {"annotations": {**LLM, "gputopo.io/taken-back": "llm-1"}},
            "its gate was removed without a place after the plan llm-1 was rolled back, so kube-scheduler chooses its "
            "node",
            id="handed over after a rollback",
        ),
        pytest.param({"gpus": 0}, None, id="a pod without GPUs"),
        pytest.param({}, None, id="any other pod"),
        pytest.param(
            {"annotations": {**LLM, **RESERVED}, "status": {"phase": "Succeeded"}}, None, id="one that has ended"
        ),
    ],
)
def test_the_first_reason_of_gates(changed: dict[str, Any], said: str | None) -> None:
    assert gates_reason(gang_pod(**changed)) == said


SCHEDULED = {"type": "PodScheduled", "status": "False"}
BLOCKED = {
    **SCHEDULED,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
NO_ROOM = {**SCHEDULED, "reason": "Unschedulable", "message": "0/3 nodes are available"}
OF = {"schedulerName": "gputopo-scheduler"}


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        pytest.param(
            OF,
            {"conditions": [BLOCKED]},
            "no scheduler named gputopo-scheduler has handled it since its gates were removed: check that one runs",
            id="it was gated",
        ),
        pytest.param(
            {}, {}, "no scheduler named default-scheduler has handled it yet: check that one runs", id="it is new"
        ),
        pytest.param({**OF, "schedulingGates": [OURS]}, {"conditions": [BLOCKED]}, None, id="it is gated"),
        pytest.param(OF, {"conditions": [NO_ROOM]}, None, id="a scheduler has tried"),
        pytest.param({**OF, "nodeName": "a"}, {}, None, id="it is bound"),
        pytest.param(OF, {"phase": "Failed"}, None, id="it has ended"),
    ],
)
def test_a_pod_that_no_scheduler_has_handled(spec: dict[str, Any], status: dict[str, Any], said: str | None) -> None:
    found = msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": status}, FullPod)

    assert unhandled_reason(found) == said
    assert found.status.scheduler_message == (NO_ROOM["message"] if status == {"conditions": [NO_ROOM]} else None)
