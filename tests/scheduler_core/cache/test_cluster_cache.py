"""The cluster cache: every order in which the watches may show objects, and the changes that it returns."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from gputopo.crd.nodegpus import Allocation, NodeGpus, PodRef
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, BoundPod, CacheChanges, NodeGpusUpdate
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED, mask, occupant
from tests.scheduler_core.fake_scheduler import Stage, asking, seen

PAIRS = MACHINES["a100_bridged"]()
H100 = MACHINES["hgx_h100"]()
A = {"a": PAIRS}
LATER = "2026-11-18T11:02:00Z"


def free(stage: Stage, name: str = "a") -> object:
    return stage.state(name).free


class TestSync:
    """The cache is not ready before all lists."""

    def test_all_three_lists_are_needed(self) -> None:
        stage = Stage(A)
        assert (stage.knowledge.synced, stage.knowledge.missing_kinds) == (False, ("nodes", "pods", "nodegpus"))

        stage.nodes()
        stage.nodes(complete=True)
        stage.words({}, complete=True)
        assert (stage.knowledge.synced, stage.knowledge.missing_kinds) == (False, ("pods",))

        stage.pods(complete=True)
        assert (stage.knowledge.synced, stage.knowledge.missing_kinds) == (True, ())

    def test_first_lists_cause_no_changes(self) -> None:
        stage = Stage(A)

        told = [
            stage.nodes(complete=True),
            stage.pods(seen("p", 2, "a", admitted=True), complete=True),
            stage.words({"a": {"p": [0, 1]}}, complete=True),
        ]

        assert told == [CacheChanges()] * 3

    @pytest.mark.parametrize("order", list(permutations(("nodes", "pods", "words"))), ids="-".join)
    def test_order_of_the_lists_makes_no_difference(self, order: tuple[str, ...]) -> None:
        stage = Stage(A)
        lists = {
            "nodes": lambda: stage.nodes(complete=True),
            "pods": lambda: stage.pods(seen("p", 1, "a"), complete=True),
            "words": lambda: stage.words({"a": {"p": [1], "ghost": [3]}}, complete=True),
        }
        for name in order:
            lists[name]()
        stage.now += ASSUMED_POD_LIFETIME_S
        stage.knowledge.advance_time(stage.now)

        assert free(stage) == ExactSets((mask(0, 2, 3),))
        assert list(stage.knowledge.pods) == ["uid-p"]

    def test_the_same_list_again_changes_nothing(self) -> None:
        stage = Stage.set(A, seen("p", 1, "a"))
        table = stage.knowledge.table

        stage.nodes(complete=True)
        stage.pods(seen("p", 1, "a"), complete=True)
        stage.words({"a": {}}, complete=True)

        assert stage.knowledge.table is table


class TestPods:
    """The pod watch."""

    def test_pod_gets_a_node(self) -> None:
        stage = Stage.set(A)
        stage.pods(seen("p", 2))
        before = stage.knowledge.table

        told = stage.pods(seen("p", 2, "a"))

        assert told == CacheChanges(bound_pods=(BoundPod(seen("p", 2, "a"), before),))
        assert stage.state("a").free_devices("nvidia.com/gpu") == 2
        assert stage.pods(seen("p", 2, "a", admitted=True)) == CacheChanges()  # it was bound already

    def test_the_snapshot_before_a_binding_does_not_contain_the_assumed_pod(self) -> None:
        stage = Stage.set(A)
        stage.ask(asking("p", 2, island="required"))

        (bound,) = stage.pods(seen("p", 2, "a", island="required")).bound_pods

        assert bound.table_before.states["a"].free_devices("nvidia.com/gpu") == 4

    def test_pods_bound_in_one_batch_are_bound_one_after_the_other(self) -> None:
        stage = Stage.set(A)

        told = stage.pods(seen("p", 1, "a"), seen("q", 1, "a"))

        assert [each.table_before.states["a"].free_devices("nvidia.com/gpu") for each in told.bound_pods] == [4, 3]

    def test_pod_is_deleted_before_it_was_bound(self) -> None:
        stage = Stage.set(A)
        stage.pods(seen("p", 2))

        assert stage.pods(gone=["uid-p", "uid-never-seen"]) == CacheChanges(removed_pods=(seen("p", 2),))
        assert not stage.knowledge.pods

    def test_list_after_a_gap_shows_what_was_missed(self) -> None:
        """One pod was bound, one ended, one was created and bound, one was replaced by a pod of the same name."""
        stage = Stage.set({"a": H100, "b": H100}, seen("ended", 1, "a"), seen("web-0", 1, "a"), seen("moved", 1, "a"))
        stage.pods(seen("waits", 1))

        told = stage.pods(
            seen("waits", 1, "a"),
            seen("new", 1, "b"),
            seen("web-0", 1, "b", uid="uid-2"),
            seen("moved", 1, "b"),
            complete=True,
        )

        assert [each.pod.key for each in told.bound_pods] == ["uid-waits", "uid-new", "uid-2"]
        assert {each.key for each in told.removed_pods} == {"uid-ended", "uid-web-0"}
        assert {name: [pod.uid for pod in record.pods] for name, record in stage.knowledge.table.records.items()} == {
            "a": ["uid-waits"],
            "b": ["uid-2", "uid-moved", "uid-new"],
        }

    def test_pod_of_the_same_name_is_shown_before_the_old_pod_is_deleted(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS}, seen("web-0", 1, "a"))
        stage.pods(seen("web-0", 1, uid="uid-2"))
        stage.pods(gone=["uid-web-0"])

        (found,) = stage.checks({"b": {"web-0": [1]}})  # names the new pod, which was not shown bound

        assert (found.pod.uid, found.actual) == ("uid-2", mask(1))


class TestNodes:
    """The node watch."""

    def test_pod_on_a_node_that_is_shown_later(self) -> None:
        stage = Stage({"a": PAIRS, "b": PAIRS})
        stage.nodes("a", complete=True)
        stage.pods(complete=True)
        stage.words({}, complete=True)
        stage.pods(seen("p", 2, "b"))
        stage.words({"b": {"p": [0, 1]}})
        assert set(stage.knowledge.table.records) == {"a"}

        stage.nodes("b")

        assert free(stage, "b") == ExactSets((mask(2, 3),))

    def test_node_is_deleted_and_created_again(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS}, seen("p", 2, "a"))
        stage.nodes(gone=["a", "never-shown"])
        assert set(stage.knowledge.table.records) == {"b"}
        generation = stage.knowledge.table.generation

        stage.pods(gone=["uid-p"])  # the garbage collector comes later
        assert stage.knowledge.table.generation == generation
        stage.words({}, gone=["a"])
        stage.nodes("a")

        assert stage.state("a").free_devices("nvidia.com/gpu") == 4

    def test_node_missing_in_a_list_is_removed(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS})

        stage.nodes("b", complete=True)

        assert set(stage.knowledge.table.records) == {"b"}

    def test_assumed_pod_on_a_removed_node(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS})
        stage.ask(asking("p", 4), "a")

        stage.nodes(gone=["a"])

        assert set(stage.ask(asking("p", 4)).nodes) == {"b"}

    def test_another_machine_under_the_same_name(self) -> None:
        stage = Stage.set(A)
        stage.machines["a"] = H100

        stage.nodes("a")

        assert stage.state("a").free_devices("nvidia.com/gpu") == 8


class TestKubeletReports:
    """PodResources reports."""

    def test_unbound_pod_named_in_a_report_is_assumed(self) -> None:
        """The pod watch lags; the pod counts as on the node."""
        stage = Stage.set(A)
        stage.pods(seen("p", 1))

        (found,) = stage.checks({"a": {"p": [1]}})

        assert (found.pod.uid, found.actual, found.check) == ("uid-p", mask(1), PredictionResult.AMBIGUOUS)
        assert free(stage) == ExactSets((mask(0, 2, 3),))
        stage.pods(seen("p", 1, "a", admitted=True))
        assert free(stage) == ExactSets((mask(0, 2, 3),))

    def test_unknown_pod_named_in_a_report_is_assumed_for_a_while(self) -> None:
        stage = Stage.set(A)

        assert stage.checks({"a": {"p": [0, 1]}}) == ()
        assert (free(stage), stage.state("a").free_devices("nvidia.com/gpu")) == (ExactSets((mask(2, 3),)), 2)

        stage.now += ASSUMED_POD_LIFETIME_S
        stage.knowledge.advance_time(stage.now)
        assert (free(stage), stage.state("a").free_devices("nvidia.com/gpu")) == (ExactSets((mask(0, 1, 2, 3),)), 4)
        stage.words({"a": {"p": [0, 1]}}, observed=LATER)  # repeated, so no change
        assert stage.state("a").free_devices("nvidia.com/gpu") == 4

    def test_placeholder_is_replaced_when_the_pod_is_shown(self) -> None:
        stage = Stage.set(A)
        stage.words({"a": {"p": [0, 1]}})

        stage.pods(seen("p", 2, "a"))

        assert len(stage.knowledge.assumed_pods) == 0
        assert free(stage) == ExactSets((mask(2, 3),))

    def test_placeholder_ends_when_the_report_no_longer_names_it(self) -> None:
        stage = Stage.set(A)
        stage.words({"a": {"p": [0, 1]}})

        stage.pods(seen("p", 2, "a"))
        stage.pods(gone=["uid-p"])

        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))

    def test_in_flight_pod_named_in_a_report_is_on_that_node(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS})
        stage.pods(seen("p", 1))
        stage.ask(asking("p", 1))

        stage.words({"b": {"p": [1]}})

        assert stage.knowledge.assumed_pods.on_several_nodes == ()
        assert [stage.state(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 3]

    def test_old_report_about_a_pod_that_is_assumed_elsewhere(self) -> None:
        """A stateful pod was on a before the start, and goes to b now; the agent of a is dead."""
        stage = Stage.set({"a": PAIRS, "b": PAIRS})
        stage.pods(seen("web-0", 1))
        stage.ask(asking("web-0", 1), "b")

        stage.words({"a": {"web-0": [1]}})

        assert [stage.state(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [3, 3]
        stage.now += ASSUMED_POD_LIFETIME_S
        stage.knowledge.advance_time(stage.now)
        assert stage.state("a").free_devices("nvidia.com/gpu") == 4

    def test_repeated_report_causes_no_change(self) -> None:
        stage = Stage.set(A, seen("p", 1, "a"))
        assert len(stage.checks({"a": {"p": [1]}})) == 1

        assert stage.checks({"a": {"p": [1]}}) == ()
        assert stage.checks({"a": {"p": [1]}}, observed=LATER) == ()

    def test_report_is_deleted(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS}, seen("p", 1, "a"))
        stage.words({"a": {"p": [1]}})

        stage.words({"b": {}}, complete=True)

        assert stage.knowledge.table.records["a"].gpus is None
        assert stage.state("a").free_devices("nvidia.com/gpu") == 3

    def test_pod_has_ended_and_the_report_still_names_it(self) -> None:
        stage = Stage.set(A, seen("p", 2, "a"))
        stage.words({"a": {"p": [0, 1]}})

        stage.pods(gone=["uid-p"])
        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))
        stage.words({"a": {"p": [0, 1]}}, observed=LATER)
        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))
        stage.pods(seen("q", 2, "a"))

        assert free(stage) == ExactSets((mask(0, 1), mask(2, 3), mask(0, 1, 2, 3)))  # q may have got its GPUs

    def test_pod_ends_on_a_node_without_reports(self) -> None:
        stage = Stage.set(A, seen("p", 2, "a"))
        stage.words({}, gone=["a"])

        stage.pods(gone=["uid-p"])

        assert stage.state("a").free_devices("nvidia.com/gpu") == 4
        assert stage.knowledge.table.records["a"].departed == ()

    def test_stateful_pod_replaces_a_pod_of_the_same_name(self) -> None:
        """Reports contain no UIDs: only a report younger than the old pod's end can mean the new pod."""
        stage = Stage.set(A, seen("web-0", 2, "a"))
        stage.words({"a": {"web-0": [0, 1]}})
        stage.now = NOW - 300
        stage.pods(gone=["uid-web-0"])
        stage.pods(seen("web-0", 2, "a", uid="uid-2", admitted=True))

        stage.words({"a": {"web-0": [0, 1]}}, observed="2026-11-18T11:06:45Z")
        assert stage.knowledge.table.records["a"].departed != ()
        stage.words({"a": {"web-0": [0, 1]}}, observed="2026-11-18T11:06:51Z")

        assert stage.knowledge.table.records["a"].departed == ()
        assert free(stage) == ExactSets((mask(2, 3),))

    def test_mig_devices_and_shares_create_no_placeholder(self) -> None:
        stage = Stage.set(A)
        gpu = PAIRS.gpus[0].uuid or ""
        held = (
            Allocation(gpu, PodRef("team", "x", "c"), replica=1),
            Allocation(gpu, PodRef("team", "y", "c"), mig_device="MIG-1"),
        )

        stage.knowledge.apply_batch(
            Batch(NodeGpusUpdate, (NodeGpusUpdate("a", NodeGpus(OBSERVED, "hash", "1", held)),)), stage.now
        )

        assert len(stage.knowledge.assumed_pods) == 0


