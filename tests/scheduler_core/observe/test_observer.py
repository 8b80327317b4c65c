"""Batches of the watches -> placements, in whatever order they come."""

from __future__ import annotations

import msgspec

from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.observe.cluster_now import ClusterNow
from scheduler_core.observe.comparison import Comparison
from scheduler_core.observe.observer import MAX_WAIT_S, Observer
from scheduler_core.policy.policy import Policy
from tests.scheduler_core.builders import kubelet_report
from tests.scheduler_core.explain.fleets import PAIRS, QUADS
from tests.scheduler_core.observe.observed_clusters import ObservedCluster, bound


def test_a_pod_is_judged_when_its_kubelet_has_named_its_gpus_and_once() -> None:
    observed = ObservedCluster({"gpu-1": QUADS, "gpu-2": QUADS})
    pod = bound("p", 2, "gpu-1")
    assert observed.pods(pod._replace(node=None)) == ()
    assert observed.pods(pod) == ()
    assert observed.words("gpu-2") == ()  # another's word
    assert observed.words("gpu-1", observed="2026-11-18T11:01:00Z") == ()  # a heartbeat that does not know it yet
    assert observed.observer.report(observed.now).pending == 1
    observed.holds["gpu-1"]["p"] = (0,)
    assert observed.words("gpu-1") == ()  # its second container has yet to start
    observed.holds["gpu-1"]["p"] = (0, 1)

    (found,) = observed.words("gpu-1")

    assert found.gpus == (0, 1)
    assert observed.words("gpu-1", observed="2026-11-18T11:02:00Z") == ()
    assert observed.observer.finish() == ()
    assert observed.observer.report(observed.now).pending == 0


def test_a_pod_that_the_kubelet_reported_before_the_watch_delivered_its_binding() -> None:
    observed = ObservedCluster({"gpu-1": QUADS})
    pod = bound("p", 2, "gpu-1")
    observed.pods(pod._replace(node=None))
    observed.holds["gpu-1"]["p"] = (0, 1)
    assert observed.words("gpu-1") == ()

    (found,) = observed.pods(pod)

    assert (found.gpus, found.result) == ((0, 1), Comparison.GOOD)


def test_a_pod_without_a_report_is_compared_after_the_wait() -> None:
    observed = ObservedCluster({"gpu-1": QUADS})
    observed.pods(bound("p", 2, "gpu-1"))

    assert observed.observer.advance_time(observed.now + MAX_WAIT_S) == ()
    (found,) = observed.observer.advance_time(observed.now + MAX_WAIT_S + 1)
    assert (found.gpus, found.result) == (None, Comparison.GOOD)


def test_a_pod_that_ends_before_its_kubelet_reports_is_checked_at_its_end() -> None:
    observed = ObservedCluster({"gpu-1": QUADS})
    observed.pods(bound("p", 2, "gpu-1"))

    (found,) = observed.pods(gone=["p"])

    assert (found.name, found.gpus) == ("p", None)
    assert observed.pods(gone=["p"]) == ()


def test_the_end_of_an_observed_pod_changes_nothing() -> None:
    observed = ObservedCluster({"gpu-1": QUADS}, bound("a", 2, "gpu-1"), a=(0, 1))

    assert observed.pods(gone=["a"]) == ()
    assert observed.observer.placed.total.placed == 0


def test_a_node_without_an_agent_is_not_waited_for() -> None:
    observed = ObservedCluster({"gpu-1": QUADS, "old": None})
    silent = NodeGpusUpdate("gpu-1", kubelet_report(QUADS, None))
    observed.observer.apply_batch(Batch(NodeGpusUpdate, (silent,)), observed.now)

    found = observed.pods(bound("p", 2, "gpu-1"), bound("q", 2, "old"), bound("r", 2, "never-seen"))

    assert [(each.name, each.result) for each in found] == [
        ("p", Comparison.GOOD),
        ("q", Comparison.UNKNOWN),
        ("r", Comparison.UNKNOWN),
    ]


def test_pods_bound_together_are_judged_each_by_what_was_left() -> None:
    """The second finds no island of four left anywhere, so its 2+2 cost nothing."""
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"), bound("c", 4, "gpu-2"))
    observed = ObservedCluster({"gpu-7": QUADS, "gpu-2": QUADS}, *ran, a=(0, 1), b=(4, 5), c=(0, 1, 2, 3))
    first, second = bound("p", 4, "gpu-2"), bound("q", 4, "gpu-7")
    assert observed.pods(first, second) == ()
    observed.holds["gpu-2"]["p"], observed.holds["gpu-7"]["q"] = (4, 5, 6, 7), (2, 3, 6, 7)

    found = observed.words("gpu-2", "gpu-7")

    assert [(each.name, each.result, each.could_be_one_island) for each in found] == [
        ("p", Comparison.GOOD, True),
        ("q", Comparison.GOOD, False),
    ]


def test_nothing_is_reported_before_the_watches_are_synced() -> None:
    observer, observed = Observer(Policy()), ObservedCluster({"gpu-1": QUADS})
    for kind in (NodeGpusUpdate, NodeUpdate):
        assert observer.apply_batch(Batch(kind, (), (), is_full_list=True), observed.now) == ()
    assert observer.report(observed.now).since == observed.now

    (ran,) = observer.apply_batch(
        Batch(PodUpdate, (bound("p", 2, "gpu-1"), bound("q", 2, None)), (), is_full_list=True), 7.0
    )

    assert (ran.name, ran.ran_before) == ("p", True)
    assert observer.report(observed.now).since == 7.0


def test_a_new_list_of_nodes_replaces_what_was_known_of_their_rules() -> None:
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    observed = ObservedCluster({"gpu-7": QUADS, "gpu-2": QUADS}, *ran, a=(0, 1), b=(4, 5))
    observed.nodes("gpu-2", unschedulable=True)
    observed.nodes("gpu-7", "gpu-2", complete=True)

    assert observed.place(bound("p", 4, "gpu-7"), 2, 3, 6, 7).result is Comparison.WORSE


def test_a_topology_that_changed_in_between_does_not_mix_with_the_old_one() -> None:
    observed = ObservedCluster({"gpu-1": QUADS})
    observed.pods(bound("p", 1, "gpu-1"))
    observed.machines["gpu-1"] = PAIRS
    observed.nodes("gpu-1")
    observed.holds["gpu-1"]["p"] = (3,)

    (found,) = observed.words("gpu-1")

    assert (found.result, found.broke, found.gpus) == (Comparison.BROKE, 4, (3,))  # by what was known before


def test_the_present_state() -> None:
    ran = (bound("a", 1, "gpu-1"), bound("b", 2, "gpu-2"))
    observed = ObservedCluster({"gpu-1": QUADS, "gpu-2": PAIRS, "old": None}, *ran, a=(0,), b=(0, 1))

    now = observed.observer.report(observed.now).now

    assert now == ClusterNow(
        nodes=2,
        unknown_nodes=1,
        gpus=12,
        free=9,
        free_in_islands=9,
        free_in_whole_islands=6,
        islands_by_free_gpus={4: 1, 3: 1, 2: 1},
    )
    observed.nodes("gpu-1", unschedulable=True)
    assert observed.observer.report(observed.now).now == ClusterNow(
        nodes=2,
        unknown_nodes=1,
        gpus=12,
        free=2,
        free_in_islands=2,
        free_in_whole_islands=2,
        islands_by_free_gpus={2: 1},
    )
    assert now.broken_share == 1 - 6 / 9
    assert ClusterNow().broken_share is None
    assert msgspec.json.encode(now)
