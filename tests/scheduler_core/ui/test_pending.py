"""The reasons of pending pods and queued gangs: gates, rules about nodes, and free GPUs."""

from __future__ import annotations

import pytest

from gputopo.labels import keys
from scheduler_core.ui import pending, suitable_nodes
from scheduler_core.ui.reports import pod_report
from scheduler_core.ui.rows_html import ANYONE
from tests.api_objects import Object, gpu_node
from tests.scheduler_core.ui.cluster_documents import allocation, gpu_machine, gpu_pod, node_gpus, waiting_gang
from tests.scheduler_core.ui.pages import now, service_of


def reasons_of(*items: Object) -> dict[str, str]:
    """The reasons of the pending pods, by name."""
    return {pod.name: pod.reason for pod in service_of(items).overview.pending}


def test_a_pending_pod_waits_for_nodes_that_it_may_use() -> None:
    at = now()
    empty, _ = gpu_machine("empty", "8h100-2n-nvswitch18", {"pool": "a"})
    busy, topology = gpu_machine("busy", "8a100-2n-pairs12", {"pool": "b"})
    busy["spec"] = {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
    held = [allocation(gpu.uuid or "", "team", "runs") for gpu in topology.gpus[:5]]
    tolerations = [{"operator": "Exists"}]
    pools = {name: gpu_pod("team", name, 4, None, at, nodeSelector={"pool": name}) for name in ("a", "b", "c")}
    tolerant = gpu_pod("team", "tolerant", 4, None, at, nodeSelector={"pool": "b"}, tolerations=tolerations)
    two = gpu_pod("team", "two", 2, None, at, nodeSelector={"pool": "b"}, tolerations=tolerations)
    asked = {"a100": {keys.POD_GPU_MODEL_SHORT.key: "A100"}, "b200": {keys.POD_GPU_MODEL_SHORT.key: "B200"}}
    models = [gpu_pod("team", name, 4, None, at, tolerations=tolerations) for name in asked]
    for pod in models:
        pod["metadata"]["labels"] = asked[pod["metadata"]["name"]]
    large = gpu_pod("team", "large", 1, None, at)
    large["metadata"]["annotations"] = {keys.POD_MIN_VRAM.key: "100Gi"}
    nodes = [empty, node_gpus("empty", empty, [], at), busy, node_gpus("busy", busy, held, at)]

    assert reasons_of(
        *nodes, gpu_pod("team", "runs", 5, "busy", at), *pools.values(), tolerant, two, *models, large
    ) == {
        "a": "",
        "b": "no GPU node suits it: the node has no label pool=b, as nodeSelector requires (1 of 2 nodes); "
        "the taint team=x:NoSchedule of the node is not tolerated (1 of 2 nodes)",
        "c": "no GPU node suits it: the node has no label pool=c, as nodeSelector requires (1 of 2 nodes); "
        "the taint team=x:NoSchedule of the node is not tolerated (1 of 2 nodes)",
        "tolerant": "no node that suits the pod has 4 GPUs known to be free; the most is 3",
        "two": "",
        "a100": "no node that suits the pod has 4 GPUs known to be free; the most is 3",
        "b200": "no GPU node suits it: the node has no GPU that is known to be of the model B200",
        "large": "no GPU node suits it: the node has no GPU with 100 GiB (1 of 2 nodes); "
        "the taint team=x:NoSchedule of the node is not tolerated (1 of 2 nodes)",
    }


def test_a_pending_pod_is_held_by_its_gates_whatever_is_free() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/review"}]
    gated = gpu_pod("team", "gated", 80, None, now(), schedulingGates=gates)

    assert reasons_of(gpu_node("n", 8), gated) == {
        "gated": "held by the gates kueue.x-k8s.io/admission, example.com/review"
    }


def test_the_page_of_a_pending_pod_names_gates_and_the_nodes_that_kube_scheduler_excludes() -> None:
    at = now()
    off, _ = gpu_machine("off", "8h100-2n-nvswitch18")
    off["spec"] = {"unschedulable": True}
    other, _ = gpu_machine("other", "8h100-2n-nvswitch18", {"pool": "a"})
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    gated = gpu_pod("team", "gated", 1, None, at, schedulingGates=gates, nodeSelector={"pool": "b"})
    bound = gpu_pod("team", "bound", 1, "other", at, nodeSelector={"pool": "b"})
    gang = waiting_gang("team", "llm", 1, 8, at)
    service = service_of([off, other, node_gpus("other", other, [], at), gated, bound, *gang])

    report = pod_report(service, ANYONE, "team", "gated")

    assert "team/gated: the gate kueue.x-k8s.io/admission holds it, and no scheduler sees it until then." in report
    assert "Excluded, as kube-scheduler would: off: the node is cordoned." in report
    assert "Excluded, as kube-scheduler would: other: the node has no label pool=b" in report
    report = pod_report(service, ANYONE, "team", "llm-0")
    assert "holds it until the planner has a place for it, with its gang llm" in report
    assert "Excluded, as kube-scheduler would: off: the node is cordoned." in report
    assert "Excluded" not in pod_report(service, ANYONE, "team", "bound")


def test_of_thousands_of_gates_the_reason_names_three() -> None:
    gates = [{"name": f"example.com/gate-{number}"} for number in range(10_000)]
    gated = gpu_pod("team", "gated", 8, None, now(), schedulingGates=gates)

    assert reasons_of(gpu_node("n", 8), gated) == {
        "gated": "held by the gates example.com/gate-0, example.com/gate-1, example.com/gate-2 and more"
    }


def test_a_queued_gang_says_for_how_many_members_gpus_are_free() -> None:
    at = now()
    full, topology = gpu_machine("full", "8h100-2n-nvswitch18")
    held = [allocation(gpu.uuid or "", "team", "runs") for gpu in topology.gpus[:2]]
    pairs, _ = gpu_machine("pairs", "8a100-2n-pairs12")  # islands of two GPUs
    off, _ = gpu_machine("off", "8h100-2n-nvswitch18")
    off["spec"] = {"unschedulable": True}
    nodes = [full, node_gpus("full", full, held, at), gpu_pod("team", "runs", 2, "full", at)]
    nodes += [pairs, node_gpus("pairs", pairs, [], at), off, node_gpus("off", off, [], at)]
    gangs = [
        waiting_gang("team", f"g-{members}x{gpus}", members, gpus, at)
        for members, gpus in ((3, 4), (1, 4), (5, 8), (8, 2))
    ]
    picky = [*waiting_gang("team", "picky", 2, 1, at)]
    for pod in picky:
        pod["spec"]["nodeSelector"] = {"pool": "x"}
    mixed = [*waiting_gang("team", "mixed", 1, 8, at), *waiting_gang("team", "mixed", 1, 4, at)]
    mixed[1]["metadata"] |= {"name": "other", "uid": "other"}
    for pod in mixed:
        pod["metadata"]["annotations"][keys.POD_GANG_SIZE.key] = "2"
    service = service_of([*nodes, *(pod for gang in gangs for pod in gang), *picky, *mixed])

    assert {gang.name: gang.reason for gang in service.overview.gangs} == {
        "g-3x4": "3 members to be placed; the GPUs known to be free suffice for 1",
        "g-1x4": "1 member to be placed",
        "g-5x8": "5 members to be placed; the GPUs known to be free suffice for none",
        "g-8x2": "8 members to be placed; the GPUs known to be free suffice for 7",
        "picky": "2 members to be placed; no GPU node suits it: the node has no label pool=x, as nodeSelector requires "
        "(2 of 3 nodes); the node is cordoned (1 of 3 nodes)",
        "mixed": "2 members to be placed",
    }


def test_no_reason_is_given_where_free_gpus_are_unknown() -> None:
    at = now()
    full, topology = gpu_machine("full", "8h100-2n-nvswitch18")
    held = [allocation(gpu.uuid or "", "team", "runs") for gpu in topology.gpus]
    nodes = [full, node_gpus("full", full, held, at), gpu_pod("team", "runs", 8, "full", at)]
    silent, _ = gpu_machine("silent", "8h100-2n-nvswitch18")
    nodes += [silent, node_gpus("silent", silent, [], at - 7200)]
    pinned = gpu_pod("team", "pinned", 1, None, at, nodeSelector={"kubernetes.io/hostname": "full"})
    service = service_of([*nodes, gpu_pod("team", "p", 1, None, at), pinned, *waiting_gang("team", "g", 2, 1, at)])

    assert {pod.name: pod.reason for pod in service.overview.pending} == {
        "p": "",
        "pinned": "no node that suits the pod has 1 GPU known to be free; the most is 0",
    }
    assert [gang.reason for gang in service.overview.gangs] == ["2 members to be placed"]
    without_islands = service_of([gpu_node("n", 8), *waiting_gang("team", "g", 2, 8, at)])
    assert [gang.reason for gang in without_islands.overview.gangs] == ["2 members to be placed"]


def test_the_number_of_compared_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_MOST_MEMBERS", 4)
    pods = [
        pod for name, members in (("a", 3), ("b", 2), ("c", 1)) for pod in waiting_gang("t", name, members, 1, now())
    ]

    found = service_of([gpu_node("n", 0), *pods]).overview.gangs

    assert {gang.name for gang in found if gang.reason.endswith("the cluster has no GPU node")} == {"a", "c"}


def test_the_number_of_comparisons_for_pending_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suitable_nodes, "_MOST_CHECKS", 2)
    nodes = [gpu_node(f"n-{number}", 8) for number in range(4)]
    pods = [gpu_pod("team", f"p-{gpus}", gpus, None, now(), nodeSelector={"pool": f"{gpus}"}) for gpus in (4, 9)]

    assert reasons_of(*nodes, *pods) == {
        "p-4": "",
        "p-9": "no node has 9 GPUs known to be free; the most is 8",
    }


def test_a_malformed_request_has_the_reason_of_the_command() -> None:
    at = now()
    node, _ = gpu_machine("n", "8h100-2n-nvswitch18")
    pod = gpu_pod("team", "p", 4, None, at)
    pod["metadata"]["annotations"] = {keys.POD_ISLAND.key: "requried"}
    service = service_of([node, node_gpus("n", node, [], at), pod])
    (found,) = service.overview.pending

    assert "requried" in found.reason
    report = pod_report(service, ANYONE, "team", "p")
    assert " ".join(report.split()) == f"pod team/p is rejected on every node: {found.reason}"


def test_a_required_island_may_fit_where_free_islands_are_unknown() -> None:
    at = now()
    node, _ = gpu_machine("n", "8a100-2n-pairs12")
    report = node_gpus("n", node, [], at)
    del report["allocations"]
    pod = gpu_pod("team", "p", 2, None, at)
    pod["metadata"]["annotations"] = {keys.POD_ISLAND.key: "required"}
    service = service_of([node, report, gpu_pod("team", "runs", 5, "n", at), pod])

    assert [each.reason for each in service.overview.pending] == [""]
