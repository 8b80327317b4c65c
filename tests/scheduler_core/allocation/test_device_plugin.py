"""Predicted allocations, compared with an independent model of the device plugin."""

from __future__ import annotations

from itertools import islice, permutations
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.device_plugin import (
    Prediction,
    PredictionResult,
    check_prediction,
    may_crash_on_subset,
    most_work,
    preferred_sets,
    search_work,
)
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, exact_sets, member_places, some_set, subsets
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.allocation.numa_alignment import KubeletModel, NumaPolicy, possible_alignments
from scheduler_core.request.device_request import ContainerStep, ContainerSteps
from tests.machines import MACHINES
from tests.scheduler_core.allocation.machines16 import MACHINES16, SYMMETRIC, all_alike, uneven
from tests.scheduler_core.allocation.random_graphs import _gpus, graphs
from tests.scheduler_core.builders import mask
from tests.simulated_node.preferred import PluginCrashError, best_effort, pair_scores

DGX1 = shape_of(MACHINES["dgx1"]())
DGX2 = shape_of(MACHINES["dgx2"]())
ALIKE = shape_of(all_alike())
UNEVEN = shape_of(uneven())
H100 = shape_of(MACHINES["hgx_h100"]())
PAIRS = shape_of(MACHINES["a100_bridged"]())
UNKNOWN = shape_of(MACHINES["nvlink_unknown"]())
ALL = 0xFF
SINGLE_NUMA_NODE = KubeletModel(possible_alignments(NumaPolicy.SINGLE_NUMA_NODE))


@pytest.mark.parametrize(
    ("shape", "free", "size", "sets"),
    [
        pytest.param(PAIRS, 0b1111, 2, {0b0011, 0b1100}, id="either bridged pair: a tie"),
        pytest.param(PAIRS, 0b0111, 2, {0b0011}, id="the one that is whole"),
        pytest.param(PAIRS, 0b0101, 1, {0b0001, 0b0100}, id="a single GPU is any"),
        pytest.param(PAIRS, 0b1111, 4, {0b1111}, id="all"),
        pytest.param(PAIRS, 0b0011, 3, set(), id="too few"),
        pytest.param(H100, ALL, 4, {0x0F, 0xF0}, id="an NVSwitch is not seen: the four on one socket"),
        # Two sets of 4: each quad of the cube mesh has 1 + 1 + 2 + 2 + 1 + 2 = 9 links, and no other division 18.
        pytest.param(DGX1, ALL, 4, {0x0F, 0xF0}, id="a quad of the cube mesh"),
    ],
)  # fmt: skip
def test_preferred(shape: MachineShape, free: int, size: int, sets: set[int]) -> None:
    assert preferred_sets(shape, free, size) == Prediction(exact_sets(sets))


def test_search_is_bounded_over_all_free_sets() -> None:
    """Each of the 120 searches is within bounds; together they took seconds, while kube-scheduler waits."""
    two_are_taken = exact_sets(frozenset(subsets(0xFFFF, 14)))

    assert predict_sets(UNEVEN, two_are_taken, (ContainerStep(3),)) == Prediction(some_set(0xFFFF, 3))


def test_padded_set_that_may_win_is_a_possible_crash() -> None:
    """Three of five. [0 1 pad] 1250 and [2 3 4] 60 make 1310, as do [0 1 x] 1290 and [y z] 20: a tie."""
    pcie = tuple(
        tuple(None if a == b else PcieDistance.PIX if {a, b} == {0, 1} else PcieDistance.NODE for b in range(5))
        for a in range(5)
    )
    links = Nvlink(links=(Link(a=0, b=1, lanes=12),))
    found = preferred_sets(shape_of(NodeTopology(gpus=_gpus(5), nvlink=links, pcie=pcie)), 0b11111, 3)

    assert found == Prediction(exact_sets({mask(0, 1, each) for each in (2, 3, 4)}), may_crash=True)


