"""What a placement cost, with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.cluster.pods import lesser
from gputopo.model import NodeTopology
from scheduler_core.observe.comparison import Placement, Verdict
from scheduler_core.observe.totals import tally
from tests.machines import MACHINES
from tests.scheduler_core.explain.fleets import H100, MIG, PAIRS, QUADS
from tests.scheduler_core.observe.scenes import Scene, bound, shares

PCIE = MACHINES["rtx4090"]()
BLIND = MACHINES["nvlink_unknown"]()
QUAD_GBPS, PCIE5_GBPS = 200.0, 126.1  # 4 NVLinks of 50 GB/s; 16 lanes of PCIe 5, both ways
# 2 of each island of four of gpu-7 are held, so that its device plugin can only give 2+2.
HALVES = {"a": (0, 1), "b": (4, 5)}


def halved(other: NodeTopology | None) -> Scene:
    """``gpu-7`` with two GPUs free in each of two islands, and another node where all is free."""
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return Scene({"gpu-7": QUADS, "gpu-2": other}, *ran, **HALVES)


class TestSeveralGpus:
    def test_a_split_set_cost_the_difference_of_the_rings(self) -> None:
        found = halved(QUADS).place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert found.verdict is Verdict.WORSE
        assert found.gpus == (2, 3, 6, 7)
        assert found.lost_gbps == pytest.approx(QUAD_GBPS - PCIE5_GBPS)
        assert (found.one_island, found.could_be_one_island) == (False, True)
        assert found.options.ours is not None
        assert found.options.ours.node == "gpu-2"

    @pytest.mark.parametrize(("size", "gpus"), [pytest.param(4, (0, 1, 2, 3), id="4"), pytest.param(2, (2, 3), id="2")])
    def test_a_set_as_good_as_ours_cost_nothing(self, size: int, gpus: tuple[int, ...]) -> None:
        found = Scene({"gpu-2": QUADS}).place(bound("p", size, "gpu-2"), *gpus)

        assert (found.verdict, found.lost_gbps, found.one_island) == (Verdict.GOOD, 0.0, True)

    def test_more_than_we_would_have_promised_cost_nothing(self) -> None:
        """Ours would have been the fabric's 900 GB/s on a full machine; nothing is better."""
        scene = Scene({"gpu-2": PAIRS})
        found = scene.place(bound("p", 4, "gpu-2"), 0, 1, 2, 3)

        assert (found.verdict, found.lost_gbps) == (Verdict.GOOD, 0.0)

    def test_what_nobody_could_have_given_is_not_held_against_it(self) -> None:
        found = halved(None).place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert (found.verdict, found.lost_gbps, found.could_be_one_island) == (Verdict.GOOD, 0.0, False)

    def test_two_rings_over_pcie_differ_by_no_number(self) -> None:
        scene = Scene({"gpu-1": PCIE, "gpu-2": PCIE})
        far = scene.place(bound("p", 2, "gpu-1"), 0, 7)

        assert (far.verdict, far.lost_gbps) == (Verdict.WORSE, None)
        assert (tally(far).worse, tally(far).lost_gbps, tally(far).uncounted) == (1, 0.0, 1)

    def test_without_the_kubelets_word_it_is_known_where_all_outcomes_are_alike(self) -> None:
        scene = halved(QUADS)
        scene.pods(bound("p", 4, "gpu-7"))
        scene.now += 61
        (found,) = scene.observer.tick(scene.now)

        assert (found.verdict, found.gpus) == (Verdict.WORSE, None)
        assert found.lost_gbps == pytest.approx(QUAD_GBPS - PCIE5_GBPS)

    def test_without_the_kubelets_word_it_is_unknown_where_they_differ(self) -> None:
        """Three single GPUs are anywhere: their kubelet has not said which."""
        scene = Scene({"gpu-7": QUADS}, *(bound(name, 1, "gpu-7") for name in "abc"))
        scene.pods(bound("p", 4, "gpu-7"))
        (found,) = scene.observer.finish()

        assert found.verdict is Verdict.UNKNOWN
        assert tally(found)[:3] == (1, 0, 0)
        assert (tally(found).unknown, tally(found).lost_gbps) == (1, 0.0)

    @pytest.mark.parametrize("machine", [None, BLIND], ids=["labels-only", "nvlinks-unknown"])
    def test_what_is_not_known_is_in_no_sum(self, machine: NodeTopology | None) -> None:
        scene = Scene({"gpu-1": machine, "gpu-2": QUADS})
        scene.pods(bound("p", 2, "gpu-1"))
        scene.observer.finish()
        every = scene.observer.placed.all

        assert (every.placed, every.unknown, every.compared, every.lost_gbps) == (1, 1, 0, 0.0)

    def test_a_pod_that_no_node_suited_would_have_waited(self) -> None:
        found = halved(None).place(bound("p", 4, "gpu-7", island="required"), 2, 3, 6, 7)

        assert (found.verdict, found.lost_gbps, tally(found).waits) == (Verdict.WAITS, None, 1)

    def test_where_ours_is_a_node_of_which_nothing_is_known_nothing_is_compared(self) -> None:
        scene = Scene({"gpu-1": QUADS, "odd": BLIND}, bound("a", 8, "gpu-1"), a=range(8))
        scene.pods(bound("a", 8, "gpu-1"), gone=["a"])
        found = scene.place(bound("p", 2, "odd"), 0, 1)

        assert found.verdict is Verdict.UNKNOWN


