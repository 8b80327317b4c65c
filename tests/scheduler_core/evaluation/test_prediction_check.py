"""Predictions compared with PodResources reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.evaluation.prediction_check import PredictionCheck, check_predictions
from tests.machines import MACHINES
from tests.scheduler_core.builders import mask, occupant, record

PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
P = occupant("p", 2)


def node(held: Mapping[str, Iterable[int]] | None, *pods: Occupant, departed: Iterable[Occupant] = ()) -> NodeRecord:
    return record("a", PAIRS, held=held, pods=pods, departed=departed)


def test_the_only_possible_outcome() -> None:
    found = check_predictions(
        node({"x": [0, 1]}, occupant("x", 2), P), node({"x": [0, 1], "p": [2, 3]}, occupant("x", 2), P)
    )

    assert found == (PredictionCheck(P, "a", ExactSets((mask(2, 3),)), mask(2, 3), PredictionResult.HIT, None),)


def test_one_of_several_outcomes() -> None:
    found = check_predictions(node({}, P), node({"p": [2, 3]}, P))

    assert found == (
        PredictionCheck(P, "a", ExactSets((mask(0, 1), mask(2, 3))), mask(2, 3), PredictionResult.AMBIGUOUS, None),
    )


def test_an_impossible_outcome() -> None:
    (found,) = check_predictions(node({}, P), node({"p": [1, 2]}, P))

    assert found.check is PredictionResult.MISS


def test_every_order_in_which_pods_may_have_been_admitted_counts() -> None:
    """After the single GPU only one pair is complete; before it both were."""
    single = occupant("single", 1)

    found = check_predictions(node({}, P, single), node({"p": [2, 3], "single": [0]}, P, single))

    assert [(each.predicted, each.check) for each in found] == [
        (ExactSets((mask(0, 1), mask(2, 3))), PredictionResult.AMBIGUOUS),
        (ExactSets((mask(0), mask(1), mask(2), mask(3))), PredictionResult.AMBIGUOUS),
    ]


def test_pod_that_came_and_ended_between_two_reports_may_have_held_gpus() -> None:
    passed = occupant("passed", 1)

    (found,) = check_predictions(
        node({"x": [0]}, occupant("x", 1), P, departed=[passed]), node({"x": [0], "p": [1, 2]}, occupant("x", 1), P)
    )

    assert found.check is PredictionResult.AMBIGUOUS


def test_pod_that_ended_for_the_kubelet_while_the_watch_still_shows_it() -> None:
    """Its GPUs were free before the next pod was admitted, or were not."""
    ends = occupant("ends", 4)

    (found,) = check_predictions(node({"ends": range(4)}, ends, P), node({"p": [0, 1]}, ends, P))

    assert found == PredictionCheck(
        P, "a", ExactSets((mask(0, 1), mask(2, 3))), mask(0, 1), PredictionResult.AMBIGUOUS, None
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(node({"p": [0, 1]}, P), node({"p": [0, 1]}, P), id="named before"),
        pytest.param(node({}, P), node({}, P), id="not named"),
        pytest.param(node({}, P), node({"p": [0]}, P), id="one of its GPUs is missing"),
        pytest.param(node({}), node({"p": [0, 1]}), id="known to nobody"),
        pytest.param(node({}, P), node(None, P), id="no word any more"),
        pytest.param(
            node({}, P), record("a", labels={}, allocatable={"nvidia.com/gpu": 4}, pods=[P]), id="no topology any more"
        ),
    ],
)
def test_nothing_is_checked(before: NodeRecord, after: NodeRecord) -> None:
    assert check_predictions(before, after) == ()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(node(None, P), id="the kubelet had not been asked"),
        pytest.param(record("a", MACHINES["hgx_h100"](), held={}, pods=[P]), id="another machine"),
    ],
)
def test_nothing_could_be_predicted(before: NodeRecord) -> None:
    assert check_predictions(before, node({"p": [0, 1]}, P)) == (PredictionCheck(P, "a", None, mask(0, 1), None, None),)


def test_containers_that_start_one_after_the_other() -> None:
    (found,) = check_predictions(node({"p": [0]}, P), node({"p": [0, 3]}, P))

    assert found == PredictionCheck(P, "a", SomeSet(mask(0, 1, 2, 3), 2), mask(0, 3), PredictionResult.AMBIGUOUS, None)


def test_unknown_unhealthy_gpu_allows_any_outcome() -> None:
    def sick(held: Mapping[str, Iterable[int]]) -> NodeRecord:
        return record("a", PAIRS, held=held, pods=[P], allocatable={"nvidia.com/gpu": 3})

    (found,) = check_predictions(sick({}), sick({"p": [1, 2]}))

    assert (found.predicted, found.check) == (SomeSet(mask(0, 1, 2, 3), 2), PredictionResult.AMBIGUOUS)


def test_violated_constraint_is_named() -> None:
    pod = occupant("p", 2, island="required")

    kept, broken = (check_predictions(node({}, pod), node({"p": gpus}, pod)) for gpus in ([0, 1], [1, 2]))

    assert [each.violated for each in (*kept, *broken)] == [None, Reason.ISLAND]


def test_unknown_fact_is_no_violation() -> None:
    topology = MACHINES["nvlink_unknown"]()
    pod = occupant("p", 2, island="required")

    (found,) = check_predictions(
        record("a", topology, held={}, pods=[pod]), record("a", topology, held={"p": [0, 1]}, pods=[pod])
    )

    assert found.violated is None