@pytest.mark.parametrize(
    ("shape", "free", "size"),
    [
        pytest.param(UNKNOWN, ALL, 4, id="points unknown"),
        pytest.param(DGX2, 0xFFFF, 2, id="eight sets: the plugin forgets some"),
        pytest.param(DGX2, 0x1FFF, 2, id="seven sets: too"),
    ],
)
def test_unpredictable_allocation_may_be_any_set(shape: MachineShape, free: int, size: int) -> None:
    assert preferred_sets(shape, free, size) == Prediction(exact_sets(set(subsets(free, size))))


def test_very_many_sets_are_not_listed() -> None:
    assert preferred_sets(ALIKE, 0xFFFF, 6) == Prediction(SomeSet(0xFFFF, 6))


def test_containers_are_served_one_after_the_other() -> None:
    assert predict_sets(PAIRS, ExactSets((0b1111,)), (ContainerStep(2), ContainerStep(2))) == Prediction(
        ExactSets((0b1111,))
    )
    assert predict_sets(PAIRS, ExactSets((0b1111,)), (ContainerStep(1), ContainerStep(2))) == Prediction(
        exact_sets({0b0111, 0b1011, 0b1101, 0b1110})
    )


@pytest.mark.parametrize(
    ("program", "sets"),
    [
        pytest.param((ContainerStep(2, False), ContainerStep(2)), {0b0011, 0b1100}, id="given again"),
        pytest.param((ContainerStep(2, False), ContainerStep(1)), {0b0011, 0b1100}, id="one of them is reused"),
        pytest.param((ContainerStep(2), ContainerStep(2, False)), {0b1111}, id="a sidecar's are not given again"),
        pytest.param((ContainerStep(1, False), ContainerStep(2)), {0b0011, 0b1100}, id="and the best to go with it"),
    ],
)  # fmt: skip
def test_gpus_of_init_containers_are_reused(program: ContainerSteps, sets: set[int]) -> None:
    assert predict_sets(PAIRS, ExactSets((0b1111,)), program) == Prediction(exact_sets(sets))


def test_each_free_set_adds_its_outcomes() -> None:
    assert predict_sets(PAIRS, ExactSets((0b0011, 0b1110)), (ContainerStep(2),)) == Prediction(
        ExactSets((0b0011, 0b1100))
    )


def test_unknown_free_gpus_give_any_set() -> None:
    assert predict_sets(PAIRS, SomeSet(0b0111, 2), (ContainerStep(2),)) == Prediction(
        exact_sets({0b0011, 0b0101, 0b0110})
    )
    assert predict_sets(PAIRS, SomeSet(0b0111, 2), (ContainerStep(4),)) == Prediction(ExactSets(()))


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        pytest.param((ContainerStep(6),), 6, id="too many sets"),
        pytest.param((ContainerStep(4), ContainerStep(4), ContainerStep(1)), 9, id="too many in the end"),
        pytest.param((ContainerStep(14, False), ContainerStep(7)), 14, id="too many ways to give again"),
        pytest.param((ContainerStep(2, False), ContainerStep(8)), 8, id="too many ways to add"),
    ],
)
def test_too_many_outcomes_are_any_set(program: ContainerSteps, wanted: int) -> None:
    assert predict_sets(ALIKE, ExactSets((0xFFFF,)), program).sets == SomeSet(0xFFFF, wanted)


def test_outcomes_of_many_free_sets_may_be_too_many_to_list() -> None:
    blind = shape_of(msgspec.structs.replace(MACHINES["dgx2"](), nvlink=None))
    free = exact_sets(set(islice(subsets(0xFFFF, 11), 500)))

    assert predict_sets(blind, free, (ContainerStep(5),)).sets == SomeSet(0xFFFF, 5)


