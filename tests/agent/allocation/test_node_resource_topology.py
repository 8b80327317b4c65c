"""The policy of the Topology Manager in Node Feature Discovery's object, over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.allocation.client import PodResourcesClient
from agent.allocation.kubelet_config import KubeletConfig
from agent.allocation.kubelet_facts import kubelet_facts
from agent.allocation.kubelet_reading import KubeletReading, read_kubelet
from agent.allocation.node_resource_topology import NodeResourceTopology, NodeResourceTopologyReader, PolicyReading
from agent.publish.choice import PublishTarget, open_node_reader
from gputopo.crd.nodegpus import KubeletFacts
from gputopo.kube.rbac import AGENT_WITH_TOPOLOGY, NODE_RESOURCE_TOPOLOGIES
from gputopo.model import NodeTopology
from tests.api_server import Answer, Asked, api_server

ZONES = [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "8"}]}]


def attributes(**values: str) -> dict[str, Any]:
    listed = [{"name": name, "value": value} for name, value in values.items()]
    return {"metadata": {"name": "n"}, "zones": ZONES, "attributes": listed}


def published(policy: str, scope: str | None) -> KubeletConfig:
    """Return the settings without the options, which are never published."""
    return KubeletConfig(policy, scope, None, None, None)


@contextmanager
def reader(
    answer: Callable[[Asked], Answer], folder: Path, clock: Callable[[], float] = lambda: 0.0
) -> Iterator[tuple[NodeResourceTopologyReader, list[Asked]]]:
    with api_server(answer) as server:
        target = PublishTarget(kind="node", node="n", kubeconfig=str(server.kubeconfig(folder / "kubeconfig")))
        read_object = open_node_reader(
            target, NODE_RESOURCE_TOPOLOGIES, AGENT_WITH_TOPOLOGY, NodeResourceTopology, 20.0
        )
        yield NodeResourceTopologyReader(read_object, "n", clock), server.asked


@pytest.mark.parametrize(
    ("document", "config"),
    [
        pytest.param(
            attributes(topologyManagerPolicy="restricted", topologyManagerScope="pod", nodeTopologyPodsFingerprint="x"),
            published("restricted", "pod"),
            id="attributes",
        ),
        pytest.param(attributes(topologyManagerPolicy="none"), published("none", None), id="no scope"),
        pytest.param(
            {"topologyPolicies": ["SingleNUMANodeContainerLevel"]},
            published("single-numa-node", "container"),
            id="deprecated field",
        ),
        pytest.param({"topologyPolicies": ["BestEffortPodLevel"]}, published("best-effort", "pod"), id="pod level"),
        pytest.param({"topologyPolicies": ["Restricted"]}, published("restricted", None), id="no level"),
        pytest.param(
            attributes(topologyManagerPolicy="none") | {"topologyPolicies": ["RestrictedPodLevel"]},
            published("none", None),
            id="attributes before the deprecated field",
        ),
        pytest.param(attributes(topologyManagerPolicy="x" * 500), published("x" * 63, None), id="long text"),
    ],
)
def test_policy_and_scope(document: dict[str, Any], config: KubeletConfig, tmp_path: Path) -> None:
    with reader(lambda _: Answer(document), tmp_path) as (topology, asked):
        assert topology.read_policy() == PolicyReading(config)

    assert [each.path for each in asked] == ["/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(Answer("404 page not found", 404), "run the topology updater", id="no definition"),
        pytest.param(Answer({"details": {"name": "n"}}, 404), "has no NodeResourceTopology 'n'", id="no object"),
        pytest.param(Answer({"message": "no"}, 403), "apply the component node-resource-topology", id="no right"),
        pytest.param(Answer({"zones": ZONES}), "no attribute topologyManagerPolicy", id="no policy"),
        pytest.param(Answer({"attributes": None, "topologyPolicies": ["Other"]}), "no attribute", id="other policy"),
        pytest.param(Answer({"topologyPolicies": ["None", "BestEffort"]}), "no attribute", id="two policies"),
        pytest.param(Answer({"attributes": {"topologyManagerPolicy": "none"}}), "cannot be decoded", id="other type"),
    ],
)
def test_unknown_policies_say_why_and_are_not_asked_for_in_a_loop(answer: Answer, error: str, tmp_path: Path) -> None:
    now = 0.0
    with reader(lambda _: answer, tmp_path, lambda: now) as (topology, asked):
        found = [topology.read_policy() for _ in range(60)]
        now = 301.0
        topology.read_policy()

    assert found[0].config is None
    assert error in (found[0].error or "")
    assert len(set(found)) == 1
    assert len(asked) == 2


def test_while_the_api_server_is_away_the_last_policy_counts(tmp_path: Path) -> None:
    now, away = 0.0, False

    def answer(_: Asked) -> Answer:
        return Answer({}, 503) if away else Answer(attributes(topologyManagerPolicy="restricted"))

    with reader(answer, tmp_path, lambda: now) as (topology, _):
        before = topology.read_policy()
        now, away = 400.0, True
        after = topology.read_policy()

    assert (before.error, after.config) == (None, before.config)
    assert "503" in (after.error or "")


def test_the_configuration_file_counts_before_the_object(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("topologyManagerPolicy: best-effort\n")
    missing = tmp_path / "no.yaml"

    def settings(*paths: Path) -> KubeletReading:
        answer = Answer(attributes(topologyManagerPolicy="restricted"))
        with (
            reader(lambda _: answer, tmp_path) as (topology, _),
            closing(PodResourcesClient(tmp_path / "no.sock", 1.0)) as client,
        ):
            return read_kubelet(client, paths, tmp_path, topology)

    assert settings(config) == KubeletReading(KubeletConfig("best-effort"))
    assert settings() == KubeletReading(published("restricted", None))
    assert settings(missing).config == published("restricted", None)
    assert str(missing) in (settings(missing).config_error or "")


def test_options_that_are_not_published_stay_unknown() -> None:
    found = kubelet_facts(KubeletReading(published("restricted", "pod")), NodeTopology())

    assert found == KubeletFacts("restricted", "pod")
