"""The cost of a placement, with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.cluster.pods import is_worse
from gputopo.model import NodeTopology
from scheduler_core.observe.comparison import Comparison, ObservedPlacement
from scheduler_core.observe.totals import PlacementTotals, totals_of
from tests.machines import MACHINES
from tests.scheduler_core.explain.fleets import H100, MIG, PAIRS, QUADS
from tests.scheduler_core.observe.observed_clusters import ObservedCluster, bound, shares

PCIE = MACHINES["rtx4090"]()
BLIND = MACHINES["nvlink_unknown"]()
QUAD_GBPS, PCIE5_GBPS = 200.0, 126.1  # 4 NVLinks of 50 GB/s; 16 lanes of PCIe 5, both ways
# 2 of each island of four of gpu-7 are held, so that its device plugin can only give 2+2.
HALVES = {"a": (0, 1), "b": (4, 5)}


def halved(other: NodeTopology | None) -> ObservedCluster:
    """``gpu-7`` with two GPUs free in each of two islands, and another node where all is free."""
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return ObservedCluster({"gpu-7": QUADS, "gpu-2": other}, *ran, **HALVES)


class TestSeveralGpus:
    def test_a_split_set_cost_the_difference_of_the_rings(self) -> None:
        found = halved(QUADS).place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert found.result is Comparison.WORSE
        assert found.gpus == (2, 3, 6, 7)
        assert found.lost_gbps == pytest.approx(QUAD_GBPS - PCIE5_GBPS)
        assert (found.one_island, found.could_be_one_island) == (False, True)
        assert found.alternatives.by_gputopo is not None
        assert found.alternatives.by_gputopo.node == "gpu-2"

    @pytest.mark.parametrize(("size", "gpus"), [pytest.param(4, (0, 1, 2, 3), id="4"), pytest.param(2, (2, 3), id="2")])
    def test_a_set_as_good_as_ours_cost_nothing(self, size: int, gpus: tuple[int, ...]) -> None:
        found = ObservedCluster({"gpu-2": QUADS}).place(bound("p", size, "gpu-2"), *gpus)

        assert (found.result, found.lost_gbps, found.one_island) == (Comparison.GOOD, 0.0, True)

    def test_more_nvlinks_than_predicted_cost_nothing(self) -> None:
        """Ours would have been the fabric's 900 GB/s on a full machine; nothing is better."""
        observed = ObservedCluster({"gpu-2": PAIRS})
        found = observed.place(bound("p", 4, "gpu-2"), 0, 1, 2, 3)

        assert (found.result, found.lost_gbps) == (Comparison.GOOD, 0.0)

    def test_an_impossible_alternative_does_not_count(self) -> None:
        found = halved(None).place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert (found.result, found.lost_gbps, found.could_be_one_island) == (Comparison.GOOD, 0.0, False)

    def test_two_rings_over_pcie_differ_by_no_number(self) -> None:
        observed = ObservedCluster({"gpu-1": PCIE, "gpu-2": PCIE})
        far = observed.place(bound("p", 2, "gpu-1"), 0, 7)

        assert (far.result, far.lost_gbps) == (Comparison.WORSE, None)
        assert (totals_of(far).worse, totals_of(far).lost_gbps, totals_of(far).worse_by_unknown) == (1, 0.0, 1)

    def test_without_a_report_of_the_kubelet_the_gpus_are_known_where_all_outcomes_are_alike(self) -> None:
        observed = halved(QUADS)
        observed.pods(bound("p", 4, "gpu-7"))
        observed.now += 61
        (found,) = observed.observer.advance_time(observed.now)

        assert (found.result, found.gpus) == (Comparison.WORSE, None)
        assert found.lost_gbps == pytest.approx(QUAD_GBPS - PCIE5_GBPS)

    def test_without_a_report_of_the_kubelet_the_gpus_are_unknown_where_outcomes_differ(self) -> None:
        """Three single GPUs are not reported."""
        observed = ObservedCluster({"gpu-7": QUADS}, *(bound(name, 1, "gpu-7") for name in "abc"))
        observed.pods(bound("p", 4, "gpu-7"))
        (found,) = observed.observer.finish()

        assert found.result is Comparison.UNKNOWN
        assert totals_of(found) == PlacementTotals(placed=1, unknown=1)

    @pytest.mark.parametrize("machine", [None, BLIND], ids=["labels-only", "nvlinks-unknown"])
    def test_unknown_placements_are_in_no_sum(self, machine: NodeTopology | None) -> None:
        observed = ObservedCluster({"gpu-1": machine, "gpu-2": QUADS})
        observed.pods(bound("p", 2, "gpu-1"))
        observed.observer.finish()
        every = observed.observer.placed.total

        assert (every.placed, every.unknown, every.compared, every.lost_gbps) == (1, 1, 0, 0.0)

    def test_a_pod_that_no_node_suited_would_have_waited(self) -> None:
        found = halved(None).place(bound("p", 4, "gpu-7", island="required"), 2, 3, 6, 7)

        assert (found.result, found.lost_gbps, totals_of(found).would_wait) == (Comparison.WAITS, None, 1)

    def test_an_unknown_node_is_not_compared(self) -> None:
        observed = ObservedCluster({"gpu-1": QUADS, "odd": BLIND}, bound("a", 8, "gpu-1"), a=range(8))
        observed.pods(bound("a", 8, "gpu-1"), gone=["a"])
        found = observed.place(bound("p", 2, "odd"), 0, 1)

        assert found.result is Comparison.UNKNOWN


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
        observed = halved(QUADS)
        observed.nodes("gpu-2", **node)
        observed.nodes("gpu-7", labels={"pool": "b"})
        found = observed.place(bound("p", 4, "gpu-7", spec), 2, 3, 6, 7)

        assert found.result is Comparison.GOOD

    def test_its_own_node_counts_though_it_was_cordoned_since(self) -> None:
        observed = halved(None)
        observed.nodes("gpu-7", unschedulable=True)
        found = observed.place(bound("p", 4, "gpu-7"), 2, 3, 6, 7)

        assert (found.result, found.alternatives.by_gputopo is not None) == (Comparison.GOOD, True)

    def test_a_node_that_is_gone_is_not_offered(self) -> None:
        observed = halved(QUADS)
        observed.nodes(gone=["gpu-2"])

        assert observed.place(bound("p", 4, "gpu-7"), 2, 3, 6, 7).result is Comparison.GOOD

    def test_unchecked_rules_are_named(self) -> None:
        term = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
        spec = {
            "affinity": {"podAntiAffinity": term},
            "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}],
            "volumes": [{"persistentVolumeClaim": {"claimName": "data"}}],
        }
        found = halved(QUADS).place(bound("p", 4, "gpu-7", spec), 2, 3, 6, 7)

        assert found.unchecked == ("pod anti-affinity", "topology spread", "volume claims")
        assert totals_of(found).with_unchecked_rules == 1


