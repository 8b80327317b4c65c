"""A node's GPUs as cells: what is free, used, reserved, unknown, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from scheduler_core.ui.model import GpuState
from tests.api_objects import GPU, Object, gpu_node
from tests.scheduler_core.ui.cluster_documents import RACK, allocation, gpu_machine, gpu_pod, node_gpus, rfc3339
from tests.scheduler_core.ui.pages import now, page_of, row_of, service_of

F, U, P, X, Q, S, D, T = (
    GpuState.FREE,
    GpuState.USED,
    GpuState.PENDING,
    GpuState.UNAVAILABLE,
    GpuState.UNKNOWN,
    GpuState.SHARED,
    GpuState.DRAINING,
    GpuState.TAINTED,
)


def machine(
    held: dict[str, tuple[int, ...]], bound: dict[str, int] | None = None, shape: str = "8a100-2n-pairs12", **node: Any
) -> list[Object]:
    """One node: pods with the GPUs that the kubelet reports, and pods that are bound and not reported yet."""
    at = now()
    found, topology = gpu_machine("n", shape)
    found["spec"] = node
    uuids = [gpu.uuid or "" for gpu in topology.gpus]
    pods = [gpu_pod("team", name, len(gpus), "n", at) for name, gpus in held.items()]
    pods += [gpu_pod("team", name, gpus, "n", at) for name, gpus in (bound or {}).items()]
    held_devices = [allocation(uuids[gpu], "team", name) for name, gpus in held.items() for gpu in gpus]
    return [found, *pods, node_gpus("n", found, held_devices, at)]


def states(items: list[Object]) -> list[GpuState]:
    return [cell.state for cell in row_of(items, "n").cells]


def test_a_pod_holds_the_gpus_that_the_kubelet_reports() -> None:
    row = row_of(machine({"b": (0, 1), "a": (5,)}), "n")

    assert [cell.state for cell in row.cells] == [U, U, F, F, F, U, F, F]
    assert [row.pods[cell.pods[0]].title for cell in row.cells if cell.pods] == ["team/b", "team/b", "team/a"]
    assert [pod.title for pod in row.pods] == ["team/b", "team/a"]  # in the order of their GPUs
    assert (row.free, row.in_one_island) == (5, 2)  # islands of two
    assert row.summary == "5 of 8 free, 2 in one island"
    assert [len(island.cells) for island in row.islands] == [2, 2, 2, 2]


def test_gpus_of_a_pod_that_was_just_bound_are_pending_not_free() -> None:
    row = row_of(machine({}, {"new": 2}), "n")

    assert F not in [cell.state for cell in row.cells]
    assert row.free == 6
    assert row.pods[0].title == "team/new"


def test_a_pod_that_takes_all_that_is_left_uses_it_before_any_report() -> None:
    assert states(machine({"old": (0, 1, 2, 3)}, {"new": 4})) == [U] * 8


def test_gpus_of_a_silent_agent_are_unknown() -> None:
    items = machine({"a": (0, 1)})
    items[-1]["observedAt"] = rfc3339(now() - 7260)
    items.append(node_gpus("other", items[0], [], now()))  # the newest report is the time of the file
    row = row_of(items, "n")

    assert [cell.state for cell in row.cells] == [U, U, Q, Q, Q, Q, Q, Q]
    assert (row.free, row.in_one_island) == (6, None)  # by the requests of the pods
    assert row.counts == ((F, 6), (U, 2))
    assert row.notes == ("no report for 2h",)
    assert row.summary == "6 of 8 free, which ones: unknown"


def test_a_node_without_agent_is_listed_with_its_number_of_gpus() -> None:
    row = row_of([gpu_node("n", 4)], "n")
    busy = row_of([gpu_node("n", 4), gpu_pod("team", "p", 3, "n", now())], "n")

    assert [cell.state for cell in row.cells] == [F] * 4  # no pod requests any
    assert row.notes == ("no report",)
    assert row.allocatable == 4
    assert [cell.state for cell in busy.cells] == [Q] * 4  # which of them are used is unknown
    assert busy.free == 1


def test_a_node_without_gpus_is_not_listed() -> None:
    with pytest.raises(AssertionError):
        row_of([gpu_node("n", 0), gpu_node("other", 1)], "n")


def test_a_lost_gpu_is_unavailable_and_named_as_a_fault() -> None:
    row = row_of(machine({}, shape="fake-8a100-lost-gpu"), "n")

    (lost,) = [cell for cell in row.cells if cell.state is X]
    assert lost.degraded
    assert [fault for fault in row.faults if fault.startswith(f"gpu{lost.gpu}:")]


def test_shared_gpus_name_all_their_pods() -> None:
    items = machine({})
    items[0]["status"]["allocatable"] = {"nvidia.com/gpu.shared": "32"}
    items[0]["metadata"]["labels"][keys.NVIDIA_REPLICAS] = "4"
    at = now()
    uuid = gpu_machine("n", "8a100-2n-pairs12")[1].gpus[0].uuid or ""
    for name, replica in (("a", 0), ("b", 1)):
        pod = gpu_pod("team", name, 0, "n", at)
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}
        items.insert(1, pod)
        items[-1]["allocations"].append({**allocation(uuid, "team", name), "replica": replica})
    row = row_of(items, "n")

    assert [cell.state for cell in row.cells] == [S] + [F] * 7
    assert sorted(row.pods[place].name for place in row.cells[0].pods) == ["a", "b"]


def test_the_reasons_of_a_node_that_takes_no_pods_are_separated() -> None:
    taints = [{"key": f"node.kubernetes.io/{state}", "effect": "NoExecute"} for state in ("unreachable", "not-ready")]

    assert "unreachable, not ready" in page_of(machine({}, taints=taints)).words.replace(" ,", ",")


def test_a_cordon_is_shown_and_domains_are_the_widest_first() -> None:
    items = machine({}, unschedulable=True)
    items[0]["metadata"]["labels"] |= {RACK: "r7", "cloud.provider.com/topology-block": "b1"}
    row = row_of(items, "n")

    assert row.notes == ("cordoned",)
    assert [cell.state for cell in row.cells] == [D] * 8
    assert (row.free, row.in_one_island, row.summary) == (0, 0, "0 of 8 free, 8 draining")
    assert row.domains == (("block", "b1"), ("rack", "r7"))


@pytest.mark.parametrize(
    ("key", "effect", "note", "state"),
    [
        ("node.kubernetes.io/unreachable", "NoExecute", "unreachable", T),
        ("node.kubernetes.io/not-ready", "NoSchedule", "not ready", T),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", "taint node.kubernetes.io/disk-pressure", T),
        ("node-role.kubernetes.io/control-plane", "NoSchedule", "control plane", T),
        ("node.kubernetes.io/unschedulable", "NoSchedule", "cordoned", D),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", "about to be removed", D),
    ],
)
def test_no_gpu_is_free_on_a_node_that_takes_no_new_pods(key: str, effect: str, note: str, state: GpuState) -> None:
    row = row_of(machine({"a": (0, 1)}, taints=[{"key": key, "effect": effect}]), "n")

    assert [cell.state for cell in row.cells] == [U, U, *[state] * 6]
    assert (row.draining, row.tainted) == (state is D, state is T)
    assert (row.free, row.notes, row.counts) == (0, (note,), ((state, 6), (U, 2)))
    assert not service_of(machine({"a": (0, 1)}, taints=[{"key": key, "effect": effect}])).overview.totals.islands


@pytest.mark.parametrize(
    "taint",
    [{"key": "team/gpus", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/x", "effect": "PreferNoSchedule"}],
)
def test_a_pool_of_nodes_and_a_preference_are_no_drain(taint: Object) -> None:
    row = row_of(machine({}, taints=[taint]), "n")

    assert (row.draining, row.free, row.notes) == (False, 8, ())


def test_gpus_that_more_pods_than_exist_request_are_not_free() -> None:
    items = machine({"a": (0, 1, 2, 3, 4, 5, 6, 7)}, {"b": 8})

    assert states(items) == [U] * 8


def test_allocatable_of_a_node_is_bounded_in_cells() -> None:
    node = gpu_node("n", 1)
    node["status"]["allocatable"][GPU] = str(10**9)
    row = row_of([node], "n")

    assert len(row.cells) == 64
    assert row.allocatable == 10**9


def unreported(items: list[Object]) -> list[Object]:
    """The node as its agent describes it without the kubelet's report on pods."""
    del items[-1]["allocations"]
    return items


