"""Own keys that another client changes: the agent as a process, with the token and under the policies of an install."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gputopo.cli.why import why as command
from gputopo.kube.rbac import NODE_GPUS
from gputopo.labels import decode_topology, encode_topology, keys
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.running import PATIENCE_S, node_gpus, node_labels, running
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import ACCOUNT, AGENT_NAMESPACE, agent_token, install
from tests.machines import dgx1
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
NODE = "gpu-0"
PATH = f"/api/v1/nodes/{NODE}"
HAND = "kubectl-label"
AGENT_USER = f"system:serviceaccount:{AGENT_NAMESPACE}:{ACCOUNT}"
REASON = "GpuTopologyRestored"


@pytest.fixture
def agent_options(cluster: Cluster, fleet: Fleet, tmp_path: Path) -> tuple[tuple[str, ...], Path]:
    """A GPU node of an installed cluster: the options of its agent, and the kubeconfig with its pod's token."""
    (node,) = fleet.add(NodeSpec(name=NODE, shape=islands_4_4()))
    install(cluster)
    options = ("--node", NODE, "--node-source", str(node.snapshot), "--socket", "off", "--heartbeat", "10s")
    return options, cluster.kubeconfig(tmp_path / "agent.kubeconfig", agent_token(cluster, NODE))


def metadata(cluster: Cluster) -> Object:
    return dict(cluster.api.get(PATH)["metadata"])


def edit(cluster: Cluster, **changes: dict[str, str | None]) -> None:
    cluster.api.patch(PATH, {"metadata": changes}, "merge", fieldManager=HAND)


def reports(cluster: Cluster) -> list[str]:
    """The messages of the Events about restored keys."""
    found = cluster.api.items("/api/v1/events", fieldSelector=f"involvedObject.name={NODE},reason={REASON}")
    return [str(each["message"]) for each in found]


def first_state(cluster: Cluster) -> None:
    wait_for(lambda: node_gpus(cluster, NODE), "the first state", PATIENCE_S)


def test_edited_labels_are_restored_within_a_heartbeat_with_an_event(
    cluster: Cluster, agent_options: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    options, config = agent_options
    admins = {keys.COST_PER_HOUR.key: "32.77", keys.TOPOLOGY_MANAGER.key: "single-numa-node"}
    with running(cluster, tmp_path, *options, kubeconfig=config):
        first_state(cluster)
        before = node_labels(cluster, NODE)
        lie = {keys.ISLANDS.key: "8", keys.PRODUCT_PREFIX + "H200": "8", keys.NUMA_LAYOUT.key: None}
        edit(cluster, labels={**lie, keys.NVIDIA_COUNT.key: "2", **admins})
        wait_for(lambda: node_labels(cluster, NODE)[keys.ISLANDS.key] == "4-4", "the heartbeat", PATIENCE_S)
        wait_for(lambda: reports(cluster), "the Event", PATIENCE_S)

    # A mirror that somebody takes stays theirs, and so do the keys of administrators.
    assert node_labels(cluster, NODE) == before | admins | {keys.NVIDIA_COUNT.key: "2"}
    (report,) = reports(cluster)
    assert report == (
        "other clients changed keys of the Node that only the agent may set: "
        f"{keys.ISLANDS.key} (by {HAND}), {keys.NUMA_LAYOUT.key} (by an unknown client), "
        f"{keys.PRODUCT_PREFIX}H200 (by {HAND})"
    )


def test_a_damaged_annotation_is_restored_by_a_restart(
    cluster: Cluster, agent_options: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    options, config = agent_options
    with running(cluster, tmp_path, *options, kubeconfig=config) as agent:
        first_state(cluster)
        agent.end()
    before = metadata(cluster)["annotations"]
    edit(cluster, annotations={keys.TOPOLOGY.key: '{"v":1,"gpus":'})

    with running(cluster, tmp_path, *options, kubeconfig=config):
        wait_for(lambda: metadata(cluster)["annotations"] == before, "the annotation", PATIENCE_S)
        wait_for(lambda: reports(cluster), "the Event", PATIENCE_S)

    assert len(decode_topology({}, before).gpus) == 8
    (report,) = reports(cluster)
    assert report.endswith(f": {keys.TOPOLOGY.key} (by {HAND})")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"v":1,"gpus":', f"its annotation {keys.TOPOLOGY.key} cannot be read: the topology annotation is damaged"),
        (
            encode_topology(dgx1()).annotations[keys.TOPOLOGY.key],
            "or another client edited its NodeGpus or the annotation",
        ),
    ],
)
def test_why_names_an_edited_annotation_as_the_cause(
    cluster: Cluster, agent_options: tuple[tuple[str, ...], Path], tmp_path: Path, text: str, why: str
) -> None:
    options, config = agent_options
    with running(cluster, tmp_path, *options, kubeconfig=config) as agent:
        first_state(cluster)
        agent.end()
    edit(cluster, annotations={keys.TOPOLOGY.key: text})
    pod = api_objects.pod("train-0", 2)
    pod["metadata"]["annotations"] = {keys.POD_ISLAND.key: "required"}
    cluster.create_pod(pod)

    arguments = ["pod", "train-0", "-n", cluster.namespace, "--kubeconfig", str(cluster.kubeconfig(tmp_path / "admin"))]
    answer = " ".join(CliRunner().invoke(command, arguments).output.split())

    assert why in answer
    assert (
        "a running agent restores it within a heartbeat, and names the field manager in an Event of the Node" in answer
    )


def test_an_edited_node_gpus_is_restored_within_a_heartbeat_with_an_event(
    cluster: Cluster, agent_options: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    options, config = agent_options
    with running(cluster, tmp_path, *options, kubeconfig=config):
        first_state(cluster)
        good = (node_gpus(cluster, NODE) or {})["contentHash"]
        forged = {"contentHash": "forged", "observedAt": "2099-01-01T00:00:00Z"}
        cluster.api.patch(NODE_GPUS.path(NODE), forged, "merge", fieldManager=HAND)
        wait_for(lambda: (node_gpus(cluster, NODE) or {})["contentHash"] == good, "the heartbeat", PATIENCE_S)
        wait_for(lambda: reports(cluster), "the Event", PATIENCE_S)

    (report,) = reports(cluster)
    assert report.endswith(
        f"of the NodeGpus that only the agent may set: .contentHash (by {HAND}), .observedAt (by {HAND})"
    )


def test_a_heartbeat_of_a_quiet_node_writes_its_lease_and_in_the_first_hour_its_node_gpus(
    cluster: Cluster, agent_options: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    options, config = agent_options
    with running(cluster, tmp_path, *options, kubeconfig=config) as agent:
        first_state(cluster)
        node_version, before = metadata(cluster)["resourceVersion"], cluster.writes()
        version = (node_gpus(cluster, NODE) or {})["metadata"]["generation"]
        wait_for(
            lambda: (node_gpus(cluster, NODE) or {})["metadata"]["generation"] >= version + 2,
            "two heartbeats",
            PATIENCE_S,
        )
        agent.end()

    mine = [each for each in cluster.writes()[len(before) :] if each.user == AGENT_USER]
    assert {(each.verb, each.resource, each.status) for each in mine} == {
        ("patch", "nodegpus", 200),
        ("create", "leases", 201),
        ("patch", "leases", 200),
    }
    assert metadata(cluster)["resourceVersion"] == node_version
