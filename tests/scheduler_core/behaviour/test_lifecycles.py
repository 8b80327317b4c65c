"""Lifecycles of pods, by events of the watches and calls of kube-scheduler: required shapes hold in all."""

from __future__ import annotations

import pytest

from gputopo.labels.reasons import Reason
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.assumed_pods import WITH_VOLUMES_S
from scheduler_core.extender.node_choice import FilterResult
from tests.machines import MACHINES
from tests.scheduler_core.builders import mask
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod, with_volume_claim

PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
ONE_NODE = {"a": PAIRS}
NO_ROOM = Reason.TOO_FEW_GPUS.value
RESERVED = Reason.RESERVED.value


def placed(node: str) -> FilterResult:
    return FilterResult((node,), {}, single=True)


def refused(**reasons: str) -> FilterResult:
    """kube-scheduler retries if it counts more free GPUs than gputopo, and if other pods are in flight."""
    return FilterResult((), reasons, may_fit_soon=not {NO_ROOM, RESERVED}.isdisjoint(reasons.values()))


def full(stage: FakeScheduler) -> None:
    """A pod that requests four GPUs fits on no node."""
    assert stage.filter(unbound_pod("full", 3, island="ignore")) == refused(a=NO_ROOM)


def test_next_pod_comes_before_the_watch_shows_the_first_bound() -> None:
    stage = FakeScheduler.synced(ONE_NODE)

    assert [stage.filter(unbound_pod(name, 2, island="required")) for name in ("p", "q", "r")] == [
        placed("a"),
        placed("a"),
        refused(a=NO_ROOM),
    ]


def test_pod_that_is_tried_again_does_not_block_itself() -> None:
    """A PreBind failed: kube-scheduler forgets the pod and starts over."""
    stage = FakeScheduler.synced(ONE_NODE)
    stage.filter(unbound_pod("other", 2, island="required"))

    for _ in range(3):
        assert stage.filter(unbound_pod("p", 2, island="required")) == placed("a")


def test_pod_that_is_tried_again_releases_its_first_node() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    assert stage.filter(unbound_pod("p", 4, numa="ignore", min_bandwidth="1"), "a") == refused(a=Reason.BANDWIDTH.value)
    assert stage.filter(unbound_pod("p", 2, island="required"), "a") == placed("a")

    assert stage.filter(unbound_pod("p", 2, island="required"), "b") == placed("b")
    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4
    assert stage.state_of("b").free_devices("nvidia.com/gpu") == 2


def test_rejected_pod_is_assumed_nowhere() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    stage.filter(unbound_pod("p", 2, island="required"), "a")

    assert stage.filter(unbound_pod("p", 2, island="required"), "ghost") == refused(ghost=Reason.UNKNOWN_NODE.value)
    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4


def test_nominated_pod_is_filtered_with_its_node_and_then_with_all_nodes() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, pod_update("old", 4, "a"))

    assert stage.filter(unbound_pod("p", 2, island="required"), "a") == refused(a=NO_ROOM)
    assert stage.filter(unbound_pod("p", 2, island="required")) == placed("b")


def test_nominated_pod_is_expected_on_its_node() -> None:
    """It preempted other pods, which end one after the other; their GPUs are kept for it."""
    stage = FakeScheduler.synced(ONE_NODE, pod_update("old", 2, "a"))
    stage.watch_pods(pod_update("p", 2, nominated="a", island="required"))

    assert stage.filter(unbound_pod("q", 2, island="required")) == refused(a=NO_ROOM)
    assert stage.filter(unbound_pod("p", 2, island="required"), "a") == placed("a")


def test_removed_nomination_frees_the_node() -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    stage.watch_pods(pod_update("p", 4, nominated="a"))
    assert stage.filter(unbound_pod("q", 2, island="required")) == refused(a=NO_ROOM)

    stage.watch_pods(pod_update("p", 4))

    assert stage.filter(unbound_pod("q", 2, island="required")) == placed("a")


