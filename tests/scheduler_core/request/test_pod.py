"""The fields of a Pod that every program needs, as the API server writes them."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.labels.keys import GATE, POD_RESERVATION
from scheduler_core.request.pod import PinClaim, Pod, PodSpec, pin_claim, waits_for_volumes


@pytest.mark.parametrize(
    ("volumes", "waits"),
    [
        pytest.param('[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]', True, id="claim"),
        pytest.param('[{"emptyDir":{}},{"ephemeral":{"volumeClaimTemplate":{}}}]', True, id="ephemeral"),
        pytest.param('[{"projected":{"sources":[]}},{"emptyDir":{}}]', False, id="neither"),
        pytest.param("null", False, id="none"),
    ],
)
def test_pod_with_a_claim_may_wait_for_its_volume_before_it_is_bound(volumes: str, waits: bool) -> None:
    assert waits_for_volumes(msgspec.json.decode(f'{{"volumes":{volumes}}}', type=PodSpec)) is waits


N1 = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
N1_CLAIM = PinClaim("llm-1", "n1")
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def pod(terms: list[object] | None, metadata: dict[str, object] | None = None, **spec: object) -> Pod:
    """A pod that a planner ungated, where nothing else is said."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    usual = {"annotations": {POD_RESERVATION.key: "llm-1"}}
    affinity = {} if terms is None else {"affinity": {"nodeAffinity": required}}
    return msgspec.convert({"metadata": usual | (metadata or {}), "spec": affinity | spec}, Pod)


@pytest.mark.parametrize(
    ("found", "claim"),
    [
        pytest.param(pod([N1]), N1_CLAIM, id="its pin"),
        pytest.param(
            pod([N1 | {"matchExpressions": [ZONE]}, {}, N1]), N1_CLAIM, id="every term is narrowed, but empty ones"
        ),
        pytest.param(pod(None), None, id="not pinned: a member without GPUs"),
        pytest.param(pod([{"matchExpressions": [ZONE]}]), None, id="no node is named"),
        pytest.param(
            pod([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]),
            None,
            id="an excluded node",
        ),
        pytest.param(
            pod([N1, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]),
            None,
            id="two nodes are named",
        ),
        pytest.param(pod([N1], {"annotations": None}), None, id="somebody else pinned it"),
        pytest.param(pod([N1], {"annotations": {POD_RESERVATION.key: "x" * 254}}), None, id="that is no name"),
        pytest.param(pod([N1], nodeName="n1"), None, id="it is there"),
        pytest.param(pod([N1], {"deletionTimestamp": "2026-11-21T22:30:00Z"}), None, id="it ends before"),
        pytest.param(pod([N1], schedulingGates=[{"name": GATE}]), None, id="the copy of one, gated again"),
        pytest.param(pod([N1], schedulingGates=[{"name": "example.com/wait"}]), None, id="others hold it"),
    ],
)
def test_the_claim_of_a_pod_about_its_reservation(found: Pod, claim: PinClaim | None) -> None:
    assert pin_claim(found) == claim
