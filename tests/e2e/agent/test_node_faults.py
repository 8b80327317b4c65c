"""An agent's life on a node: every fault, asserted on the Node object and on the audit log."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from agent.recording.io import dump_snapshot, load_snapshot
from gputopo.cli.cluster import nodes, pods
from gputopo.kube.rbac import READER
from gputopo.labels import decode_topology, keys
from tests import api_objects
from tests.agent.allocation.kubelet import kubelet, listing, pod
from tests.api_objects import Object
from tests.e2e.agent.access import grant
from tests.e2e.agent.conftest import ACCOUNT
from tests.e2e.agent.forwarder import forwarder
from tests.e2e.agent.running import (
    PATIENCE_S,
    agent_writes,
    node_gpus,
    node_labels,
    prepare,
    running,
    wait_for_label,
)
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.credentials import write_kubeconfig
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import cube_mesh_8, islands_4_4

pytestmark = pytest.mark.e2e
NODE = "gpu-0"


@pytest.fixture
def options(cluster: Cluster, fleet: Fleet) -> tuple[str, ...]:
    """A node of eight GPUs, and how to run an agent for it."""
    prepare(cluster)
    (node,) = fleet.add(NodeSpec(name=NODE, shape=islands_4_4()))
    return "--node", NODE, "--node-source", str(node.snapshot), "--socket", str(node.socket)


def published(cluster: Cluster) -> bool:
    return node_gpus(cluster, NODE) is not None


def events(cluster: Cluster) -> list[tuple[str, str]]:
    """(type, reason) of the Events on the Node, oldest first."""
    found = cluster.api.items("/api/v1/events", fieldSelector=f"involvedObject.name={NODE}")
    found.sort(key=lambda each: str(each["metadata"]["name"]))  # which ends in the time
    return [(each["type"], each["reason"]) for each in found]


def test_a_node_is_labelled_once_and_then_left_alone(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options) as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        first = agent_writes(cluster)
        agent.looks(10)

        assert agent_writes(cluster) == first
    assert Counter(first) == {("nodes", "patch"): 2, ("nodegpus", "patch"): 1}  # ours and the mirrors, then the state
    node = cluster.api.get(f"/api/v1/nodes/{NODE}")["metadata"]
    seen = decode_topology(node["labels"], node["annotations"])
    assert [gpu.uuid for gpu in seen.gpus] == [gpu.uuid for gpu in fleet[NODE].topology.gpus]
    assert node["labels"][keys.ISLANDS.key] == "4-4"


def test_a_link_that_goes_down_and_comes_back(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options):
        wait_for_label(cluster, NODE, keys.DEGRADED.key, "false")
        link = (fleet[NODE].topology.nvlink or pytest.fail("no links")).links[0]
        fleet.kill_link(NODE, link.a, link.b)
        wait_for_label(cluster, NODE, keys.DEGRADED.key, "true")
        fleet.revive_link(NODE, link.a, link.b)
        wait_for_label(cluster, NODE, keys.DEGRADED.key, "false")
        wait_for(lambda: len(events(cluster)) == 2, "two events", PATIENCE_S)

    assert events(cluster) == [("Warning", "GpuTopologyDegraded"), ("Normal", "GpuTopologyRecovered")]
    assert agent_writes(cluster).count(("nodes", "patch")) == 4  # the mirrors are the same all the time


def test_a_link_that_flaps_is_written_once(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options, "--hold", "1h") as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        link = (fleet[NODE].topology.nvlink or pytest.fail("no links")).links[0]
        before = agent_writes(cluster).count(("nodes", "patch"))
        for _ in range(5):
            fleet.kill_link(NODE, link.a, link.b)
            agent.looks(2)
            fleet.revive_link(NODE, link.a, link.b)
            agent.looks(2)

        assert node_labels(cluster, NODE)[keys.DEGRADED.key] == "true"
    assert agent_writes(cluster).count(("nodes", "patch")) == before + 1


def test_a_gpu_that_is_lost_and_comes_back(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options):
        wait_for_label(cluster, NODE, keys.GPUS.key, "8")
        fleet.kill_gpu(NODE, 3)
        wait_for_label(cluster, NODE, keys.GPUS.key, "7")
        found = cluster.api.get(f"/api/v1/nodes/{NODE}")["metadata"]
        fleet.revive_gpu(NODE, 3)
        wait_for_label(cluster, NODE, keys.GPUS.key, "8")
        wait_for(lambda: len(events(cluster)) == 2, "two events", PATIENCE_S)

    lost = decode_topology(found["labels"], found["annotations"])
    assert lost.gpus[3].uuid == fleet[NODE].topology.gpus[3].uuid
    assert [gpu.index for gpu in lost.usable] == [0, 1, 2, 4, 5, 6, 7]
    assert found["labels"][keys.ISLANDS.key] == "4-3"
    assert events(cluster) == [("Warning", "GpuLost"), ("Normal", "GpuTopologyRecovered")]


def test_an_agent_that_is_told_to_end_leaves_the_labels_and_the_next_one_writes_none(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options) as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        assert agent.end() == 0
    before, labels = agent_writes(cluster), node_labels(cluster, NODE)

    with running(cluster, tmp_path, *options) as agent:
        agent.looks(3)
        after = agent_writes(cluster)

    assert fleet[NODE].topology.degraded == ()
    assert node_labels(cluster, NODE) == labels
    assert Counter(after[len(before) :]) <= Counter({("nodegpus", "patch"): 1})


def test_a_link_that_failed_is_still_missing_for_the_next_agent(cluster: Cluster, fleet: Fleet, tmp_path: Path) -> None:
    prepare(cluster)
    (node,) = fleet.add(NodeSpec(name=NODE, shape=cube_mesh_8()))
    options = ("--node", NODE, "--node-source", str(node.snapshot), "--socket", "off")
    with running(cluster, tmp_path, *options) as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        link = (node.topology.nvlink or pytest.fail("no links")).links[0]
        fleet.kill_link(NODE, link.a, link.b)
        wait_for_label(cluster, NODE, keys.DEGRADED.key, "true")
        agent.end()
    before = agent_writes(cluster).count(("nodes", "patch"))

    with running(cluster, tmp_path, *options) as agent:
        agent.looks(3)

    assert node_labels(cluster, NODE)[keys.DEGRADED.key] == "true"
    assert agent_writes(cluster).count(("nodes", "patch")) == before


def test_a_driver_that_stops_answering_costs_no_label_and_ends_the_agent(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with running(cluster, tmp_path, *options, "--grace", "2") as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        before, labels = agent_writes(cluster), node_labels(cluster, NODE)
        fleet[NODE].snapshot.write_text(
            '{"format": "gputopo.io/snapshot/v1", "nvml": {"error": "nvmlInit_v2: UNKNOWN"}}'
        )

        assert agent.ended() == 1
    assert (agent_writes(cluster), node_labels(cluster, NODE)) == (before, labels)


def test_pods_are_published_with_the_gpus_they_hold(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    def allocations() -> list[Object]:
        return (node_gpus(cluster, NODE) or {}).get("allocations") or []

    with running(cluster, tmp_path, *options):
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        nodes = agent_writes(cluster).count(("nodes", "patch"))
        created = cluster.create_pod(api_objects.pod("train-0", 4, nodeName=NODE))
        held = wait_for(allocations, "an allocation", PATIENCE_S)
        given = fleet.gpus_of(created)
        fleet.finish(cluster.pod("train-0"))
        wait_for(lambda: not allocations(), "no allocation", PATIENCE_S)

    uuids = {gpu.index: gpu.uuid for gpu in fleet[NODE].topology.gpus}
    assert sorted(each["gpu"] for each in held) == sorted(str(uuids[index]) for index in given)
    assert {each["pod"]["name"] for each in held} == {"train-0"}
    assert agent_writes(cluster).count(("nodes", "patch")) == nodes


def test_the_use_of_gpus_is_published_and_listed(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    node = fleet[NODE]
    recorded = load_snapshot(node.snapshot.read_bytes())
    assert recorded.nvml is not None
    gpus = tuple(
        replace(gpu, memory_used_bytes=(gpu.memory_bytes or 0) // 2, busy_percent=93) for gpu in recorded.nvml.gpus
    )
    node.snapshot.write_text(dump_snapshot(replace(recorded, nvml=replace(recorded.nvml, gpus=gpus))))
    cluster.create_pod(api_objects.pod("train-0", 8, nodeName=NODE))

    with running(cluster, tmp_path, *options):
        usage = wait_for(
            lambda: [each for each in (node_gpus(cluster, NODE) or {}).get("usage") or () if each.get("busyPercent")],
            "the use of GPUs",
            PATIENCE_S,
        )
        wait_for(lambda: (node_gpus(cluster, NODE) or {}).get("allocations"), "an allocation", PATIENCE_S)
        stored = (node_gpus(cluster, NODE) or {})["usage"]

    assert len(usage) == 8
    assert {(each["usedMemoryPercent"], each["claimedMemoryPercent"], each["busyPercent"]) for each in stored} == {
        (50, 100, 90)
    }
    grant(cluster, "reader", READER)
    config = cluster.kubeconfig(tmp_path / "reader.kubeconfig", cluster.token("reader"))
    for command in (nodes, pods):
        printed = CliRunner().invoke(command, ["--kubeconfig", str(config), "-o", "wide"]).output.splitlines()[1]
        assert "50 %" in printed
        assert "90 %" in printed


def test_a_kubelet_that_is_not_there_then_comes_restarts_and_stays(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    uuid = fleet[NODE].topology.gpus[0].uuid or ""
    socket = fleet.folder / "late.sock"

    def held() -> list[str] | None:
        found = (node_gpus(cluster, NODE) or {}).get("allocations")
        return None if found is None else [each["gpu"] for each in found]

    with running(cluster, tmp_path, *options[:-1], str(socket)) as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        assert held() is None
        assert [each["error"] for each in agent.lines("podresources")] == [f"{socket}: No such file or directory"]
        with kubelet(socket, lambda _: listing(pod("a", {"nvidia.com/gpu": [uuid]}))):
            wait_for(lambda: held() == [uuid], "the allocation", PATIENCE_S)
        wait_for(lambda: len(agent.lines("podresources")) == 3, "the kubelet's end", PATIENCE_S)
        before = agent_writes(cluster)
        with kubelet(socket, lambda _: listing(pod("a", {"nvidia.com/gpu": [uuid]}))):
            wait_for(lambda: len(agent.lines("podresources")) == 4, "the kubelet's return", PATIENCE_S)
            agent.looks(2)

    assert held() == [uuid]
    assert agent_writes(cluster) == before


def test_an_api_server_that_is_away_is_caught_up_with(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    with forwarder(cluster.url) as road:
        config = tmp_path / "road.kubeconfig"
        token = {"token": cluster.token(ACCOUNT)}
        write_kubeconfig(config, f"https://127.0.0.1:{road.port}", cluster.plane.authority.certificate, token)
        with running(cluster, tmp_path, *options, kubeconfig=config) as agent:
            wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
            before = agent_writes(cluster)
            road.take_down()
            fleet.kill_gpu(NODE, 1)
            agent.looks(3)
            fleet.kill_gpu(NODE, 2)
            agent.looks(3)
            assert agent_writes(cluster) == before
            road.bring_up()
            wait_for_label(cluster, NODE, keys.GPUS.key, "6")
            wait_for(lambda: len(events(cluster)) == 1, "an event", PATIENCE_S)
            wait_for(lambda: ("nodegpus", "patch") in agent_writes(cluster)[len(before) :], "NodeGpus", PATIENCE_S)

    after = Counter(agent_writes(cluster)[len(before) :])
    assert after == {("nodes", "patch"): 2, ("nodegpus", "patch"): 1, ("events", "create"): 1}


def test_a_hangup_makes_it_look_at_once(
    cluster: Cluster, fleet: Fleet, options: tuple[str, ...], tmp_path: Path
) -> None:
    assert fleet.names == [NODE]
    with running(cluster, tmp_path, *options, "--interval", "1h") as agent:
        wait_for(lambda: published(cluster), "the first state", PATIENCE_S)
        for _ in range(3):
            before = len(agent.lines("pass"))
            agent.send(signal.SIGHUP)
            wait_for(lambda before=before: len(agent.lines("pass")) > before, "a look", PATIENCE_S)  # type: ignore[misc]