def test_removed_nomination_keeps_the_later_filter_result() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    stage.watch_pods(pod_update("p", 4, nominated="a"))
    stage.filter(unbound_pod("p", 4), "b")

    stage.watch_pods(pod_update("p", 4))

    assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 0]


def test_older_nomination_does_not_override_a_later_filter_result() -> None:
    """It was nominated to a when it preempted, and the watch delivers that late."""
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    stage.filter(unbound_pod("p", 4), "b")

    stage.watch_pods(pod_update("p", 4, nominated="a"))

    assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 0]


def test_rejected_pod_is_not_expected_on_its_nominated_node() -> None:
    stage = FakeScheduler.synced(ONE_NODE, pod_update("old", 2, "a"))
    stage.watch_pods(pod_update("p", 4, nominated="a"))
    assert stage.filter(unbound_pod("p", 4)) == refused(a=NO_ROOM)

    stage.watch_pods(pod_update("p", 4, nominated="a", admitted=True))  # some other change

    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 2
    assert stage.filter(unbound_pod("q", 2, island="required")) == placed("a")


def test_pod_deleted_between_filter_and_bind_is_removed_at_once() -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    stage.watch_pods(pod_update("p", 4))
    stage.filter(unbound_pod("p", 4))
    full(stage)

    assert stage.watch_pods(gone=["uid-p"]).removed_pods == (pod_update("p", 4),)

    assert stage.filter(unbound_pod("q", 2, island="required")) == placed("a")


def test_restart_between_filter_and_bind_keeps_the_nomination() -> None:
    """kube-scheduler waits for a volume: it has nominated a node, and does not call again."""
    before = FakeScheduler.synced(ONE_NODE)
    before.filter(with_volume_claim(unbound_pod("p", 2, island="required")))

    after = FakeScheduler.synced(ONE_NODE, pod_update("p", 2, nominated="a", island="required"))

    assert after.filter(unbound_pod("q", 2, island="required")) == placed("a")
    assert after.filter(unbound_pod("r", 2, island="required")) == refused(a=NO_ROOM)
    after.now += 10 * WITH_VOLUMES_S
    after.watch_reports({"a": {}}, observed="2026-11-18T12:50:00Z")  # two minutes before
    assert after.filter(unbound_pod("r", 2, island="required")) == placed("a")  # q was never bound
    after.watch_pods(pod_update("p", 2, "a", island="required"))
    assert after.filter(unbound_pod("s", 2, island="required")) == refused(a=NO_ROOM)


def test_pod_that_waits_for_a_volume_keeps_its_gpus_for_minutes() -> None:
    """WaitForFirstConsumer: the volume is created after the node is chosen, and before the pod is bound."""
    stage = FakeScheduler.synced(ONE_NODE)
    stage.watch_pods(pod_update("p", 4))
    stage.filter(with_volume_claim(unbound_pod("p", 4)))

    stage.now += WITH_VOLUMES_S - 1
    full(stage)
    stage.watch_pods(pod_update("p", 4, "a"))
    stage.now += 2
    full(stage)


def test_pod_without_volumes_is_assumed_for_seconds() -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    stage.filter(unbound_pod("p", 4))

    stage.now += ASSUMED_POD_LIFETIME_S - 1
    full(stage)
    stage.now += 1
    assert stage.filter(unbound_pod("q", 2, island="required")) == placed("a")


def test_nomination_with_a_slow_volume_keeps_the_filter_result() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    assert set(stage.filter(unbound_pod("p", 4)).nodes) == {"a", "b"}

    stage.watch_pods(pod_update("p", 4, nominated="b"))
    stage.now += 10 * ASSUMED_POD_LIFETIME_S

    assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 0]