class TestItsOwnRules:
    @pytest.mark.parametrize(
        ("spec", "node"),
        [
            pytest.param({"nodeSelector": {"pool": "b"}}, {"labels": {"pool": "a"}}, id="node-selector"),
            pytest.param({}, {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}, id="taint"),
            pytest.param({}, {"unschedulable": True}, id="cordon"),
            pytest.param(
                {
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}
                                ]
                            }
                        }
                    }
                },
                {"labels": {"pool": "a"}},
                id="node-affinity",
            ),
        ],
    )
    def test_a_node_that_it_could_not_use_is_not_held_against_it(
        self, spec: dict[str, Any], node: dict[str, Any]
    ) -> None:
        scene = halved(QUADS)
        scene.nodes("gpu-2", **node)
        scene.nodes("gpu-7", labels={"pool": "b"})
        found = scene.place(bound("p", 4, "gpu-7", spec), 2, 3, 6, 7)

        assert found.verdict is Verdict.GOOD

    def test_its_own_node_counts_though_it_was_cordoned_since(self) -> None:
        scene = halved(None)
        scene.nodes("gpu-7", unschedulable=True)
        found = scene.place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert (found.verdict, found.options.ours is not None) == (Verdict.GOOD, True)

    def test_a_node_that_is_gone_is_not_offered(self) -> None:
        scene = halved(QUADS)
        scene.nodes(gone=["gpu-2"])

        assert scene.place(bound("p", 4, "gpu-7"), 2, 3, 6, 7).verdict is Verdict.GOOD

    def test_rules_that_nobody_looks_at_are_named(self) -> None:
        term = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
        spec = {
            "affinity": {"podAntiAffinity": term},
            "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}],
            "volumes": [{"persistentVolumeClaim": {"claimName": "data"}}],
        }
        found = halved(QUADS).place(bound("p", 4, "gpu-7", spec), 2, 3, 6, 7)

        assert found.unchecked == ("pod affinity", "topology spread", "volume claims")
        assert tally(found).unchecked == 1