class TestASingleGpu:
    def test_that_breaks_a_whole_island(self) -> None:
        found = halved(QUADS).place(bound("p", 1, "gpu-2"), 0)

        assert (found.result, found.broke, found.alternatives.sparing) == (Comparison.BROKE, 4, "gpu-7")
        assert (totals_of(found).broke_islands, totals_of(found).broke_needlessly, totals_of(found).compared) == (
            1,
            1,
            0,
        )

    def test_an_eviction_is_unavoidable_if_nothing_else_is_free(self) -> None:
        found = ObservedCluster({"gpu-2": QUADS}).place(bound("p", 1, "gpu-2"), 0)

        assert (found.result, found.alternatives.sparing) == (Comparison.BROKE, None)
        assert (totals_of(found).broke_islands, totals_of(found).broke_needlessly) == (1, 0)

    def test_in_an_island_that_was_broken_before(self) -> None:
        found = halved(QUADS).place(bound("p", 1, "gpu-7"), 2)

        assert (found.result, found.broke) == (Comparison.SINGLE, 0)

    def test_without_a_report_of_the_kubelet_the_gpus_are_known_where_all_outcomes_are_alike(self) -> None:
        observed = halved(QUADS)
        observed.pods(bound("p", 1, "gpu-7"), bound("q", 1, "gpu-2"))
        one, other = observed.observer.finish()

        assert (one.result, other.result, other.broke) == (Comparison.SINGLE, Comparison.BROKE, 4)

    def test_without_a_report_of_the_kubelet_the_gpus_are_unknown_where_outcomes_differ(self) -> None:
        observed = ObservedCluster({"gpu-7": QUADS}, bound("a", 1, "gpu-7"), a=(0,))
        observed.pods(bound("p", 1, "gpu-7"))
        (found,) = observed.observer.finish()

        assert (found.result, totals_of(found).unknown) == (Comparison.UNKNOWN, 1)

    def test_that_may_have_been_the_first_of_its_island_is_unknown(self) -> None:
        """``a`` has one of two GPUs, and it is not reported which."""
        observed = ObservedCluster({"gpu-7": QUADS}, bound("a", 1, "gpu-7"))
        found = observed.place(bound("p", 1, "gpu-7"), 1)

        assert (found.result, found.broke) == (Comparison.UNKNOWN, None)

    @pytest.mark.parametrize("machine", [None, BLIND], ids=["labels-only", "nvlinks-unknown"])
    def test_where_islands_are_unknown_it_is_unknown(self, machine: NodeTopology | None) -> None:
        observed = ObservedCluster({"gpu-1": machine})
        observed.pods(bound("p", 1, "gpu-1"))
        observed.observer.finish()

        assert observed.observer.placed.total.unknown == 1


