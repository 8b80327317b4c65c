"""Hundreds of pods that arrive together, more than there is room for, on machines of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest
from click.testing import CliRunner

from gputopo.cli.replay import replay
from gputopo.model import NodeTopology
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.scheduler import real_state
from tests.e2e.scheduler.agents import Agents
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, condition, gpu_pod
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import bridged_pairs_8, cube_mesh_8, islands_4_4, nvswitch_8, pcie_8

pytestmark = pytest.mark.e2e
MACHINES: dict[Callable[[], NodeTopology], int] = {
    islands_4_4: 10, nvswitch_8: 6, cube_mesh_8: 4, bridged_pairs_8: 6, pcie_8: 4,
}  # fmt: skip
POOL = "pool"
SECONDS = 15.0  # within which whoever fits must be placed; kube-scheduler looks at everybody again after 300
# What pods ask, and how many of ten ask it: GPUs, annotations, further fields of the pod's spec.
PREFERS_A_POOL = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 10,
                    "preference": {"matchExpressions": [{"key": POOL, "operator": "In", "values": ["even"]}]},
                }
            ]
        }
    }
}
ASKS: list[tuple[int, dict[str, str], Object]] = [
    (1, {}, {}),
    (1, {"workload": "inference"}, {}),
    (2, {}, {}),
    (2, {"island": "preferred"}, PREFERS_A_POOL),
    (4, {"island": "preferred"}, {}),
    (2, {"island": "required"}, {}),
    (2, {"island": "required"}, PREFERS_A_POOL),
    (4, {"island": "required"}, {}),
    (4, {"interconnect": "nvlink", "workload": "training"}, {}),
    (8, {"island": "required"}, {}),
]


@pytest.fixture
def machines(fleet: Fleet, agents_of: StartAgents) -> Agents:
    """30 nodes of 8 GPUs, an agent on each."""
    shapes = [shape for shape, count in MACHINES.items() for _ in range(count)]
    Random(5).shuffle(shapes)
    fleet.add(
        *(
            NodeSpec(name=f"gpu-{at:02}", shape=shape(), labels={POOL: ("even", "odd")[at % 2]})
            for at, shape in enumerate(shapes)
        )
    )
    return agents_of()


def arrive(cluster: Cluster, name: str, count: int, seed: int) -> None:
    """Create that many pods together, of every kind, in a random order."""
    random = Random(seed)
    wanted = [
        gpu_pod(f"{name}-{at}", gpus, wishes, **spec)
        for at, (gpus, wishes, spec) in enumerate(random.choice(ASKS) for _ in range(count))
    ]
    cluster.api.create_all([(cluster.pods(), each) for each in wanted])


def size(found: Object) -> int:
    """Return the number of GPUs that a pod requests."""
    return int(found["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])


def fitting(fleet: Fleet, pods: list[Object]) -> list[str]:
    """Pods that wait though some node has room for them, whatever its device plugin chooses."""
    free = {name: real_state.free(fleet[name].topology, gpus) for name, gpus in real_state.held(fleet, pods).items()}
    waiting = [each for each in pods if "nodeName" not in each["spec"]]
    wanted = {(size(each), real_state.needs_an_island(each)): each["metadata"]["name"] for each in waiting}
    return [
        f"{pod} on {node}"
        for (gpus, island), pod in wanted.items()
        for node, left in free.items()
        if len(left) >= gpus and (not island or real_state.surely_in_one_island(fleet[node].topology, left, gpus))
    ]


def settle(cluster: Cluster, fleet: Fleet, agents: Agents) -> list[Object]:
    """Wait until nobody is left waiting who fits; all pods then. Fails after the seconds that are allowed."""
    deadline = None
    before: set[str] = set()
    while True:
        pods = cluster.api.items(cluster.pods())
        bound = {each["metadata"]["name"] for each in pods if each["spec"].get("nodeName")}
        undecided = [each for each in pods if "nodeName" not in each["spec"] and not condition(each)]
        if bound != before or undecided or deadline is None:  # it goes on
            before, deadline = bound, time.monotonic() + SECONDS
        elif all(each["status"]["phase"] != "Pending" for each in pods if "nodeName" in each["spec"]):
            if not (left := fitting(fleet, pods)):
                return pods
            assert time.monotonic() < deadline, f"left waiting for {SECONDS:g} s: {left}"
        agents.catch_up()


def check(fleet: Fleet, pods: list[Object]) -> None:
    """No GPU twice, and every required island whole; ``held`` looks at the first."""
    by_node = real_state.held(fleet, pods)
    wanted = {each["metadata"]["name"]: each for each in pods}
    for node, by_pod in by_node.items():
        for name, gpus in by_pod.items():
            assert len(gpus) == size(wanted[name])
            if real_state.needs_an_island(wanted[name]):
                assert real_state.in_one_island(fleet[node].topology, gpus), (node, name, sorted(gpus))


def test_every_pod_that_fits_is_placed_and_no_island_is_broken(
    cluster: Cluster, fleet: Fleet, machines: Agents, gputopo_scheduler: Extender, timed: Timed
) -> None:
    with timed("200 pods on 30 nodes"):
        arrive(cluster, "early", 200, seed=1)
        pods = settle(cluster, fleet, machines)
    check(fleet, pods)
    waiting = [each["metadata"]["name"] for each in pods if "nodeName" not in each["spec"]]
    assert waiting
    running = [each for each in pods if each["status"]["phase"] == "Running"]
    ran = {each["metadata"]["uid"] for each in running}

    with timed("half of them ended, and 60 more came"):
        for each in Random(2).sample(running, len(running) // 2):
            cluster.api.delete(cluster.pods(each["metadata"]["name"]))
        arrive(cluster, "late", 60, seed=3)
        pods = settle(cluster, fleet, machines)
    check(fleet, pods)
    ran |= {each["metadata"]["uid"] for each in pods if each["status"]["phase"] == "Running"}
    placed = {each["metadata"]["name"] for each in pods if "nodeName" in each["spec"]}
    assert placed & set(waiting)

    machines.catch_up()
    wait_for(lambda: gputopo_scheduler.count("gputopo_predictions_total") == len(ran), "every pod to be counted")
    assert gputopo_scheduler.count("gputopo_required_shapes_violated_total") == 0
    assert not [
        each["metadata"]["name"]
        for each in pods
        if each["status"]["phase"] == "Failed" and real_state.needs_an_island(each)
    ]
    assert CliRunner().invoke(replay, [f"{gputopo_scheduler.pages}/decisions"]).exit_code == 0
