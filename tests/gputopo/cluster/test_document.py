"""Nodes and pods as documents, key by key."""

from __future__ import annotations

import msgspec

from gputopo.cluster.document import node_list, pod_list
from gputopo.cluster.nodes import GpuNode
from gputopo.cluster.pods import PodGpus, PodName, pod_placements
from gputopo.crd.nodegpus import GpuUsage
from gputopo.model import Gpu, NodeTopology
from tests.gputopo.cluster.machines import NOW, gpu_node
from tests.machines import a100_bridged


def test_a_list_of_nodes() -> None:
    document = node_list([gpu_node("n", a100_bridged(), {"p": (0,)})], NOW)

    assert document == {
        "apiVersion": "gputopo.io/v1",
        "kind": "GpuNodeList",
        "items": [
            {
                "name": "n",
                "products": {"NVIDIA A100 80GB PCIe": 4},
                "gpus": 4,
                "free": 3,
                "draining": 0,
                "tainted": 0,
                "islands": [
                    {"gpus": [0, 1], "interconnect": "nvlink", "gbps": 600.0, "free": 1},
                    {"gpus": [2, 3], "interconnect": "nvlink", "gbps": 600.0, "free": 2},
                ],
                "numa": [0, 0, 1, 1],
                "vramMib": [81920] * 4,
                "driverVersion": a100_bridged().driver_version,
                "degraded": [],
                "observedAt": "2026-11-21T11:59:30+00:00",
                "ageSeconds": 30,
                "agentVersion": "0.1.0",
                "trouble": None,
                "cordoned": False,
                "unusableReasons": [],
                "usage": None,
            }
        ],
    }


def test_unknown_facts_of_a_node_are_null() -> None:
    (item,) = node_list([GpuNode("n", NodeTopology(gpus=(Gpu(index=0),)), None, "why")], NOW)["items"]

    assert item == {
        "name": "n",
        "products": {"unknown": 1},
        "gpus": 1,
        "free": None,
        "draining": 0,
        "tainted": 0,
        "islands": None,
        "numa": [None],
        "vramMib": [None],
        "driverVersion": None,
        "degraded": [],
        "observedAt": None,
        "ageSeconds": None,
        "agentVersion": None,
        "trouble": "why",
        "cordoned": False,
        "unusableReasons": [],
        "usage": None,
    }


def test_a_list_of_pods() -> None:
    found = pod_placements([gpu_node("n", a100_bridged(), {"p": (0, 2)})], {PodName("team-a", "p"): None})
    unseen = PodGpus(namespace="ns", name="q", node="m", count=2)

    first, second = pod_list([*found, unseen])["items"]

    assert first == {
        "namespace": "team-a",
        "name": "p",
        "node": "n",
        "count": 2,
        "gpus": [0, 2],
        "shared": False,
        "missing": [],
        "gpusByIsland": [1, 1],
        "numa": [0, 1],
        "ring": {"kind": "pcie", "gbps": 63.0, "lanes": None, "distance": "SYS"},
        "bestRingOnNode": {"kind": "nvlink", "gbps": 600.0, "lanes": 12, "distance": None},
        "bestRingInCluster": {"kind": "nvlink", "gbps": 600.0, "lanes": 12, "distance": None},
        "usage": None,
        "silentAgent": None,
        "vramMib": None,
    }
    assert (second["gpus"], second["ring"], second["numa"], second["gpusByIsland"]) == (None, None, None, None)


def test_the_use_of_gpus_is_by_index() -> None:
    machine = a100_bridged()
    usage = (
        GpuUsage(str(machine.gpus[2].uuid), 80, 50, None),
        GpuUsage(str(machine.gpus[0].uuid), 10, 100, 90),
        GpuUsage("GPU-gone", 10, 10, 10),
    )
    node = gpu_node("n", machine, {"p": (0, 2)})
    assert node.state is not None
    node = GpuNode("n", machine, msgspec.structs.replace(node.state, usage=usage))

    first = {"gpu": 0, "usedMemoryPercent": 10, "claimedMemoryPercent": 100, "busyPercent": 90}
    third = {"gpu": 2, "usedMemoryPercent": 80, "claimedMemoryPercent": 50, "busyPercent": None}
    assert node_list([node], NOW)["items"][0]["usage"] == [first, third]
    (pod,) = pod_list(pod_placements([node], {PodName("team-a", "p"): 15360}))["items"]
    assert (pod["usage"], pod["vramMib"]) == ([first, third], 15360)
