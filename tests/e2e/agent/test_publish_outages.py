"""Publishing when the API server is away, and when five hundred nodes publish at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.publish import PublishError, PublishOutcome
from agent.publish.node import NodePublisher
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import AGENT, NODE_GPUS
from gputopo.labels import decode_topology, encode_topology
from tests import api_objects
from tests.e2e.agent.access import define_node_gpus, grant, open_kube, user
from tests.e2e.agent.conftest import ACCOUNT
from tests.e2e.agent.forwarder import forwarder
from tests.e2e.cluster import Cluster
from tests.e2e.credentials import write_kubeconfig
from tests.machines import dgx1, dgx1_link_down, hgx_h100, v100_ring

pytestmark = pytest.mark.e2e
STATE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())


def test_changes_during_an_outage_of_the_api_server_are_written_at_once_afterwards(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.api.create("/api/v1/nodes", api_objects.gpu_node("gpu-0", 8))
    grant(cluster, ACCOUNT, AGENT)
    with forwarder(cluster.url) as road:
        config = tmp_path / "kubeconfig"
        token = {"token": cluster.token(ACCOUNT)}
        write_kubeconfig(config, f"https://127.0.0.1:{road.port}", cluster.plane.authority.certificate, token)
        kube = from_kubeconfig(AGENT, str(config))
        publisher = NodePublisher(kube, "gpu-0")
        publisher.publish_facts(encode_topology(dgx1()))
        before = len(cluster.writes())

        road.take_down()
        for machine in (dgx1_link_down(), dgx1(), dgx1_link_down()):
            with pytest.raises(PublishError, match="no answer from https://127"):
                publisher.publish_facts(encode_topology(machine))
        assert len(cluster.writes()) == before
        road.bring_up()
        outcomes = [publisher.publish_facts(encode_topology(dgx1_link_down())) for _ in range(3)]
        kube.close()

    assert outcomes == [PublishOutcome(written=True), PublishOutcome(written=False), PublishOutcome(written=False)]
    caught_up = cluster.writes()[before:]
    assert [(write.user, write.verb, write.resource) for write in caught_up] == [
        (user(cluster, ACCOUNT), "patch", "nodes")
    ]


def test_five_hundred_nodes_publish_at_once_without_losing_an_update(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    names = [f"gpu-{number:03}" for number in range(500)]
    cluster.api.create_all([("/api/v1/nodes", api_objects.gpu_node(name, 8)) for name in names])
    grant(cluster, ACCOUNT, AGENT)
    kubes = [
        open_kube(cluster, ACCOUNT, AGENT, tmp_path) for _ in range(8)
    ]  # shared: 500 sets of TLS are a test of TLS
    publishers = [NodePublisher(kubes[number % len(kubes)], name) for number, name in enumerate(names)]
    machines = (dgx1(), hgx_h100(), v100_ring(), dgx1())

    def live(publisher: NodePublisher) -> list[bool]:
        """Do the work of an agent's first minutes: publish, report, find nothing new, find a change."""
        facts = [encode_topology(machine) for machine in machines]
        written = [publisher.publish_facts(each).written for each in (facts[0], facts[0], facts[1], facts[2], facts[2])]
        return [*written, publisher.write_state(STATE).written, publisher.publish_facts(facts[3]).written]

    with ThreadPoolExecutor(32) as pool:
        lives = list(pool.map(live, publishers))
    for kube in kubes:
        kube.close()

    assert lives == [[True, False, True, True, False, True, True]] * 500
    nodes = cluster.api.items("/api/v1/nodes")
    found = {
        each["metadata"]["name"]: decode_topology(each["metadata"]["labels"], each["metadata"]["annotations"])
        for each in nodes
    }
    assert found == dict.fromkeys(names, dgx1().stable_facts())
    assert {each["metadata"]["name"] for each in cluster.api.items(NODE_GPUS.path())} == set(names)
    mine = Counter((w.name, w.resource, w.status) for w in cluster.writes() if w.user == user(cluster, ACCOUNT))
    # Four states of the machine, each a write of what is ours and one of the mirrors, which all differ here.
    assert mine == Counter({(name, "nodes", 200): 8 for name in names} | {(name, "nodegpus", 201): 1 for name in names})