class TestSingleNumaNode:
    """The Topology Manager's policy: all GPUs of a container from the lowest NUMA node with enough GPUs."""

    @pytest.mark.parametrize(
        ("free", "size", "sets"),
        [
            pytest.param(ALL, 4, {0x0F}, id="the first node"),
            pytest.param(0xFE, 4, {0xF0}, id="the one that has enough"),
            pytest.param(0x7E, 4, set(), id="none has"),
            pytest.param(0xF1, 1, {0x01}, id="single GPUs too"),
        ],
    )
    def test_of_known_nodes(self, free: int, size: int, sets: set[int]) -> None:
        assert predict_sets(H100, ExactSets((free,)), (ContainerStep(size),), SINGLE_NUMA_NODE) == Prediction(
            exact_sets(sets)
        )

    def test_no_effect_if_no_gpu_has_a_numa_node(self) -> None:
        vm = shape_of(MACHINES["cloud_vm"]())

        assert predict_sets(vm, ExactSets((ALL,)), (ContainerStep(7),), SINGLE_NUMA_NODE) == preferred_sets(vm, ALL, 7)

    def test_any_set_if_some_gpus_have_no_numa_node(self) -> None:
        odd = shape_of(NodeTopology(gpus=(Gpu(index=0, numa_node=0), Gpu(index=1)), nvlink=Nvlink()))

        assert predict_sets(odd, ExactSets((0b11,)), (ContainerStep(1),), SINGLE_NUMA_NODE) == Prediction(
            ExactSets((0b01, 0b10))
        )
        assert predict_sets(odd, ExactSets((0b11,)), (ContainerStep(3),), SINGLE_NUMA_NODE) == Prediction(ExactSets(()))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(most=5), st.data())
def test_prediction_equals_the_outcomes_of_all_orders(topology: NodeTopology, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << len(topology.gpus)) - 1))
    size = data.draw(st.integers(1, free.bit_count()))
    scores = pair_scores(topology)
    outcomes, crashes = set(), False
    for order in permutations(member_places(free)):
        try:
            outcomes.add(mask(*best_effort(order, (), size, scores)))
        except PluginCrashError:
            crashes = True

    found = preferred_sets(shape_of(topology), free, size)

    assert found.sets == exact_sets(outcomes) or (found.may_crash and outcomes <= set(_listed(found)))
    assert found.may_crash >= crashes


@settings(deadline=None, max_examples=150)
@given(graphs(most=8), st.data())
def test_no_order_gives_an_unpredicted_set(topology: NodeTopology, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << len(topology.gpus)) - 1))
    size = data.draw(st.integers(1, free.bit_count()))
    order = data.draw(st.permutations(list(member_places(free))))
    found = preferred_sets(shape_of(topology), free, size)

    try:
        assert mask(*best_effort(order, (), size, pair_scores(topology))) in _listed(found)
    except PluginCrashError:
        assert found.may_crash


@pytest.mark.parametrize("machine", ["dgx2", "a40x10", "dgx1", "hgx_h100", "a6000_pair_and_one", "ac922"])
def test_real_machines_in_random_orders(machine: str) -> None:
    topology = MACHINES[machine]()
    shape, scores, random = shape_of(topology), pair_scores(topology), Random(machine)
    for _ in range(6 if machine == "dgx2" else 40):
        count = random.randint(2, len(topology.gpus))
        order = random.sample(range(len(topology.gpus)), count)
        size = random.choice(
            [each for each in range(1, count + 1) if machine != "dgx2" or each in (2, 8, 12, 14)] or [1]
        )

        found = preferred_sets(shape, mask(*order), size)

        assert mask(*best_effort(order, (), size, scores)) in _listed(found)