class TestASingleGpu:
    def test_that_breaks_a_whole_island(self) -> None:
        found = halved(QUADS).place(bound("p", 1, "gpu-2"), 0)

        assert (found.verdict, found.broke, found.options.sparing) == (Verdict.BROKE, 4, "gpu-7")
        assert (tally(found).broke, tally(found).needlessly, tally(found).compared) == (1, 1, 0)

    def test_where_nothing_else_is_free_it_could_not_be_helped(self) -> None:
        found = Scene({"gpu-2": QUADS}).place(bound("p", 1, "gpu-2"), 0)

        assert (found.verdict, found.options.sparing) == (Verdict.BROKE, None)
        assert (tally(found).broke, tally(found).needlessly) == (1, 0)

    def test_in_an_island_that_was_broken_before(self) -> None:
        found = halved(QUADS).place(bound("p", 1, "gpu-7"), 2)

        assert (found.verdict, found.broke) == (Verdict.SINGLE, 0)

    def test_without_the_kubelets_word_it_is_known_where_all_outcomes_are_alike(self) -> None:
        scene = halved(QUADS)
        scene.pods(bound("p", 1, "gpu-7"), bound("q", 1, "gpu-2"))
        one, other = scene.observer.finish()

        assert (one.verdict, other.verdict, other.broke) == (Verdict.SINGLE, Verdict.BROKE, 4)

    def test_without_the_kubelets_word_it_is_unknown_where_they_differ(self) -> None:
        scene = Scene({"gpu-7": QUADS}, bound("a", 1, "gpu-7"), a=(0,))
        scene.pods(bound("p", 1, "gpu-7"))
        (found,) = scene.observer.finish()

        assert (found.verdict, tally(found).unknown) == (Verdict.UNKNOWN, 1)

    def test_that_may_have_been_the_first_of_its_island_is_unknown(self) -> None:
        """``a`` has one of the two GPUs of which one is free, and nobody says which."""
        scene = Scene({"gpu-7": QUADS}, bound("a", 1, "gpu-7"))
        found = scene.place(bound("p", 1, "gpu-7"), 1)

        assert (found.verdict, found.broke) == (Verdict.UNKNOWN, None)

    @pytest.mark.parametrize("machine", [None, BLIND], ids=["labels-only", "nvlinks-unknown"])
    def test_where_islands_are_unknown_it_is_unknown(self, machine: NodeTopology | None) -> None:
        scene = Scene({"gpu-1": machine})
        scene.pods(bound("p", 1, "gpu-1"))
        scene.observer.finish()

        assert scene.observer.placed.all.unknown == 1


class TestFoundRunning:
    def test_next_to_the_best_of_its_machine(self) -> None:
        scene = Scene({"gpu-1": PAIRS}, bound("a", 2, "gpu-1"), bound("b", 1, "gpu-1"), a=(0, 2), b=(1,))
        a, b = sorted(scene.ran, key=lambda each: each.name)

        assert (a.verdict, a.lost_gbps, a.could_be_one_island) == (Verdict.WORSE, 537.0, True)
        assert (b.verdict, a.found, b.found) == (Verdict.SINGLE, True, True)
        assert scene.observer.ran.all.lost_gbps == 537.0
        assert scene.observer.placed.all.placed == 0

    def test_where_its_kubelet_does_not_say_which_it_is_unknown(self) -> None:
        scene = Scene({"gpu-1": PAIRS, "old": None}, bound("a", 2, "gpu-1"), bound("b", 2, "old"))

        assert [each.verdict for each in scene.ran] == [Verdict.UNKNOWN, Verdict.UNKNOWN]


def test_shares_and_mig_devices_are_not_judged() -> None:
    scene = Scene({"cut": MIG})
    scene.pods(shares("p", 2, "cut"))
    scene.observer.finish()

    assert scene.observer.placed.all.shared == 1


def test_the_best_is_not_what_it_got_where_ours_is_better_and_another_node_is_unknown() -> None:
    scene = Scene({"odd": BLIND, "gpu-1": QUADS, "gpu-2": PAIRS})
    scene.place(bound("a", 2, "gpu-1"), 0, 4)
    found = scene.place(bound("b", 4, "gpu-2"), 0, 1, 2, 3)

    assert found.options.ours is not None
    assert (found.options.best, found.options.ours.node) == (found.options.ours, "gpu-1")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_best_is_never_below_the_real_and_no_loss_is_below_nothing(data: st.DataObject) -> None:
    machines = {f"gpu-{at}": data.draw(st.sampled_from((QUADS, PAIRS, H100, PCIE, BLIND))) for at in range(3)}
    free = {name: {gpu.index for gpu in each.gpus} for name, each in machines.items()}
    scene = Scene(machines)
    for at in range(data.draw(st.integers(1, 5))):
        name = data.draw(st.sampled_from(sorted(machines)))
        if not free[name]:
            continue
        gpus = data.draw(st.sets(st.sampled_from(sorted(free[name])), min_size=1, max_size=4))
        free[name] -= gpus
        found = scene.place(bound(f"p{at}", len(gpus), name), *gpus)
        _sound(found)


def _sound(found: Placement) -> None:
    best, got = found.options.best, found.got
    assert best is not None
    assert got is not None
    assert not lesser(best.lay.ring, got.worst.ring)
    assert found.lost_gbps is None or found.lost_gbps >= 0
    if found.options.ours is not None:
        assert not lesser(best.lay.ring, found.options.ours.lay.ring)