def test_without_a_report_numbers_follow_from_the_requests_of_pods() -> None:
    row = row_of(unreported(machine({}, {"a": 2, "b": 1})), "n")

    assert [cell.state for cell in row.cells] == [Q] * 8
    assert row.counts == ((F, 5), (U, 3))
    assert (row.free, row.lacks_report) == (5, True)
    assert row.summary == "5 of 8 free, which ones: unknown"  # islands of two: which are free is unknown
    one_island = row_of(unreported(machine({}, {"a": 4}, shape="8h100-2n-nvswitch18")), "n")
    assert one_island.summary == "4 of 8 free, 4 in one island, which ones: unknown"


def test_without_a_report_a_pod_with_all_gpus_holds_all_and_a_node_without_pods_has_all_free() -> None:
    full, empty = row_of(unreported(machine({}, {"a": 8})), "n"), row_of(unreported(machine({})), "n")

    assert [(cell.state, cell.pods) for cell in full.cells] == [(U, (0,))] * 8
    assert (full.counts, full.lacks_report, full.summary) == (((U, 8),), False, "0 of 8 free")
    assert [cell.state for cell in empty.cells] == [F] * 8
    assert (empty.counts, empty.summary) == (((F, 8),), "8 of 8 free, 2 in one island")


def test_a_node_whose_agent_never_reported_has_all_gpus_free_if_it_has_no_pod() -> None:
    row = row_of(machine({})[:1], "n")

    assert [cell.state for cell in row.cells] == [F] * 8
    assert row.summary == "8 of 8 free"  # the islands are not confirmed