def test_pod_is_bound_to_another_node_than_assumed() -> None:
    """By hand, or by another scheduler."""
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    stage.filter(unbound_pod("p", 4), "a")

    stage.watch_pods(pod_update("p", 4, "b"))

    assert [stage.state_of(name).free_devices("nvidia.com/gpu") for name in ("a", "b")] == [4, 0]
    stage.filter(unbound_pod("p", 4), "a")  # Filter for a bound pod changes nothing
    assert stage.state_of("a").free_devices("nvidia.com/gpu") == 4


class TestInFlightPods:
    """Pods with several nodes in the Filter result, and a pod that requires a shape."""

    @pytest.fixture
    def stage(self) -> FakeScheduler:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        assert set(stage.filter(unbound_pod("plain", 1)).nodes) == {"a", "b"}
        return stage

    def test_pods_without_a_shape_do_not_wait(self, stage: FakeScheduler) -> None:
        assert set(stage.filter(unbound_pod("other", 4)).nodes) == {"a", "b"}

    def test_shape_that_holds_wherever_they_go_is_accepted(self, stage: FakeScheduler) -> None:
        """The device plugin allocates any single GPU, and then a pair is left, for one of them."""
        assert stage.filter(unbound_pod("p", 2, island="required")).single

    def test_shape_that_one_of_them_may_violate_is_rejected(self, stage: FakeScheduler) -> None:
        stage.filter(unbound_pod("plain-2", 1), "b")

        assert stage.filter(unbound_pod("r", 2, island="required"), "b") == refused(b=RESERVED)

    def test_pod_that_kube_scheduler_would_count_on_the_node_does_not_come(self, stage: FakeScheduler) -> None:
        """kube-scheduler asks about a node only if its own count of devices leaves enough there."""
        first = stage.filter(unbound_pod("p", 2, island="required"))

        assert stage.filter(unbound_pod("q", 2, island="required"), *first.nodes).nodes == first.nodes

    def test_pod_is_rejected_if_it_and_an_in_flight_pod_could_violate_a_shape(self, stage: FakeScheduler) -> None:
        stage.filter(unbound_pod("p", 2, island="required"), "a")

        assert stage.filter(unbound_pod("other", 1)).nodes == ("b",)

    def test_in_flight_pod_counts_until_the_watch_shows_it_bound(self, stage: FakeScheduler) -> None:
        stage.filter(unbound_pod("plain-2", 1))
        stage.filter(unbound_pod("plain-3", 1))
        assert stage.filter(unbound_pod("p", 2, island="required")) == refused(a=RESERVED, b=RESERVED)

        for name in ("plain", "plain-2", "plain-3"):
            stage.watch_pods(pod_update(name, 1, "a"))

        assert stage.filter(unbound_pod("p", 2, island="required")) == placed("b")

    def test_until_they_expire(self, stage: FakeScheduler) -> None:
        for at in range(5):
            stage.filter(unbound_pod(f"plain-{at}", 1))
        assert stage.filter(unbound_pod("p", 2, island="required")) == refused(a=RESERVED, b=RESERVED)

        stage.now += ASSUMED_POD_LIFETIME_S

        assert stage.filter(unbound_pod("p", 2, island="required")).single


def test_prediction_is_compared_with_the_report() -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    stage.filter(unbound_pod("p", 2, island="required"))
    stage.watch_pods(pod_update("p", 2, "a", island="required"))

    (found,) = stage.prediction_checks({"a": {"p": [0, 1]}})

    assert (found.pod.name, found.node, found.actual) == ("p", "a", mask(0, 1))
    assert isinstance(found.predicted, ExactSets)
    assert (found.check, found.violated) == (PredictionResult.AMBIGUOUS, None)


def test_shape_violated_by_the_kubelet_is_reported() -> None:
    stage = FakeScheduler.synced(ONE_NODE, pod_update("p", 2, "a", island="required"))

    (found,) = stage.prediction_checks({"a": {"p": [0, 2]}})

    assert (found.check, found.violated) == (PredictionResult.MISS, Reason.ISLAND)
