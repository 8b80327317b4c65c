"""The nodes that N pods of M GPUs would get by the planner's own plan, on the current cluster."""

from __future__ import annotations

from typing import Any

from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.ui.where import WhereAnswer, WhereQuery, prepare_where
from tests.api_objects import Object
from tests.scheduler_core.ui.cluster_documents import RACK, allocation, gpu_machine, gpu_pod, node_gpus
from tests.scheduler_core.ui.pages import now, service_of


def machine(
    name: str, used: int = 0, rack: str = "r1", shape: str = "8h100-2n-nvswitch18", **spec: Any
) -> list[Object]:
    at = now()
    node, topology = gpu_machine(name, shape, {RACK: rack})
    node["spec"] = spec
    held = [allocation(gpu.uuid or "", "team", f"on-{name}") for gpu in topology.gpus[:used]]
    pods = [gpu_pod("team", f"on-{name}", used, name, at)] if used else []
    return [node, *pods, node_gpus(name, node, held, at)]


def ask(items: list[Object], **query: Any) -> WhereAnswer:
    return prepare_where(service_of(items).view, BUILT_IN, WhereQuery(**query))(lambda: False)


def test_pods_go_to_one_rack_with_their_bandwidth() -> None:
    found = ask([*machine("a"), *machine("b", rack="r2"), *machine("c", rack="r2")], pods=2, gpus=8)

    assert found.seats == (("b", 1, 8), ("c", 1, 8))
    assert "2 x 8 GPUs fit now on 2 nodes, all in rack=r2, 900 GB/s" in found.words


def test_free_gpus_in_two_islands_are_not_one_island() -> None:
    pairs = machine("a", shape="8a100-2n-pairs12")

    assert "do not fit now" in ask(pairs, pods=1, gpus=4, island=True).words
    assert ask(pairs, pods=1, gpus=4, island=False).seats == (("a", 1, 4),)


def test_too_many_pods_say_how_many_would_fit() -> None:
    found = ask([*machine("a"), *machine("b", used=4)], pods=4, gpus=4)

    assert found.seats == ()
    assert "3 of 4 members fit" in found.words


def test_taints_of_pools_are_tolerated_and_a_cordon_is_not() -> None:
    tainted = machine("a", taints=[{"key": "team/gpus", "effect": "NoSchedule"}])
    cordoned = machine("b", unschedulable=True)
    leaving = machine("c", taints=[{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}])

    assert ask([*tainted, *cordoned, *leaving], pods=1, gpus=8).seats == (("a", 1, 8),)


def test_a_model_that_no_node_has() -> None:
    words = ask(machine("a"), pods=1, gpus=1, model="V100").words
    assert words == "1 x 1 GPUs do not fit now: no member fits at once (no GPU of the requested model)."
    assert ask(machine("a"), pods=1, gpus=1, model="H100").seats
