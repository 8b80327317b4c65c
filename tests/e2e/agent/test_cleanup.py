"""``gputopo cleanup`` on the real API server: what is ours goes, what is not stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.cli.cleanup import cleanup
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD, CLEANER, NODE_FEATURES, NODE_GPUS
from gputopo.labels import encode_topology, keys
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.access import DEFINITIONS, define, define_node_gpus, grant, open_kube, user
from tests.e2e.agent.node_features import NODE_FEATURE
from tests.e2e.cluster import Cluster, wait_for
from tests.machines import dgx1

pytestmark = pytest.mark.e2e
STATE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())
NODES = ("gpu-0", "gpu-1")
THEIRS = {keys.NVIDIA_COUNT.key: "8", "team": "a"}


@pytest.fixture
def config(cluster: Cluster, tmp_path: Path) -> str:
    """The kubeconfig of somebody who may do what the role of a clean-up lists, and no more."""
    grant(cluster, "cleaner", CLEANER)
    return str(cluster.kubeconfig(tmp_path / "cleaner.kubeconfig", cluster.token("cleaner")))


@pytest.fixture
def published(cluster: Cluster, tmp_path: Path) -> list[Object]:
    """Two nodes with labels of others, on which agents have published; the nodes as they were before."""
    define_node_gpus(cluster)
    grant(cluster, "agent", AGENT)
    kube = open_kube(cluster, "agent", AGENT, tmp_path)
    before = []
    for name in NODES:
        cluster.api.create("/api/v1/nodes", api_objects.gpu_node(name, 8))
        cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": THEIRS}}, fieldManager="nfd-master")
        before.append(carried(cluster, name))
        publisher = NodePublisher(kube, name)
        publisher.publish_facts(encode_topology(dgx1()))
        publisher.write_state(STATE)
    kube.close()
    return before


def carried(cluster: Cluster, name: str) -> Object:
    metadata = cluster.api.get(f"/api/v1/nodes/{name}")["metadata"]
    managers = {each["manager"] for each in metadata["managedFields"]}
    return {"labels": metadata["labels"], "annotations": metadata.get("annotations"), "managers": managers}


def run(config: str, *arguments: str) -> Result:
    return CliRunner().invoke(cleanup, ["--kubeconfig", config, *arguments])


def test_all_of_it_leaves_no_trace(cluster: Cluster, published: list[Object], config: str) -> None:
    result = run(config, "--all", "--crd")

    assert result.exit_code == 0, result.output
    assert [carried(cluster, name) for name in NODES] == published

    def definitions() -> list[Object]:
        return [each for each in cluster.api.items(DEFINITIONS) if each["spec"]["group"] == keys.API_GROUP]

    wait_for(lambda: definitions() == [], "the definition to go, after its last object")


def test_one_node_is_cleaned_and_the_other_left_alone(cluster: Cluster, published: list[Object], config: str) -> None:
    untouched = carried(cluster, "gpu-1")

    result = run(config, "--node", "gpu-0")

    assert result.exit_code == 0, result.output
    assert [carried(cluster, name) for name in NODES] == [published[0], untouched]
    assert [each["metadata"]["name"] for each in cluster.api.items(NODE_GPUS.path())] == ["gpu-1"]
    assert result.output.splitlines()[-1] == "removed nodegpus/gpu-0"


def test_a_dry_run_names_every_key_and_writes_nothing(cluster: Cluster, published: list[Object], config: str) -> None:
    assert published
    before = [carried(cluster, name) for name in NODES]

    result = run(config, "--node", "gpu-0", "--dry-run")

    facts = encode_topology(dgx1())
    own = [f"annotation {key}" for key in sorted(facts.annotations)] + [f"label {key}" for key in sorted(facts.labels)]
    mirrors = [f"label {key}" for key in sorted(facts.mirrors) if key != keys.NVIDIA_COUNT.key]
    assert result.output == (
        f"would remove nodes/gpu-0: {', '.join(own)}\n"
        f"would remove nodes/gpu-0: {', '.join(mirrors)}\n"
        "would remove nodegpus/gpu-0\n"
    )
    assert [carried(cluster, name) for name in NODES] == before
    assert [write for write in cluster.writes() if write.user == user(cluster, "cleaner")] == []


def test_a_key_that_others_set_too_stays_theirs(cluster: Cluster, published: list[Object], config: str) -> None:
    assert published
    shared = {keys.GPUS.key: "8"}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0", "labels": shared}}
    cluster.api.patch("/api/v1/nodes/gpu-0", body, "apply", fieldManager="somebody")

    result = run(config, "--node", "gpu-0")

    assert f"{keys.GPUS.key} (others own it too: it stays)" in result.output
    left = carried(cluster, "gpu-0")
    assert left["labels"] == published[0]["labels"] | shared
    assert left["managers"] == published[0]["managers"] | {"somebody"}


def test_forged_managed_fields_remove_nothing_of_others(cluster: Cluster, published: list[Object], config: str) -> None:
    """The token of a node's agent may write the managed fields of its Node, not taints and labels of others."""
    path, taints = "/api/v1/nodes/gpu-0", [{"key": "tenant", "value": "a", "effect": "NoSchedule"}]
    cluster.api.patch(path, {"spec": {"taints": taints}})
    own = next(
        each
        for each in cluster.api.get(path)["metadata"]["managedFields"]
        if each["manager"] == keys.FIELD_MANAGER and each["operation"] == "Apply"
    )
    own["fieldsV1"]["f:metadata"]["f:labels"]["f:team"] = {}
    own["fieldsV1"]["f:spec"] = {"f:taints": {}}
    agent = cluster.client(cluster.token("agent"))
    agent.patch(path, {"metadata": {"managedFields": [own]}})
    agent.close()

    result = run(config, "--node", "gpu-0")

    assert result.exit_code == 0, result.output
    assert "team (no agent writes it: it stays)" in result.output
    left = cluster.api.get(path)
    assert left["spec"]["taints"] == taints
    assert left["metadata"]["labels"]["team"] == THEIRS["team"]
    assert keys.ISLANDS.key not in left["metadata"]["labels"]
    assert carried(cluster, "gpu-0")["annotations"] == published[0]["annotations"]


