"""Isolation of training and inference."""

from __future__ import annotations

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.colocation import Colocation, colocation_of
from scheduler_core.cache.node_state import state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record

_TRAIN, _SERVE = occupant("t", 1, workload="training"), occupant("s", 1, workload="inference")
_STRICT_TRAIN = occupant("t", 1, workload="training", isolation="required")
_STRICT_SERVE = occupant("s", 1, workload="inference", isolation="required")
_PLAIN = occupant("p", 1)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], Colocation(), id="nobody"),
        pytest.param([_PLAIN], Colocation(), id="a pod that says nothing"),
        pytest.param([_TRAIN, _SERVE], Colocation(training=True, inference=True), id="both"),
        pytest.param(
            [_STRICT_TRAIN], Colocation(training=True, no_inference=True), id="training that requires isolation"
        ),
        pytest.param([_STRICT_SERVE], Colocation(inference=True, no_training=True), id="inference that does"),
        pytest.param([occupant("b", 1, isolation="required")], Colocation(no_inference=True), id="any pod that does"),
    ],
)
def test_colocation(pods: list[Occupant], expected: Colocation) -> None:
    assert colocation_of(pods) == expected


@pytest.mark.parametrize(
    ("asked", "there", "reason"),
    [
        (profile(1, workload="training"), _SERVE, None),
        (profile(1, workload="training", isolation="preferred"), _SERVE, None),
        (profile(1, workload="training", isolation="required"), _SERVE, Reason.ISOLATION),
        (profile(1, workload="training", isolation="required"), _TRAIN, None),
        (profile(1, isolation="required"), _SERVE, Reason.ISOLATION),
        (profile(1, workload="inference", isolation="required"), _TRAIN, Reason.ISOLATION),
        (profile(1, workload="inference"), _STRICT_TRAIN, Reason.ISOLATION),
        (profile(1, workload="inference", isolation="ignore"), _STRICT_TRAIN, Reason.ISOLATION),
        (profile(1, workload="training"), _STRICT_TRAIN, None),
        (profile(1, workload="training"), _STRICT_SERVE, Reason.ISOLATION),
        (profile(1), _STRICT_SERVE, None),
    ],
)
def test_required_isolation_holds_for_earlier_and_later_pods(
    asked: PodProfile, there: Occupant, reason: Reason | None
) -> None:
    node = state_of(record(topology=MACHINES["hgx_h100"](), held={there.name: [0]}, pods=[there]), NOW, Policy())

    assert rejection_reason(asked, node, Policy()) is reason
