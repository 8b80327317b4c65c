"""The cluster cache: every order in which the watches may show objects, and the changes that it returns."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.timing import ASSUMED_POD_LIFETIME_S, ENDED_POD_SETTLES_S
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, BoundPod, CacheChanges, NodeGpusUpdate
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED, mask, occupant
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod

PAIRS = MACHINES["a100_bridged"]()
H100 = MACHINES["hgx_h100"]()
A = {"a": PAIRS}
LATER = "2026-11-18T11:02:00Z"


def free(stage: FakeScheduler, name: str = "a") -> object:
    return stage.state_of(name).free


class TestSync:
    """The cache is not ready before all lists."""

    def test_all_three_lists_are_needed(self) -> None:
        stage = FakeScheduler(A)
        assert (stage.cache.synced, stage.cache.missing_kinds) == (False, ("nodes", "pods", "nodegpus"))

        stage.watch_nodes()
        stage.watch_nodes(complete=True)
        stage.watch_reports({}, complete=True)
        assert (stage.cache.synced, stage.cache.missing_kinds) == (False, ("pods",))

        stage.watch_pods(complete=True)
        assert (stage.cache.synced, stage.cache.missing_kinds) == (True, ())

    def test_first_lists_cause_no_changes(self) -> None:
        stage = FakeScheduler(A)

        result = [
            stage.watch_nodes(complete=True),
            stage.watch_pods(pod_update("p", 2, "a", admitted=True), complete=True),
            stage.watch_reports({"a": {"p": [0, 1]}}, complete=True),
        ]

        assert result == [CacheChanges()] * 3

    @pytest.mark.parametrize("order", list(permutations(("nodes", "pods", "words"))), ids="-".join)
    def test_order_of_the_lists_makes_no_difference(self, order: tuple[str, ...]) -> None:
        stage = FakeScheduler(A)
        lists = {
            "nodes": lambda: stage.watch_nodes(complete=True),
            "pods": lambda: stage.watch_pods(pod_update("p", 1, "a"), complete=True),
            "words": lambda: stage.watch_reports({"a": {"p": [1], "ghost": [3]}}, complete=True),
        }
        for name in order:
            lists[name]()
        stage.now += ASSUMED_POD_LIFETIME_S
        stage.cache.advance_time(stage.now)

        assert free(stage) == ExactSets((mask(0, 2, 3),))
        assert list(stage.cache.pods) == ["uid-p"]

    def test_the_same_list_again_changes_nothing(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 1, "a"))
        table = stage.cache.snapshot

        stage.watch_nodes(complete=True)
        stage.watch_pods(pod_update("p", 1, "a"), complete=True)
        stage.watch_reports({"a": {}}, complete=True)

        assert stage.cache.snapshot is table


class TestPods:
    """The pod watch."""

    def test_pod_gets_a_node(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.watch_pods(pod_update("p", 2))
        before = stage.cache.snapshot

        result = stage.watch_pods(pod_update("p", 2, "a"))

        assert result == CacheChanges(bound_pods=(BoundPod(pod_update("p", 2, "a"), before),))
        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 2
        assert stage.watch_pods(pod_update("p", 2, "a", admitted=True)) == CacheChanges()  # it was bound already

    def test_the_snapshot_before_a_binding_does_not_contain_the_assumed_pod(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.filter(unbound_pod("p", 2, island="required"))

        (bound,) = stage.watch_pods(pod_update("p", 2, "a", island="required")).bound_pods

        assert bound.snapshot_before.states["a"].free_devices("nvidia.com/gpu") == 4

    def test_pods_bound_in_one_batch_are_bound_one_after_the_other(self) -> None:
        stage = FakeScheduler.synced(A)

        result = stage.watch_pods(pod_update("p", 1, "a"), pod_update("q", 1, "a"))

        assert [each.snapshot_before.states["a"].free_devices("nvidia.com/gpu") for each in result.bound_pods] == [4, 3]

    def test_pod_is_deleted_before_it_was_bound(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.watch_pods(pod_update("p", 2))

        assert stage.watch_pods(gone=["uid-p", "uid-never-seen"]) == CacheChanges(removed_pods=(pod_update("p", 2),))
        assert not stage.cache.pods

    def test_list_after_a_gap_shows_what_was_missed(self) -> None:
        """One pod was bound, one ended, one was created and bound, one was replaced by a pod of the same name."""
        stage = FakeScheduler.synced(
            {"a": H100, "b": H100},
            pod_update("ended", 1, "a"),
            pod_update("web-0", 1, "a"),
            pod_update("moved", 1, "a"),
        )
        stage.watch_pods(pod_update("waits", 1))

        result = stage.watch_pods(
            pod_update("waits", 1, "a"),
            pod_update("new", 1, "b"),
            pod_update("web-0", 1, "b", uid="uid-2"),
            pod_update("moved", 1, "b"),
            complete=True,
        )

        assert [each.pod.key for each in result.bound_pods] == ["uid-waits", "uid-new", "uid-2"]
        assert {each.key for each in result.removed_pods} == {"uid-ended", "uid-web-0"}
        assert {name: [pod.uid for pod in record.pods] for name, record in stage.cache.snapshot.records.items()} == {
            "a": ["uid-waits"],
            "b": ["uid-2", "uid-moved", "uid-new"],
        }

    def test_pod_of_the_same_name_is_shown_before_the_old_pod_is_deleted(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, pod_update("web-0", 1, "a"))
        stage.watch_pods(pod_update("web-0", 1, uid="uid-2"))
        stage.watch_pods(gone=["uid-web-0"])

        (found,) = stage.prediction_checks({"b": {"web-0": [1]}})  # names the new pod, which was not shown bound

        assert (found.pod.uid, found.actual) == ("uid-2", mask(1))


class TestNodes:
    """The node watch."""

    def test_pod_on_a_node_that_is_shown_later(self) -> None:
        stage = FakeScheduler({"a": PAIRS, "b": PAIRS})
        stage.watch_nodes("a", complete=True)
        stage.watch_pods(complete=True)
        stage.watch_reports({}, complete=True)
        stage.watch_pods(pod_update("p", 2, "b"))
        stage.watch_reports({"b": {"p": [0, 1]}})
        assert set(stage.cache.snapshot.records) == {"a"}

        stage.watch_nodes("b")

        assert free(stage, "b") == ExactSets((mask(2, 3),))

    def test_node_is_deleted_and_created_again(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, pod_update("p", 2, "a"))
        stage.watch_nodes(gone=["a", "never-shown"])
        assert set(stage.cache.snapshot.records) == {"b"}
        generation = stage.cache.snapshot.generation

        stage.watch_pods(gone=["uid-p"])  # the garbage collector comes later
        assert stage.cache.snapshot.generation == generation
        stage.watch_reports({}, gone=["a"])
        stage.watch_nodes("a")

        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4

    def test_node_missing_in_a_list_is_removed(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})

        stage.watch_nodes("b", complete=True)

        assert set(stage.cache.snapshot.records) == {"b"}

    def test_assumed_pod_on_a_removed_node(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        stage.filter(unbound_pod("p", 4), "a")

        stage.watch_nodes(gone=["a"])

        assert set(stage.filter(unbound_pod("p", 4)).nodes) == {"b"}

    def test_another_machine_under_the_same_name(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.machines["a"] = H100

        stage.watch_nodes("a")

        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 8


class TestKubeletReports:
    """PodResources reports."""

    def test_unbound_pod_named_in_a_report_is_assumed(self) -> None:
        """The pod watch lags; the pod counts as on the node."""
        stage = FakeScheduler.synced(A)
        stage.watch_pods(pod_update("p", 1))

        (found,) = stage.prediction_checks({"a": {"p": [1]}})

        assert (found.pod.uid, found.actual, found.check) == ("uid-p", mask(1), PredictionResult.AMBIGUOUS)
        assert free(stage) == ExactSets((mask(0, 2, 3),))
        stage.watch_pods(pod_update("p", 1, "a", admitted=True))
        assert free(stage) == ExactSets((mask(0, 2, 3),))

    def test_unknown_pod_named_in_a_report_is_assumed_for_a_while(self) -> None:
        stage = FakeScheduler.synced(A)

        assert stage.prediction_checks({"a": {"p": [0, 1]}}) == ()
        assert (free(stage), stage.state_of("a").free_devices("nvidia.com/gpu")) == (ExactSets((mask(2, 3),)), 2)

        stage.now += ASSUMED_POD_LIFETIME_S
        stage.cache.advance_time(stage.now)
        assert (free(stage), stage.state_of("a").free_devices("nvidia.com/gpu")) == (ExactSets((mask(0, 1, 2, 3),)), 4)
        stage.watch_reports({"a": {"p": [0, 1]}}, observed=LATER)  # repeated, so no change
        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4

    def test_placeholder_is_replaced_when_the_pod_is_shown(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.watch_reports({"a": {"p": [0, 1]}})

        stage.watch_pods(pod_update("p", 2, "a"))

        assert len(stage.cache.assumed_pods) == 0
        assert free(stage) == ExactSets((mask(2, 3),))

    def test_placeholder_ends_when_a_younger_report_does_not_name_it(self) -> None:
        """The watch had shown the end of the pod before the report that named it."""
        stage = FakeScheduler.synced(A)
        stage.watch_reports({"a": {"p": [0, 1]}})
        stage.watch_reports({"a": {"q": [2]}}, observed=LATER)

        assert free(stage) == ExactSets((mask(0, 1, 3),))
        assert [each.pod.name for each in stage.cache.assumed_pods] == ["q"]

    def test_placeholder_ends_when_its_pod_is_shown_and_ends(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.watch_reports({"a": {"p": [0, 1]}})

        stage.watch_pods(pod_update("p", 2, "a"))
        stage.watch_pods(gone=["uid-p"])

        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))

    def test_in_flight_pod_named_in_a_report_is_on_that_node(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        stage.watch_pods(pod_update("p", 1))
        stage.filter(unbound_pod("p", 1))

        stage.watch_reports({"b": {"p": [1]}})

        assert stage.cache.assumed_pods.on_several_nodes == ()
        assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 3]

    def test_old_report_about_a_pod_that_is_assumed_elsewhere(self) -> None:
        """A stateful pod was on a before the start, and goes to b now; the agent of a is dead."""
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        stage.watch_pods(pod_update("web-0", 1))
        stage.filter(unbound_pod("web-0", 1), "b")

        stage.watch_reports({"a": {"web-0": [1]}})

        assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [3, 3]
        stage.now += ASSUMED_POD_LIFETIME_S
        stage.cache.advance_time(stage.now)
        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4

    def test_repeated_report_causes_no_change(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 1, "a"))
        assert len(stage.prediction_checks({"a": {"p": [1]}})) == 1

        assert stage.prediction_checks({"a": {"p": [1]}}) == ()
        assert stage.prediction_checks({"a": {"p": [1]}}, observed=LATER) == ()

    def test_report_is_deleted(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, pod_update("p", 1, "a"))
        stage.watch_reports({"a": {"p": [1]}})

        stage.watch_reports({"b": {}}, complete=True)

        assert stage.cache.snapshot.records["a"].gpus is None
        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 3

    def test_pod_has_ended_and_the_report_still_names_it(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 2, "a"))
        stage.watch_reports({"a": {"p": [0, 1]}})

        stage.watch_pods(gone=["uid-p"])
        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))
        stage.watch_reports({"a": {"p": [0, 1]}}, observed=LATER)
        assert free(stage) == ExactSets((mask(0, 1, 2, 3),))
        stage.watch_pods(pod_update("q", 2, "a"))

        assert free(stage) == ExactSets((mask(0, 1), mask(2, 3), mask(0, 1, 2, 3)))  # q may have got its GPUs

    def test_pod_ends_on_a_node_without_reports(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 2, "a"))
        stage.watch_reports({}, gone=["a"])

        stage.watch_pods(gone=["uid-p"])

        assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4
        assert stage.cache.snapshot.records["a"].departed == ()

    def test_pod_came_and_went_between_two_polls_of_the_agent(self) -> None:
        """No report follows, because the kubelet's allocations are as they were."""
        stage = FakeScheduler.synced(A, pod_update("p", 2, "a"))
        stage.watch_reports({"a": {"p": [0, 1]}})
        stage.watch_pods(pod_update("q", 2, "a"))
        stage.watch_pods(gone=["uid-q"])

        stage.cache.advance_time(stage.now + ENDED_POD_SETTLES_S - 1)
        assert [each.uid for each in stage.cache.snapshot.records["a"].departed] == ["uid-q"]
        stage.cache.advance_time(stage.now + ENDED_POD_SETTLES_S)

        assert stage.cache.snapshot.records["a"].departed == ()

    def test_pod_that_is_not_reported_yet_may_have_been_admitted_beside_a_departed_pod(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 2, "a"), pod_update("q", 2, "a"))
        stage.watch_reports({"a": {}})
        stage.watch_pods(gone=["uid-q"])

        stage.cache.advance_time(stage.now + 2 * ENDED_POD_SETTLES_S)
        assert [each.uid for each in stage.cache.snapshot.records["a"].departed] == ["uid-q"]
        stage.watch_pods(gone=["uid-p"])
        stage.cache.advance_time(stage.now + 4 * ENDED_POD_SETTLES_S)

        assert stage.cache.snapshot.records["a"].departed == ()

    def test_departed_pod_that_the_report_names_stays(self) -> None:
        stage = FakeScheduler.synced(A, pod_update("p", 2, "a"))
        stage.watch_reports({"a": {"p": [0, 1]}})
        stage.watch_pods(gone=["uid-p"])

        stage.cache.advance_time(stage.now + 2 * ENDED_POD_SETTLES_S)

        assert [each.uid for each in stage.cache.snapshot.records["a"].departed] == ["uid-p"]

    def test_stateful_pod_replaces_a_pod_of_the_same_name(self) -> None:
        """Reports contain no UIDs: only a report younger than the old pod's end can mean the new pod."""
        stage = FakeScheduler.synced(A, pod_update("web-0", 2, "a"))
        stage.watch_reports({"a": {"web-0": [0, 1]}})
        stage.now = NOW - 300
        stage.watch_pods(gone=["uid-web-0"])
        stage.watch_pods(pod_update("web-0", 2, "a", uid="uid-2", admitted=True))

        stage.watch_reports({"a": {"web-0": [0, 1]}}, observed="2026-11-18T11:06:45Z")
        assert stage.cache.snapshot.records["a"].departed != ()
        stage.watch_reports({"a": {"web-0": [0, 1]}}, observed="2026-11-18T11:06:51Z")

        assert stage.cache.snapshot.records["a"].departed == ()
        assert free(stage) == ExactSets((mask(2, 3),))

    def test_mig_devices_and_shares_create_no_placeholder(self) -> None:
        stage = FakeScheduler.synced(A)
        gpu = PAIRS.gpus[0].uuid or ""
        held = (
            DeviceAllocation(gpu, PodRef("team", "x", "c"), replica=1),
            DeviceAllocation(gpu, PodRef("team", "y", "c"), mig_device="MIG-1"),
        )

        stage.cache.apply_batch(
            Batch(NodeGpusUpdate, (NodeGpusUpdate("a", NodeGpus(OBSERVED, "hash", "1", held)),)), stage.now
        )

        assert len(stage.cache.assumed_pods) == 0


