"""A node's GPUs as cells: what is free, used, reserved, unknown, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from scheduler_core.ui.model import GpuState
from tests.api_objects import GPU, Object, gpu_node
from tests.scheduler_core.ui.cluster_documents import RACK, allocation, gpu_machine, gpu_pod, node_gpus, rfc3339
from tests.scheduler_core.ui.pages import now, page_of, row_of, service_of

F, U, P, X, Q, S, D = (
    GpuState.FREE,
    GpuState.USED,
    GpuState.PENDING,
    GpuState.UNAVAILABLE,
    GpuState.UNKNOWN,
    GpuState.SHARED,
    GpuState.DRAINING,
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
    assert row.free is None
    assert row.notes == ("no report for 2h",)
    assert row.summary == "8 GPUs, free: unknown"


def test_a_node_without_agent_is_listed_with_its_number_of_gpus() -> None:
    row = row_of([gpu_node("n", 4)], "n")
    busy = row_of([gpu_node("n", 4), gpu_pod("team", "p", 3, "n", now())], "n")

    assert [cell.state for cell in row.cells] == [F] * 4  # no pod requests any
    assert row.notes == ("no agent",)
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
    ("key", "effect", "note"),
    [
        ("node.kubernetes.io/unreachable", "NoExecute", "unreachable"),
        ("node.kubernetes.io/not-ready", "NoSchedule", "not ready"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", "taint node.kubernetes.io/disk-pressure"),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", "about to be removed"),
    ],
)
def test_no_gpu_is_free_on_a_node_that_takes_no_new_pods(key: str, effect: str, note: str) -> None:
    row = row_of(machine({"a": (0, 1)}, taints=[{"key": key, "effect": effect}]), "n")

    assert [cell.state for cell in row.cells] == [U, U, *[D] * 6]
    assert (row.draining, row.free, row.notes) == (True, 0, (note,))
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