class TestFoundRunning:
    def test_next_to_the_best_of_its_machine(self) -> None:
        observed = ObservedCluster({"gpu-1": PAIRS}, bound("a", 2, "gpu-1"), bound("b", 1, "gpu-1"), a=(0, 2), b=(1,))
        a, b = sorted(observed.ran, key=lambda each: each.name)

        assert (a.result, a.lost_gbps, a.could_be_one_island) == (Comparison.WORSE, 537.0, True)
        assert (b.result, a.ran_before, b.ran_before) == (Comparison.SINGLE, True, True)
        assert observed.observer.ran.total.lost_gbps == 537.0
        assert observed.observer.placed.total.placed == 0

    def test_where_the_kubelet_does_not_report_the_gpus_they_are_unknown(self) -> None:
        observed = ObservedCluster({"gpu-1": PAIRS, "old": None}, bound("a", 2, "gpu-1"), bound("b", 2, "old"))

        assert [each.result for each in observed.ran] == [Comparison.UNKNOWN, Comparison.UNKNOWN]


def test_shares_and_mig_devices_are_not_judged() -> None:
    observed = ObservedCluster({"cut": MIG})
    observed.pods(shares("p", 2, "cut"))
    observed.observer.finish()

    assert observed.observer.placed.total.shared == 1


def test_the_best_is_not_what_it_got_where_ours_is_better_and_another_node_is_unknown() -> None:
    observed = ObservedCluster({"odd": BLIND, "gpu-1": QUADS, "gpu-2": PAIRS})
    observed.place(bound("a", 2, "gpu-1"), 0, 4)
    found = observed.place(bound("b", 4, "gpu-2"), 0, 1, 2, 3)

    assert found.alternatives.by_gputopo is not None
    assert (found.alternatives.best, found.alternatives.by_gputopo.node) == (found.alternatives.by_gputopo, "gpu-1")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_best_is_never_below_the_real_and_no_loss_is_below_nothing(data: st.DataObject) -> None:
    machines = {f"gpu-{at}": data.draw(st.sampled_from((QUADS, PAIRS, H100, PCIE, BLIND))) for at in range(3)}
    free = {name: {gpu.index for gpu in each.gpus} for name, each in machines.items()}
    observed = ObservedCluster(machines)
    for at in range(data.draw(st.integers(1, 5))):
        name = data.draw(st.sampled_from(sorted(machines)))
        if not free[name]:
            continue
        gpus = data.draw(st.sets(st.sampled_from(sorted(free[name])), min_size=1, max_size=4))
        free[name] -= gpus
        found = observed.place(bound(f"p{at}", len(gpus), name), *gpus)
        _sound(found)


def _sound(found: ObservedPlacement) -> None:
    best, got = found.alternatives.best, found.layout
    assert best is not None
    assert got is not None
    assert not is_worse(best.layout.ring, got.worst.ring)
    assert found.lost_gbps is None or found.lost_gbps >= 0
    if found.alternatives.by_gputopo is not None:
        assert not is_worse(best.layout.ring, found.alternatives.by_gputopo.layout.ring)
