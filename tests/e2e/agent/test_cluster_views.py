"""``gputopo nodes``, ``pods`` and ``show --node`` against simulated GPU nodes on the real API server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from agent.publish.node import NodePublisher
from gputopo.cli.cluster import nodes, pods, topology_of_node
from gputopo.cli.why import why
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef, content_hash
from gputopo.kube.rbac import AGENT, NODES, READER
from gputopo.labels import encode_topology
from gputopo.labels.keys import TOPOLOGY
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.access import define_node_gpus, grant, open_kube
from tests.e2e.cluster import Cluster
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import cube_mesh_8, islands_4_4, nvswitch_8

pytestmark = pytest.mark.e2e
OLD_REPORT = "2026-11-21T12:00:00Z"


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> str:
    """The kubeconfig of somebody who may do what the role of a reader lists, and no more."""
    grant(cluster, "reader", READER)
    return str(cluster.kubeconfig(tmp_path / "reader.kubeconfig", cluster.token("reader")))


@pytest.fixture
def trio(fleet: Fleet) -> Fleet:
    """Three nodes of 8 GPUs: two islands, a cube mesh, a switch."""
    shapes = {"gpu-0": islands_4_4(), "gpu-1": cube_mesh_8(), "gpu-2": nvswitch_8()}
    fleet.add(*(NodeSpec(name=name, shape=shape) for name, shape in shapes.items()))
    return fleet


def publish(cluster: Cluster, fleet: Fleet, folder: Path, running: list[Object], observed: str | None = None) -> None:
    """Do what agents do: publish what the nodes are, and which pod holds which GPU; by default, as of now."""
    observed = observed or datetime.now(UTC).isoformat()
    define_node_gpus(cluster)
    grant(cluster, "agent", AGENT)
    kube = open_kube(cluster, "agent", AGENT, folder)
    for name in fleet.names:
        topology = fleet[name].topology
        held = tuple(
            DeviceAllocation(
                str(topology.get_gpu(index).uuid),
                PodRef(pod["metadata"]["namespace"], pod["metadata"]["name"], "main"),
            )
            for pod in running
            if pod["spec"]["nodeName"] == name
            for index in fleet.gpus_of(pod)
        )
        publisher = NodePublisher(kube, name)
        facts = encode_topology(topology)
        publisher.publish_facts(facts)
        publisher.write_state(NodeGpus(observed, content_hash(facts.annotations[TOPOLOGY.key]), "0.1.0", held))
    kube.close()


def run_pods(cluster: Cluster, *wanted: tuple[str, str, int]) -> list[Object]:
    """Pods (name, node, GPUs), bound and admitted."""
    for name, node, gpus in wanted:
        cluster.create_pod(api_objects.pod(name, gpus, nodeName=node))
    return [cluster.wait_for_pod(name, lambda pod: pod["status"]["phase"] == "Running") for name, _, _ in wanted]


def answer(command: Any, config: str, *arguments: str) -> str:
    result = CliRunner().invoke(command, ["--kubeconfig", config, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_pods_are_listed_by_what_they_lack_the_worst_first(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    # On gpu-0, 3 and then 2 GPUs leave 1 + 2 in the two islands: the pod of 3 gets them, over PCIe.
    running = run_pods(cluster, ("first", "gpu-0", 3), ("second", "gpu-0", 2))
    running += run_pods(cluster, ("split", "gpu-0", 3), ("whole", "gpu-2", 8), ("one", "gpu-1", 1))
    publish(cluster, trio, tmp_path, running)

    listed = json.loads(answer(pods, config, "-o", "json"))["items"]

    by_name = {each["name"]: each for each in listed}
    assert {name: each["gpusByIsland"] for name, each in by_name.items()} == {
        "first": [3],
        "second": [2],
        "split": [2, 1],
        "whole": [8],
        "one": [1],
    }
    assert {name: each["gpus"] for name, each in by_name.items()} == {
        pod["metadata"]["name"]: sorted(trio.gpus_of(pod)) for pod in running
    }
    assert [listed[0]["name"], listed[-1]["name"]] == ["split", "one"]
    assert listed[0]["ring"]["kind"] == "pcie"
    assert listed[0]["bestRingOnNode"] == by_name["first"]["ring"]
    assert by_name["one"]["ring"] is None


def test_pods_as_a_table_name_node_gpus_and_rates(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    running = run_pods(cluster, ("train", "gpu-2", 8))
    publish(cluster, trio, tmp_path, running, OLD_REPORT)

    title, row, *notes = answer(pods, config).splitlines()

    assert "gpu-2" in " ".join(notes)  # its report is old
    assert " ".join(title.split()) == (
        "NAMESPACE POD NODE GPUS ISLANDS NUMA RING BEST ON NODE BEST IN CLUSTER % OF BEST"
    )
    assert row.split() == [
        cluster.namespace, "train", "gpu-2", "GPU0-7", "8", "0+1", "900", "nvswitch", "900", "nvswitch", "900",
        "nvswitch", "100", "%",
    ]  # fmt: skip


def test_a_pod_that_has_ended_is_not_listed_though_the_kubelet_still_does(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    running = run_pods(cluster, ("ended", "gpu-0", 2), ("runs", "gpu-0", 2))
    publish(cluster, trio, tmp_path, running)
    trio.finish(running[0])

    listed = json.loads(answer(pods, config, "-o", "json", "-n", cluster.namespace))["items"]

    assert [each["name"] for each in listed] == ["runs"]
    assert answer(pods, config, "-n", "default") == "no running GPU pods found\n"


def test_pods_on_a_node_without_known_allocations_are_listed_as_such(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    running = run_pods(cluster, ("seen", "gpu-0", 2), ("unseen", "gpu-1", 4), ("cpu-only", "gpu-1", 0))
    publish(cluster, trio, tmp_path, running)
    cluster.api.delete("/apis/gputopo.io/v1alpha1/nodegpus/gpu-1")

    listed = json.loads(answer(pods, config, "-o", "json"))["items"]

    assert [(each["name"], each["count"], each["gpus"] is None) for each in listed] == [
        ("seen", 2, False),
        ("unseen", 4, True),
    ]


def test_nodes_are_listed_with_what_is_free_in_each_island(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    cluster.api.create("/api/v1/nodes", api_objects.node("cpu-0", {"cpu": "8"}))
    running = run_pods(cluster, ("train", "gpu-0", 4), ("serve", "gpu-0", 1))
    trio.kill_gpu("gpu-1", 7)
    publish(cluster, trio, tmp_path, running)

    title, *rows = [line.split() for line in answer(nodes, config).splitlines()]

    assert title == ["NODE", "PRODUCT", "GPUS", "ISLANDS", "FREE", "DEGRADED", "LAST", "SEEN"]
    assert [row[0] for row in rows] == ["gpu-0", "gpu-1", "gpu-2"]
    assert "4-4" in rows[0]
    assert sorted(rows[0][rows[0].index("4-4") + 1 :][:2]) == ["0/4", "3/4"]
    assert rows[1][rows[1].index("7+1") :][:2] == ["7+1", "lost"]
    assert "8/8" in rows[2]


def test_nodes_as_documents_agree(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    observed = datetime.now(UTC).isoformat()
    publish(cluster, trio, tmp_path, [], observed)

    def timeless(document: Any) -> Any:
        for each in document["items"]:
            assert each.pop("ageSeconds") is not None
        return document

    from_json = timeless(json.loads(answer(nodes, config, "-o", "json")))
    assert from_json == timeless(yaml.safe_load(answer(nodes, config, "-o", "yaml")))
    assert [(each["name"], each["gpus"], each["free"], each["observedAt"]) for each in from_json["items"]] == [
        (f"gpu-{number}", 8, 8, observed) for number in range(3)
    ]


def test_free_gpus_follow_from_the_pods_where_the_last_report_is_old(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    publish(cluster, trio, tmp_path, [], OLD_REPORT)

    listed = json.loads(answer(nodes, config, "-o", "json"))["items"]

    assert [(each["gpus"], each["free"], each["observedAt"]) for each in listed] == [(8, 8, OLD_REPORT)] * 3
    cluster.create_pod(api_objects.pod("train", 3, nodeName="gpu-0"))
    listed = json.loads(answer(nodes, config, "-o", "json"))["items"]
    assert [each["free"] for each in listed] == [5, 8, 8]
    assert "5/8, indices: ?" in answer(nodes, config)


def test_a_cordoned_node_is_marked(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    publish(cluster, trio, tmp_path, [])
    cluster.api.patch(NODES.path("gpu-1"), {"spec": {"unschedulable": True}})

    listed = json.loads(answer(nodes, config, "-o", "json"))["items"]

    assert [each["cordoned"] for each in listed] == [False, True, False]


def test_nodes_that_are_not_ready_or_unreachable_are_marked(
    cluster: Cluster, trio: Fleet, config: str, tmp_path: Path
) -> None:
    publish(cluster, trio, tmp_path, [])
    for name, state in (("gpu-0", "unreachable"), ("gpu-2", "not-ready")):
        taint = {"key": f"node.kubernetes.io/{state}", "effect": "NoExecute"}
        cluster.api.patch(NODES.path(name), {"spec": {"taints": [taint]}})

    listed = json.loads(answer(nodes, config, "-o", "json"))["items"]

    assert [each["unusableReasons"] for each in listed] == [["unreachable"], [], ["not ready"]]
    rows = answer(nodes, config).splitlines()
    assert ("unreachable" in rows[1], "not ready" in rows[3]) == (True, True)


def test_nodes_of_a_cluster_without_agents_show_the_facts_of_the_labels(cluster: Cluster, config: str) -> None:
    labels = encode_topology(islands_4_4()).mirrors
    cluster.api.create("/api/v1/nodes", api_objects.gpu_node("gpu-0", 8, labels))

    listed = json.loads(answer(nodes, config, "-o", "json"))["items"]

    assert [(each["name"], each["gpus"], each["free"], each["islands"]) for each in listed] == [("gpu-0", 8, 8, None)]
    assert "never" in answer(nodes, config, "-o", "wide")


def test_a_cluster_without_gpus_is_reported(cluster: Cluster, config: str) -> None:
    cluster.api.create("/api/v1/nodes", api_objects.node("cpu-0", {"cpu": "8"}))

    assert answer(nodes, config) == "no GPU nodes found\n"


def test_a_node_is_shown_as_it_was_published(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    publish(cluster, trio, tmp_path, [])

    assert topology_of_node("gpu-1", config) == trio["gpu-1"].topology.stable_facts()


def test_why_a_pod_waits_and_what_is_nearest(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    """Three of eight GPUs are free on gpu-0, two in one island and one in the other; the other nodes are full."""
    running = run_pods(
        cluster, ("first", "gpu-0", 3), ("second", "gpu-0", 2), ("all-1", "gpu-1", 8), ("all-2", "gpu-2", 8)
    )
    publish(cluster, trio, tmp_path, running)
    waits = api_objects.pod("waits", 3, schedulerName="nobody")
    waits["metadata"]["annotations"] = {"gputopo.io/island": "required"}
    cluster.create_pod(waits)

    found = json.loads(answer(why, config, "pod", "waits", "-n", cluster.namespace, "-o", "json"))

    assert found["pod"] == {"namespace": cluster.namespace, "name": "waits", "scheduler": "nobody"}
    assert {each["reason"]: each["nodes"] for each in found["refused"]} == {
        "TOO_FEW_GPUS": ["gpu-1", "gpu-2"],
        "ISLAND": ["gpu-0"],
    }
    nearest = found["nearest"][0]
    assert nearest["text"] == (
        f"gpu-0 has 3 free GPUs but in islands 2+1; 3 in one island after pod {cluster.namespace}/second ends"
    )

    trio.finish(running[1])

    assert json.loads(answer(why, config, "pod", "waits", "-n", cluster.namespace, "-o", "json"))["suited"] == ["gpu-0"]


def test_devices_of_a_pod(cluster: Cluster, trio: Fleet, config: str, tmp_path: Path) -> None:
    running = run_pods(cluster, ("train", "gpu-2", 4))
    publish(cluster, trio, tmp_path, running)

    held = json.loads(answer(why, config, "pod/train", "-n", cluster.namespace, "-o", "json"))["held"]

    assert (held["node"], held["spot"]["gpus"]) == ("gpu-2", sorted(trio.gpus_of(running[0])))
    assert held["spot"]["ring"] == "nvswitch"
