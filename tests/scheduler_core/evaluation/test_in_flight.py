"""Nodes to which in-flight pods may come."""

from __future__ import annotations

from math import inf

import pytest

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record

POLICY = Policy()
PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
SINGLES = [occupant(f"single-{at}", 1) for at in range(4)]
TWO = [occupant(f"two-{at}", 2) for at in range(4)]
PAIR = profile(2, island="required")


def table(*pods: Occupant) -> ClusterSnapshot:
    return snapshot_of([record(name, PAIRS, held={}, pods=pods) for name in ("a", "b", "c")], NOW, POLICY)


def is_firm(asked: PodProfile, known: ClusterSnapshot, *doubtful: Occupant) -> bool:
    held = [AssumedPod(pod, frozenset({"a", "b"}), inf) for pod in doubtful]
    return fits_with_all(asked, known, "a", held, evaluator_for(asked, POLICY))


@pytest.mark.parametrize(
    ("asked", "doubtful", "expected"),
    [
        pytest.param(PAIR, [], True, id="nobody is in doubt"),
        pytest.param(PAIR, SINGLES[:1], True, id="one single GPU leaves a pair"),
        pytest.param(PAIR, SINGLES[:2], False, id="two of them may not"),
        pytest.param(PAIR, TWO[:1], True, id="the device plugin takes a pair where there is one"),
        pytest.param(PAIR, TWO[:2], False, id="both come: full"),
        pytest.param(PAIR, SINGLES[:4], False, id="too many to try all subsets"),
        pytest.param(profile(1), SINGLES[:4], True, id="no shape is required"),
    ],
)
def test_required_shape_holds_with_every_subset(asked: PodProfile, doubtful: list[Occupant], expected: bool) -> None:
    assert is_firm(asked, table(), *doubtful) is expected


def test_only_the_answered_nodes_of_in_flight_pods_are_affected() -> None:
    held = [AssumedPod(pod, frozenset({"a", "b"}), inf) for pod in SINGLES]

    assert fits_with_all(PAIR, table(), "c", held, evaluator_for(PAIR, POLICY))


def test_constraint_of_another_pod_is_kept() -> None:
    promised = table(occupant("promised", 2, island="required"))
    admitted = table(occupant("promised", 2, admitted=True, island="required"))

    assert is_firm(profile(1), promised)
    assert not is_firm(profile(1), promised, SINGLES[0])
    assert is_firm(profile(1), admitted, SINGLES[0])
