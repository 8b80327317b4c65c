"""Notes on nodes whose kubelet may reject a suitable pod."""

from __future__ import annotations

from gputopo.labels import keys
from scheduler_core.request.pod_request import PodRequest
from tests.scheduler_core.builders import occupant, record, request
from tests.scheduler_core.explain.fleets import H100, explained


def notes(asked: PodRequest, policy: str | None = None, held: tuple[int, ...] = ()) -> list[str]:
    """Return the notes on the policy of the Topology Manager of two nodes with two NUMA nodes of four GPUs."""
    labels = {} if policy is None else {keys.TOPOLOGY_MANAGER.key: policy}
    pods = [occupant("other", len(held))] if held else []
    nodes = [record(name, H100, held={"other": held}, pods=pods, labels=labels) for name in ("a", "b")]
    return [each for each in explained(asked, *nodes).notes if "Topology Manager" in each]


def test_an_unknown_policy_that_may_reject_a_required_shape_is_named() -> None:
    (note,) = notes(request(8, island="required"))

    assert note == (
        "a, b: the policy of the Topology Manager is unknown; a kubelet with single-numa-node would reject this pod. "
        "Let the agent read the kubelet's configuration, or state the policy by the node label "
        "gputopo.io/topology-manager"
    )


def test_a_policy_that_rejects_more_is_named_alone() -> None:
    (note,) = notes(request(4, island="required"), held=(2, 3, 4, 5))

    assert "a kubelet with restricted would reject this pod" in note


def test_there_is_no_note_where_every_policy_admits_the_pod_or_the_policy_is_known() -> None:
    assert notes(request(4, island="required")) == []
    assert notes(request(8, island="required"), policy="none") == []
    assert notes(request(8, island="required"), policy="best-effort") == []
    assert notes(request(8)) == []
