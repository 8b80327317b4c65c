"""The device plugin's preference, worked out by hand on machines small enough for that."""

from __future__ import annotations

from itertools import combinations, permutations

import msgspec
import pytest

from gputopo.model import NodeTopology
from tests.simulated_node.preferred import PluginCrashError, Scores, best_effort, pair_scores
from tests.simulated_node.shapes import bridged_pairs_8, cube_mesh_8, islands_4_4, nvswitch_8, pcie_8

ALL = tuple(range(8))


def _scores(count: int, **pairs: int) -> Scores:
    """10 points (across the sockets) for each pair, but for those named: ``_0_1=1210``."""
    named = {tuple(int(part) for part in name.strip("_").split("_")): points for name, points in pairs.items()}
    return {pair: named.get(pair, 10) for pair in combinations(range(count), 2)}


def test_pairs_score_what_lies_between_them_and_100_for_each_nvlink() -> None:
    scores = pair_scores(bridged_pairs_8())

    assert {pair: points for pair, points in scores.items() if pair[0] == 0} == {
        (0, 1): 50 + 1200,  # one PCIe switch, a bridge of 12 links
        (0, 2): 20,
        (0, 3): 20,
        (0, 4): 10,
        (0, 5): 10,
        (0, 6): 10,
        (0, 7): 10,
    }


def test_nvswitch_is_not_seen() -> None:
    assert pair_scores(nvswitch_8()) == pair_scores(pcie_8())


def test_pair_whose_distance_is_unknown_cannot_be_scored() -> None:
    blind = msgspec.structs.replace(pcie_8(), pcie=())

    with pytest.raises(ValueError, match="what lies between GPU 0 and GPU 1 is not known"):
        pair_scores(blind)


def test_machine_of_which_no_nvlink_is_known_is_scored_by_pcie() -> None:
    assert pair_scores(msgspec.structs.replace(pcie_8(), nvlink=None)) == pair_scores(pcie_8())


@pytest.mark.parametrize(
    ("shape", "available", "size", "preferred"),
    [
        # Two sets of 4: the islands (6 pairs of 420 or 450 each). Equal, so the one that is seen first.
        pytest.param(islands_4_4(), ALL, 4, (0, 1, 2, 3), id="an island"),
        pytest.param(islands_4_4(), (5, 0, 1, 2, 3, 4, 6, 7), 4, (5, 4, 6, 7), id="the island of the first offered"),
        # All four pairs on a switch (450): of equal sets the first.
        pytest.param(islands_4_4(), (6, 1, 0, 7, 2, 3, 4, 5), 2, (6, 7), id="a pair on a switch"),
        pytest.param(islands_4_4(), (3, 0, 1), 1, (3,), id="one: the first offered"),
        # [0 1 2] [5 6 7] and [3 4 pad]: 1290 + 1290 + 10; with [3 4 5] [6 7 pad] only 1290 + 470 + 450.
        pytest.param(islands_4_4(), ALL, 3, (0, 1, 2), id="three, the rest padded"),
        # 5 to 8 have no island left for 5: the one division of 8 into 5 and 3 with an island in the 5.
        pytest.param(islands_4_4(), ALL, 5, (0, 1, 2, 3, 4), id="more than an island"),
        pytest.param(islands_4_4(), ALL, 8, ALL, id="all"),
        # [0 4] 210, [1 5] 210, [2 3] 250, [6 7] 250 make 920; with [0 1] 150 and [4 5] 150 only 800.
        pytest.param(cube_mesh_8(), ALL, 2, (2, 3), id="best pair of the best division, not the first"),
        pytest.param(bridged_pairs_8(), (0, 2, 4, 6, 7), 2, (6, 7), id="the bridge that is whole"),
        pytest.param(pcie_8(), (7, 0, 1), 4, (), id="too few"),
        pytest.param(pcie_8(), ALL, 0, (), id="none asked"),
    ],
)
def test_preferred(shape: NodeTopology, available: tuple[int, ...], size: int, preferred: tuple[int, ...]) -> None:
    assert best_effort(available, (), size, pair_scores(shape)) == preferred


@pytest.mark.parametrize(
    ("required", "size", "preferred"),
    [
        pytest.param((5,), 1, (5,), id="the one"),
        pytest.param((5,), 4, (4, 5, 6, 7), id="its island"),
        pytest.param((0, 4), 2, (0, 4), id="both, though far apart"),
        pytest.param((0, 1, 2), 2, (), id="more than asked"),
    ],
)
def test_required_gpus_are_among_the_preferred(
    required: tuple[int, ...], size: int, preferred: tuple[int, ...]
) -> None:
    assert best_effort(ALL, required, size, pair_scores(islands_4_4())) == preferred


def test_order_of_the_offer_decides_ties_and_nothing_else() -> None:
    """On a machine of four bridged pairs all orders together yield each pair, and nothing but pairs."""
    scores = pair_scores(bridged_pairs_8())

    outcomes = {frozenset(best_effort(order, (), 2, scores)) for order in permutations((0, 1, 2, 3, 4, 6))}

    assert outcomes == {frozenset({0, 1}), frozenset({2, 3})}


def test_padded_set_that_wins_crashes_the_plugin() -> None:
    """Three of five. [2 3 4] 90 and [0 1 pad] 1210 make 1300; [0 1 x] 1230 and the other two 50 at most."""
    scores = _scores(5, _0_1=1210, _2_3=50, _2_4=20, _3_4=20)

    with pytest.raises(PluginCrashError, match=r"5 GPUs in sets of 3: the padded set \(0, 1\) wins"):
        best_effort((0, 1, 2, 3, 4), (), 3, scores)


def test_required_gpu_keeps_a_padded_set_from_winning() -> None:
    scores = _scores(5, _0_1=1210, _2_3=50, _2_4=20, _3_4=20)

    assert best_effort((0, 1, 2, 3, 4), (2,), 3, scores) == (2, 3, 4)


def test_best_of_six_sets_is_found() -> None:
    assert best_effort(range(12), (), 2, _scores(12, _10_11=110)) == (10, 11)


def test_best_of_seven_sets_is_forgotten() -> None:
    """The sixth and seventh are overwritten by the last candidate: [10 13] [11 12]."""
    assert best_effort(range(14), (), 2, _scores(14, _12_13=110)) == (0, 1)


def test_required_gpus_in_a_forgotten_set_leave_no_preference() -> None:
    assert best_effort(range(14), (12, 13), 2, _scores(14, _12_13=110)) == ()


def test_nine_sets_are_cached_correctly() -> None:
    """The ninth set makes the slice grow, into an array of its own."""
    assert best_effort(range(18), (16, 17), 2, _scores(18)) == (16, 17)