def test_gpus_that_the_device_plugin_does_not_offer_are_not_used() -> None:
    items = machine({})
    items[0]["status"]["allocatable"] = {"cpu": "8"}
    control_plane = machine({}, taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
    control_plane[0]["status"]["allocatable"] = {"cpu": "8"}
    for found in (items, unreported(items)):
        row = row_of(found, "n")
        assert [cell.state for cell in row.cells] == [X] * 8
        assert row.counts == ((X, 8),)
    for found in (control_plane, unreported(control_plane)):
        row = row_of(found, "n")
        assert [cell.state for cell in row.cells] == [T] * 8
        assert (row.counts, row.summary) == (((T, 8),), "0 of 8 free, 8 tainted")


def test_gpus_that_are_not_offered_and_gpus_of_unreported_pods_are_counted_apart() -> None:
    items = unreported(machine({}, {"a": 3}))
    items[0]["status"]["allocatable"] = {GPU: "6"}
    full = unreported(machine({}, {"a": 6}))
    full[0]["status"]["allocatable"] = {GPU: "6"}

    assert row_of(items, "n").counts == ((F, 3), (U, 3), (X, 2))
    assert [cell.state for cell in row_of(full, "n").cells] == [Q] * 8
    assert row_of(full, "n").counts == ((U, 6), (X, 2))


def test_gpus_of_a_pod_that_was_just_bound_are_counted_as_pending() -> None:
    assert row_of(machine({"old": (0, 1)}, {"new": 2}), "n").counts == ((F, 4), (U, 2), (P, 2))


def test_shared_gpus_without_a_report_are_unknown_and_free_without_pods() -> None:
    items = unreported(machine({}))
    items[0]["status"]["allocatable"] = {"nvidia.com/gpu.shared": "32"}
    pod = gpu_pod("team", "a", 0, "n", now())
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}

    assert row_of(items, "n").counts == ((F, 8),)
    row = row_of([*items, pod], "n")
    assert (row.counts, row.summary, row.lacks_report) == (((Q, 8),), "8 GPUs, free: unknown", False)