class TestTime:
    """Staleness and the clock."""

    def test_observation_becomes_stale_and_the_next_one_is_fresh(self) -> None:
        stage = Stage.set(A)
        assert not stage.state("a").stale

        stage.now = NOW + 501  # 901 seconds after the observation
        stage.knowledge.advance_time(stage.now)
        assert stage.state("a").stale

        stage.words({"a": {}}, observed="2026-11-18T11:10:00Z")
        assert not stage.state("a").stale

    def test_clock_that_is_set_back_makes_nothing_fresh(self) -> None:
        stage = Stage.set(A)
        stage.knowledge.advance_time(NOW + 501)

        stage.nodes(gone=["a"])
        stage.nodes("a")

        assert stage.state("a").stale


def test_record_of_a_removed_node_is_dropped_once_nothing_is_known_of_it() -> None:
    knowledge = ClusterCache(Policy())
    stage = Stage.set(A, seen("p", 1, "b"))
    stage.pods(gone=["uid-p"])

    assert stage.knowledge._records.keys() == {"a"}
    assert knowledge.table.generation == 0


def test_bound_pod_that_changes_its_request_is_counted_again() -> None:
    stage = Stage.set(A, seen("p", 1, "a"))

    stage.pods(seen("p", 2, "a"))

    assert stage.state("a").free_devices("nvidia.com/gpu") == 2
    assert stage.knowledge.pods["uid-p"].occupant == occupant("p", 2)


def test_former_snapshots_do_not_change() -> None:
    stage = Stage.set(A)
    before = stage.knowledge.table
    states: dict[str, NodeState] = dict(before.states)
    text = msgspec.json.encode(dict(before.records))

    stage.pods(seen("p", 1, "a"))
    stage.words({"a": {"p": [0]}})

    assert stage.knowledge.table is not before
    assert (dict(before.states), msgspec.json.encode(dict(before.records))) == (states, text)
