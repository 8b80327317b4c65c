"""Transient rejections: no event that kube-scheduler sees will end them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.cache.staleness import CONFIRMATION_GRACE_S
from scheduler_core.evaluation.rejections import Rejections
from scheduler_core.evaluation.transient import (
    RESERVED_MESSAGE,
    RETRY_MESSAGE,
    is_uncertain,
    may_fit_soon,
    retry_message,
)
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, node, occupant, profile, record
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod

PAIRS = MACHINES["a100_bridged"]()  # islands of two and two, each on a NUMA node of its own
ONE_NODE = {"a": PAIRS}
TWO_SINGLES = (pod_update("x", 1, "a", admitted=True), pod_update("y", 1, "a", admitted=True))


def refused(reason: Reason, *, soon: bool) -> FilterResult:
    return FilterResult((), {"a": reason.value}, may_fit_soon=soon)


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"island": "required"}, Reason.ISLAND),
        ({"interconnect": "nvlink"}, Reason.INTERCONNECT),
        ({"min_bandwidth": "100"}, Reason.BANDWIDTH),
        ({"numa": "required"}, Reason.NUMA),
    ],
    ids=["island", "interconnect", "bandwidth", "numa"],
)
@pytest.mark.parametrize(
    ("word", "answer"),
    [
        (None, True),
        ({"x": [0], "y": [1]}, FilterResult(("a",), {}, single=True)),
        ({"x": [0], "y": [2]}, False),
        ({"x": [0]}, True),
    ],
    ids=["not named yet", "named, together", "named, apart", "one is not named yet"],
)
def test_two_single_gpu_pods_may_leave_a_pair(
    wishes: dict[str, str], reason: Reason, word: Mapping[str, list[int]] | None, answer: FilterResult | bool
) -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)
    if word is not None:
        stage.watch_reports({"a": word})

    expected = answer if isinstance(answer, FilterResult) else refused(reason, soon=answer)
    assert stage.filter(unbound_pod("p", 2, **wishes)) == expected


def test_node_that_cannot_have_the_shape_is_not_transient() -> None:
    """Whatever the kubelet reports, no island has three."""
    stage = FakeScheduler.synced(ONE_NODE, pod_update("x", 1, "a", admitted=True))

    assert stage.filter(unbound_pod("p", 3, island="required")) == refused(Reason.ISLAND, soon=False)


def test_node_with_too_slow_sets_is_not_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)

    assert stage.filter(unbound_pod("p", 2, min_bandwidth="9999")) == refused(Reason.BANDWIDTH, soon=False)


def test_stale_node_is_not_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)
    stage.now += Policy().stale_after_s

    assert stage.filter(unbound_pod("p", 2, island="required")) == refused(Reason.UNKNOWN_TOPOLOGY, soon=False)


def test_unadmitted_pods_are_not_transient() -> None:
    """When it does, kube-scheduler sees the event and retries."""
    stage = FakeScheduler.synced(ONE_NODE, pod_update("x", 1, "a"), pod_update("y", 1, "a"))

    assert stage.filter(unbound_pod("p", 2, island="required")) == refused(Reason.ISLAND, soon=False)


def test_node_without_reports_is_not_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)
    stage.watch_reports({"a": None})

    assert stage.filter(unbound_pod("p", 2, island="required")) == refused(Reason.ISLAND, soon=False)


UNTIL_CONFIRMED = refused(Reason.UNKNOWN_TOPOLOGY, soon=True)
FOR_GOOD = refused(Reason.UNKNOWN_TOPOLOGY, soon=False)
ON_A = FilterResult(("a",), {}, single=True)


def test_changed_graph_is_transient_until_it_is_confirmed() -> None:
    """Two watches show it, in either order; kube-scheduler sees only one of the events."""
    stage = FakeScheduler.synced(ONE_NODE)
    asked = unbound_pod("p", 2, island="required")

    stage.machines["a"] = MACHINES["a100_mesh"]()
    stage.watch_nodes("a")
    assert stage.filter(asked) == UNTIL_CONFIRMED
    stage.watch_reports({"a": {}})
    assert stage.filter(asked) == ON_A


def test_graph_confirmed_before_the_node_is_shown_is_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    asked = unbound_pod("p", 2, island="required")

    stage.machines["a"] = MACHINES["a100_mesh"]()
    stage.watch_reports({"a": {}})
    assert stage.filter(asked) == UNTIL_CONFIRMED
    stage.watch_nodes("a")
    assert stage.filter(asked) == ON_A


@pytest.mark.parametrize("gone", [True, False], ids=["there is no NodeGpus", "it speaks of another graph"])
def test_unconfirmed_graph_is_transient_only_for_seconds(gone: bool) -> None:
    stage = FakeScheduler.synced(ONE_NODE)
    asked = unbound_pod("p", 2, island="required")
    if gone:
        stage.watch_reports({}, gone=["a"])
    else:
        stage.machines["a"] = MACHINES["a100_mesh"]()
        stage.watch_reports({"a": {}})

    stage.now += CONFIRMATION_GRACE_S
    assert stage.filter(asked) == UNTIL_CONFIRMED
    stage.now += 1
    assert stage.filter(asked) == FOR_GOOD
    assert stage.filter(unbound_pod("plain", 2)).nodes == ("a",)


def test_another_changed_graph_is_transient_again() -> None:
    """Its agent has just been installed again."""
    stage = FakeScheduler.synced(ONE_NODE)
    stage.watch_reports({}, gone=["a"])
    stage.now += CONFIRMATION_GRACE_S + 1

    stage.machines["a"] = MACHINES["a100_mesh"]()
    stage.watch_nodes("a")
    assert stage.filter(unbound_pod("p", 2, island="required")) == UNTIL_CONFIRMED


def test_other_reasons_are_not_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)

    assert stage.filter(unbound_pod("p", 2, min_vram="900Gi")) == refused(Reason.VRAM, soon=False)


def test_fewer_free_gpus_than_kube_scheduler_counts_are_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, pod_update("x", 4, "a"))

    assert stage.filter(unbound_pod("p", 1)) == refused(Reason.TOO_FEW_GPUS, soon=True)


def test_node_that_fits_after_all_is_no_longer_transient() -> None:
    stage = FakeScheduler.synced(ONE_NODE, *TWO_SINGLES)
    stage.filter(unbound_pod("p", 2, island="required"))

    stage.watch_pods(gone=["uid-x", "uid-y"])

    assert stage.filter(unbound_pod("p", 2, island="required")).nodes == ("a",)


def test_unknown_unhealthy_gpu_is_not_transient() -> None:
    """The device plugin offers half of the GPUs, and does not name them."""
    large = MACHINES["dgx2"]()
    stage = FakeScheduler.synced({"a": large})
    sick = NodeUpdate("a", parse_node(node(large, allocatable={WHOLE: 8})))
    stage.cache.apply_batch(Batch(NodeUpdate, (sick,)), stage.now)

    assert stage.filter(unbound_pod("p", 8, numa="required")) == refused(Reason.NUMA, soon=False)


def test_gpus_reserved_for_a_pod_are_transient() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
    for name in ("w", "x", "y", "z"):
        stage.filter(unbound_pod(name, 1))

    answer = stage.filter(unbound_pod("p", 2, island="required"))

    assert (set(answer.rejected.values()), answer.may_fit_soon) == ({Reason.RESERVED.value}, True)


def test_the_error_names_reservations_only_if_there_are_some() -> None:
    """A pod waited for a reservation for minutes, and its event spoke of the GPUs of pods that had just started."""
    unreported = Rejections({"a"}, Reason.ISLAND.value, {})

    assert retry_message(unreported) == RETRY_MESSAGE
    assert retry_message(unreported.with_reasons({"b": Reason.RESERVED.value})) == RESERVED_MESSAGE
    assert retry_message({"b": Reason.RESERVED.value}) == RESERVED_MESSAGE


EACH = {name: [at] for at, name in enumerate("wxyz")}


@pytest.mark.parametrize(
    ("held", "pods", "share", "hope"),
    [
        pytest.param({}, [("x", "70Gi")], "20Gi", True, id="nobody has said on which card the other one is"),
        pytest.param({"x": [0]}, [("x", "70Gi")], "90Gi", False, id="no card has so much"),
        pytest.param(EACH, [(each, "70Gi") for each in "wxyz"], "20Gi", False,
                     id="all is said, and every card is full"),
        pytest.param(EACH, [(each, "70Gi") for each in "vwxyz"], "20Gi", False,
                     id="one is under way, and every card is full"),
        pytest.param({"x": [0], "gone": [1]}, [("x", "70Gi")] , "20Gi", True, id="one has left"),
        pytest.param(None, [("x", "70Gi")], "20Gi", False, id="nobody will ever say"),
    ],
)  # fmt: skip
def test_free_memory_of_a_shared_gpu_may_be_reported(
    held: Mapping[str, list[int]] | None, pods: list[tuple[str, str]], share: str, hope: bool
) -> None:
    labels = {"nvidia.com/gpu.replicas": "4", "gputopo.io/sharing": "distributed"}
    there = [occupant(name, 1, vram=said) for name, said in pods]
    table = snapshot_of(
        [record("a", PAIRS, held=held, pods=there, labels=labels, allocatable={WHOLE: 16})], NOW, Policy()
    )
    unsure = [name for name, state in table.states.items() if is_uncertain(state)]

    assert may_fit_soon(profile(1, vram=share), table, Rejections({"a"}, Reason.VRAM.value, {}), unsure) is hope