@pytest.mark.parametrize("machine", sorted(MACHINES16))
def test_machines_of_16_gpus_in_random_orders(machine: str) -> None:
    """Whatever the plugin chooses was predicted, exactly or by a bound."""
    topology = MACHINES16[machine]()
    shape, scores, random = shape_of(topology), pair_scores(topology), Random(machine)
    for _ in range(8):
        count = random.randint(4, 12)
        order = random.sample(range(16), count)
        size = random.choice([each for each in range(2, count) if -(-count // each) <= 3])
        found = preferred_sets(shape, mask(*order), size)

        try:
            chosen = mask(*best_effort(order, (), size, scores))
        except PluginCrashError:
            assert found.may_crash
        else:
            assert chosen in _listed(found)


@pytest.mark.parametrize("machine", sorted(SYMMETRIC))
def test_symmetric_machines_of_16_gpus_are_predicted_exactly(machine: str) -> None:
    """No search is given up; the sets are listed, or any set is possible because all are alike."""
    shape, random = shape_of(SYMMETRIC[machine]()), Random(machine)
    for _ in range(40):
        free = random.getrandbits(16) | random.getrandbits(16)
        for size in range(2, free.bit_count()):
            assert search_work(shape, free, size) <= most_work(shape)


def test_pairs_of_a_dgx2_stay_on_one_switch() -> None:
    """Four of sixteen: the four of one quad, and no other."""
    quads = {0x000F << at for at in (0, 4, 8, 12)}

    assert preferred_sets(DGX2, 0xFFFF, 4) == Prediction(exact_sets(quads))
    assert preferred_sets(DGX2, 0xFFFF, 8) == Prediction(exact_sets({0x00FF, 0xFF00}))


@pytest.mark.parametrize("shape", [H100, DGX1, DGX2, PAIRS, UNEVEN, ALIKE, shape_of(MACHINES["dgx_a100"]())])
def test_where_no_crash_is_possible_none_is_predicted(shape: MachineShape) -> None:
    random, places = Random(7), range(len(shape.gpus))
    safe = [size for size in range(1, len(shape.gpus) + 1) if not may_crash_on_subset(shape, shape.whole, size)]
    frees = [mask(*random.sample(places, random.randint(1, len(places)))) for _ in range(40)]

    assert safe[:2] == [1, 2]
    assert not any(preferred_sets(shape, free, size).may_crash for size in safe for free in frees)


@given(graph=graphs())
@settings(max_examples=100, deadline=None)
def test_where_no_crash_is_possible_none_is_predicted_on_any_machine(graph: NodeTopology) -> None:
    shape = shape_of(graph)
    for size in range(1, len(shape.gpus) + 1):
        if not may_crash_on_subset(shape, shape.whole, size):
            found = [preferred_sets(shape, free, size) for free in range(1, shape.whole + 1)]
            assert not any(each.may_crash for each in found)


@pytest.mark.parametrize(("size", "possible"), [(2, False), (3, True), (8, False)])
def test_the_plugin_may_crash_only_where_a_padded_set_may_win(size: int, *, possible: bool) -> None:
    assert may_crash_on_subset(DGX1, ALL, size) is possible


def test_given_up_search_may_crash_the_plugin() -> None:
    """On the safe side: 16 GPUs in sets of 7 need padding, and a padded set may win."""
    assert search_work(UNEVEN, 0xFFFF, 7) > most_work(UNEVEN)
    assert preferred_sets(UNEVEN, 0xFFFF, 7) == Prediction(SomeSet(0xFFFF, 7), may_crash=True)


def _listed(found: Prediction) -> set[int]:
    return (
        set(found.sets.masks) if isinstance(found.sets, ExactSets) else set(subsets(found.sets.among, found.sets.size))
    )


@pytest.mark.parametrize(
    ("predicted", "actual", "found"),
    [
        pytest.param(ExactSets((0b11,)), 0b11, PredictionResult.HIT, id="the one"),
        pytest.param(ExactSets((0b11,)), 0b101, PredictionResult.MISS, id="another than the one"),
        pytest.param(ExactSets((0b11, 0b1100)), 0b1100, PredictionResult.AMBIGUOUS, id="one of two"),
        pytest.param(ExactSets((0b11, 0b1100)), 0b0110, PredictionResult.MISS, id="none of two"),
        pytest.param(SomeSet(0b111, 2), 0b101, PredictionResult.AMBIGUOUS, id="any"),
        pytest.param(SomeSet(0b111, 2), 0b1001, PredictionResult.MISS, id="one that was thought busy"),
    ],
)
def test_check_prediction(predicted: Sets, actual: int, found: PredictionResult) -> None:
    assert check_prediction(predicted, actual) is found