class TestTime:
    """Staleness and the clock."""

    def test_observation_becomes_stale_and_the_next_one_is_fresh(self) -> None:
        stage = FakeScheduler.synced(A)
        assert not stage.state_of("a").stale

        stage.now = NOW + 501  # 901 seconds after the observation
        stage.cache.advance_time(stage.now)
        assert stage.state_of("a").stale

        stage.watch_reports({"a": {}}, observed="2026-11-18T11:10:00Z")
        assert not stage.state_of("a").stale

    def test_time_that_changes_no_state_changes_no_snapshot(self) -> None:
        stage = FakeScheduler.synced(A)
        before = stage.cache.snapshot
        stage.watch_reports({"a": {}}, observed="2026-11-18T11:10:00Z")
        newer = stage.cache.snapshot

        stage.now = NOW + 501  # the first observation would be too old by now
        stage.cache.advance_time(stage.now)

        assert before is not newer
        assert stage.cache.snapshot is newer

    def test_clock_that_is_set_back_makes_nothing_fresh(self) -> None:
        stage = FakeScheduler.synced(A)
        stage.cache.advance_time(NOW + 501)

        stage.watch_nodes(gone=["a"])
        stage.watch_nodes("a")

        assert stage.state_of("a").stale


def test_record_of_a_removed_node_is_dropped_once_nothing_is_known_of_it() -> None:
    cluster_cache = ClusterCache(Policy())
    stage = FakeScheduler.synced(A, pod_update("p", 1, "b"))
    stage.watch_pods(gone=["uid-p"])

    assert stage.cache._records.keys() == {"a"}
    assert cluster_cache.snapshot.generation == 0


def test_bound_pod_that_changes_its_request_is_counted_again() -> None:
    stage = FakeScheduler.synced(A, pod_update("p", 1, "a"))

    stage.watch_pods(pod_update("p", 2, "a"))

    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 2
    assert stage.cache.pods["uid-p"].occupant == occupant("p", 2)


def test_former_snapshots_do_not_change() -> None:
    stage = FakeScheduler.synced(A)
    before = stage.cache.snapshot
    states: dict[str, NodeState] = dict(before.states)
    text = msgspec.json.encode(dict(before.records))

    stage.watch_pods(pod_update("p", 1, "a"))
    stage.watch_reports({"a": {"p": [0]}})

    assert stage.cache.snapshot is not before
    assert (dict(before.states), msgspec.json.encode(dict(before.records))) == (states, text)
