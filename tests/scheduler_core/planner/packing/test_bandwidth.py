"""Bandwidth and GPUs of a plan: only certain values."""

from __future__ import annotations

import pytest

from gputopo.model import NodeTopology
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.planner.packing.bandwidth import Bottleneck, bottleneck, expected_gpus, slowest_gbps
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import SHARED
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record

H100, PAIRS = MACHINES["hgx_h100"](), MACHINES["a100_bridged"]()


def _state(topology: NodeTopology | None, **more: int) -> NodeState:
    held = {"x": range(more["busy"])} if more else {}
    return state_of(record("n", topology, held=held, pods=[occupant("x", more["busy"])] if more else []), NOW, Policy())


@pytest.mark.parametrize(
    ("state", "gpus", "found"),
    [
        pytest.param(_state(H100), [1] * 8, Bottleneck(gbps=900.0), id="eight singles are one ring"),
        pytest.param(_state(H100), [4, 4], Bottleneck(gbps=900.0), id="two fours"),
        pytest.param(_state(H100), [1], Bottleneck(), id="one GPU has no ring"),
        pytest.param(_state(PAIRS), [2], Bottleneck(gbps=600.0), id="a bridged pair"),
        pytest.param(_state(PAIRS), [1, 1], Bottleneck(gbps=63.0), id="two singles may be on two pairs"),
        pytest.param(_state(MACHINES["nvlink_unknown"]()), [2], Bottleneck(known=False), id="links unknown"),
        pytest.param(_state(None), [2], Bottleneck(known=False), id="GPUs unknown"),
    ],
)
def test_the_slowest_ring_on_a_node(state: NodeState, gpus: list[int], found: Bottleneck) -> None:
    assert bottleneck(state, [profile(each).device_request for each in gpus]) == found


@pytest.mark.parametrize(
    ("found", "gbps"),
    [
        pytest.param([Bottleneck(gbps=900.0), Bottleneck(gbps=300.0), Bottleneck()], 300.0, id="of all nodes"),
        pytest.param([Bottleneck(gbps=900.0), Bottleneck(known=False)], None, id="one unknown"),
        pytest.param([Bottleneck()], None, id="no ring"),
        pytest.param([], None, id="no node"),
    ],
)
def test_the_slowest_of_all(found: list[Bottleneck], gbps: float | None) -> None:
    assert slowest_gbps(found) == gbps


@pytest.mark.parametrize(
    ("state", "gpus", "indices"),
    [
        pytest.param(_state(H100), 8, (0, 1, 2, 3, 4, 5, 6, 7), id="all GPUs"),
        pytest.param(_state(H100, busy=5), 3, (5, 6, 7), id="all free GPUs"),
        pytest.param(_state(PAIRS, busy=2), 2, (2, 3), id="the other pair"),
        pytest.param(_state(H100), 4, (), id="any four"),
        pytest.param(_state(None), 1, (), id="unknown"),
    ],
)
def test_expected_gpus_only_where_one_set_is_possible(state: NodeState, gpus: int, indices: tuple[int, ...]) -> None:
    assert expected_gpus(state, profile(gpus).device_request) == indices


def test_shared_gpus_are_not_predicted() -> None:
    assert expected_gpus(_state(H100), profile(1, resource=SHARED).device_request) == ()
