"""What `gputopo why pod` says first of a pod that has not been looked at, or was let go by the planner."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels.keys import GATE
from scheduler_core.planner.report.gates import gates_reason
from tests.scheduler_core.planner.gang.pod_objects import LLM, gang_pod

OURS, KUEUE, QUOTA = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/quota"}
WAITS = "the gate gputopo.io/gang holds it, and no scheduler looks at it before the planner has a place for it"
TELLS = "as a member of the gang llm: `gputopo why gang llm -n team` tells of all"
RESERVED = {"gputopo.io/reservation": "llm-1"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"annotations": LLM, "schedulingGates": [OURS]}, f"{WAITS}, {TELLS}", id="a member"),
        pytest.param(
            {"annotations": LLM, "schedulingGates": [OURS, KUEUE]},
            f"{WAITS}, {TELLS}; the gate kueue.x-k8s.io/admission holds it too",
            id="a member that Kueue holds too",
        ),
        pytest.param({"schedulingGates": [OURS]}, WAITS, id="a pod of its own"),
        pytest.param(
            {"annotations": LLM, "schedulingGates": [KUEUE, QUOTA]},
            "the gates kueue.x-k8s.io/admission, example.com/quota hold it, and no scheduler looks at it before that",
            id="gates of others",
        ),
        pytest.param(
            {"annotations": {**LLM, **RESERVED}},
            f"the planner let it go to the place that its reservation llm-1 says, {TELLS}",
            id="let go",
        ),
        pytest.param(
            {"annotations": {"gputopo.io/planned": "true", **RESERVED}},
            "the planner let it go to the place that its reservation llm-1 says",
            id="let go on its own",
        ),
        pytest.param(
            {"annotations": {"gputopo.io/gang": "Bad_Name"}, "schedulingGates": [OURS, KUEUE]},
            "the gate gputopo.io/gang holds it, and the planner looks for a place only once what is quoted here is put "
            "right: in what makes the pod, and by kubectl annotate --overwrite pod w-0 -n team; the gate "
            "kueue.x-k8s.io/admission holds it too",
            id="a gang that cannot be understood",
        ),
        pytest.param({"annotations": LLM}, None, id="a member that nobody gated"),
        pytest.param({"gpus": 0}, None, id="a pod without GPUs"),
        pytest.param({}, None, id="any other pod"),
        pytest.param(
            {"annotations": {**LLM, **RESERVED}, "status": {"phase": "Succeeded"}}, None, id="one that has ended"
        ),
    ],
)
def test_what_comes_before(changed: dict[str, Any], said: str | None) -> None:
    assert gates_reason(gang_pod(**changed)) == said