def test_a_second_clean_up_finds_nothing(cluster: Cluster, published: list[Object], config: str) -> None:
    assert published
    run(config, "--all")

    result = run(config, "--all")

    assert (result.exit_code, result.output) == (0, "nothing to remove\n")
    assert {write.verb for write in cluster.writes() if write.user == user(cluster, "cleaner")} == {"patch", "delete"}


def test_our_requests_to_nfd_are_removed_and_those_of_others_are_kept(
    cluster: Cluster, config: str, tmp_path: Path
) -> None:
    define(cluster, NODE_FEATURE)
    cluster.api.create("/api/v1/nodes", api_objects.gpu_node("gpu-0", 8))
    grant(cluster, "agent", AGENT_WITH_NFD)
    kube = open_kube(cluster, "agent", AGENT_WITH_NFD, tmp_path)
    NodeFeaturePublisher(kube, "gpu-0", cluster.namespace).publish_facts(encode_topology(dgx1()))
    kube.close()
    theirs = {"metadata": {"name": "nvidia", "labels": {keys.NFD_NODE_NAME: "gpu-0"}}, "spec": {"labels": {"a": "b"}}}
    cluster.api.create(
        NODE_FEATURES.path(namespace=cluster.namespace),
        {"apiVersion": NODE_FEATURES.api_version, "kind": "NodeFeature", **theirs},
    )

    result = run(config, "--node", "gpu-0")

    assert result.output == "removed nodefeatures/gputopo-features-for-gpu-0\n"
    assert [each["metadata"]["name"] for each in cluster.api.items(NODE_FEATURES.path())] == ["nvidia"]


def test_an_unknown_node_is_an_error(cluster: Cluster, config: str) -> None:
    assert cluster.api.items("/api/v1/nodes") == []

    result = run(config, "--node", "gone")

    assert (result.exit_code, result.output) == (4, "gputopo: there is no node 'gone'\n")


def test_missing_permissions_of_a_clean_up_are_reported(
    cluster: Cluster, published: list[Object], tmp_path: Path
) -> None:
    reading_only = CLEANER._replace(
        verbs={
            resource: tuple(verb for verb in verbs if verb in {"get", "list"})
            for resource, verbs in CLEANER.verbs.items()
        }
    )
    assert published
    grant(cluster, "reader", reading_only)
    before = [carried(cluster, name) for name in NODES]

    result = run(str(cluster.kubeconfig(tmp_path / "r", cluster.token("reader"))), "--node", "gpu-0")

    assert result.exit_code == 4
    assert result.stderr.count("FAILED") == 3
    assert "403" in result.output
    assert [carried(cluster, name) for name in NODES] == before
