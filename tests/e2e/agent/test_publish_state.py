"""``NodeGpus``, Events and NFD's ``NodeFeature`` on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.publish import NodeEvent, PublishError, PublishOutcome, RestoredField
from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.crd.nodegpus import DeviceAllocation, NicRate, NodeGpus, PodRef
from gputopo.kube.client import Kube
from gputopo.kube.rbac import AGENT_WITH_NFD, NODE_FEATURES, NODE_GPUS
from gputopo.labels import encode_topology, keys
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.access import define, define_node_gpus, grant, open_kube, user
from tests.e2e.agent.conftest import ACCOUNT
from tests.e2e.agent.node_features import NODE_FEATURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.process import Server
from tests.machines import dgx1, hgx_h100

pytestmark = pytest.mark.e2e
NODE = "gpu-0"
IDLE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())
HELD = msgspec.structs.replace(
    IDLE,
    allocations=(
        DeviceAllocation("GPU-1", PodRef("team-a", "train-0", "main")),
        DeviceAllocation("GPU-2", PodRef("team-a", "serve-0", "main"), replica=1),
        DeviceAllocation("GPU-3", PodRef("team-b", "slice-0", "main"), mig_device="MIG-1"),
    ),
    nic_rates=(NicRate("mlx5_0", 400),),
)


@pytest.fixture
def node_uid(cluster: Cluster) -> str:
    return str(cluster.api.create("/api/v1/nodes", api_objects.gpu_node(NODE, 8))["metadata"]["uid"])


def stored(cluster: Cluster) -> Object:
    return dict(cluster.api.get(NODE_GPUS.path(NODE)))


def content(found: Object) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in {"apiVersion", "kind", "metadata"}}


def test_a_state_is_created_once_and_written_only_on_a_change(
    cluster: Cluster, agent_kube: Kube, node_uid: str
) -> None:
    define_node_gpus(cluster)
    publisher = NodePublisher(agent_kube, NODE)

    outcomes = [publisher.write_state(state) for state in (IDLE, IDLE, HELD, HELD, IDLE)]

    assert [outcome.written for outcome in outcomes] == [True, False, True, False, True]
    found = stored(cluster)
    assert found["metadata"]["generation"] == 3  # an apply that changes nothing is not stored
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node_uid}
    mine = [write for write in cluster.writes() if write.user == user(cluster, ACCOUNT)]
    assert [(write.verb, write.resource, write.status) for write in mine] == [
        ("patch", "nodegpus", 201),
        *[("patch", "nodegpus", 200)] * 4,
    ]


def test_a_state_is_stored_unchanged(cluster: Cluster, agent_kube: Kube, node_uid: str) -> None:
    assert node_uid
    define_node_gpus(cluster)

    NodePublisher(agent_kube, NODE).write_state(HELD)

    assert content(stored(cluster)) == {
        "observedAt": "2026-11-21T12:00:00Z",
        "contentHash": "1a2b",
        "agentVersion": "0.1.0",
        "allocations": [
            {"gpu": "GPU-1", "pod": {"namespace": "team-a", "name": "train-0", "container": "main"}},
            {"gpu": "GPU-2", "pod": {"namespace": "team-a", "name": "serve-0", "container": "main"}, "replica": 1},
            {
                "gpu": "GPU-3",
                "pod": {"namespace": "team-b", "name": "slice-0", "container": "main"},
                "migDevice": "MIG-1",
            },
        ],
        "nics": None,
        "kubelet": None,
        "usage": None,
        "nicRates": [{"nic": "mlx5_0", "gbps": 400}],
    }


def test_facts_that_are_no_longer_known_are_removed(cluster: Cluster, agent_kube: Kube, node_uid: str) -> None:
    assert node_uid
    define_node_gpus(cluster)
    publisher = NodePublisher(agent_kube, NODE)
    publisher.write_state(HELD)

    publisher.write_state(msgspec.structs.replace(HELD, allocations=None))

    assert stored(cluster)["allocations"] is None


def test_allocations_that_another_client_wrote_where_they_are_not_known_are_removed(
    cluster: Cluster, agent_kube: Kube, node_uid: str
) -> None:
    assert node_uid
    define_node_gpus(cluster)
    publisher, unknown = NodePublisher(agent_kube, NODE), msgspec.structs.replace(IDLE, allocations=None)
    publisher.write_state(unknown)
    forged = {"allocations": [{"gpu": "GPU-9", "pod": {"namespace": "a", "name": "b", "container": "c"}}]}
    cluster.api.patch(NODE_GPUS.path(NODE), forged, "merge", fieldManager="kubectl-edit")

    outcome = publisher.write_state(unknown)

    assert outcome == PublishOutcome(written=True, restored=(RestoredField(".allocations", ("kubectl-edit",)),))
    assert stored(cluster)["allocations"] is None


def test_an_edited_state_is_written_again(cluster: Cluster, agent_kube: Kube, node_uid: str) -> None:
    """Before, each write was answered 409, for ever."""
    assert node_uid
    define_node_gpus(cluster)
    publisher = NodePublisher(agent_kube, NODE)
    publisher.write_state(HELD)
    edit = {"allocations": [], "contentHash": "forged"}
    cluster.api.patch(NODE_GPUS.path(NODE), edit, "merge", fieldManager="kubectl-edit")

    outcome = publisher.write_state(HELD)

    fields = tuple(RestoredField(name, ("kubectl-edit",)) for name in (".allocations", ".contentHash"))
    assert outcome == PublishOutcome(written=True, restored=fields)
    assert len(stored(cluster)["allocations"]) == 3
    assert publisher.write_state(HELD) == PublishOutcome(written=False)


def test_the_state_of_a_node_that_was_created_again_is_written_with_its_facts(
    cluster: Cluster, agent_kube: Kube, node_uid: str
) -> None:
    """The garbage collector deletes the state whose owner is gone, and the next heartbeat of the state is late."""
    define_node_gpus(cluster)
    publisher = NodePublisher(agent_kube, NODE)
    publisher.publish_facts(encode_topology(dgx1()))
    publisher.write_state(IDLE)
    cluster.api.delete(f"/api/v1/nodes/{NODE}")
    cluster.api.delete(NODE_GPUS.path(NODE))  # what the garbage collector would do
    created = cluster.api.create("/api/v1/nodes", api_objects.gpu_node(NODE, 8))["metadata"]
    wait_for(
        lambda: (
            created["uid"]
            in {each["metadata"]["uid"] for each in cluster.api.items("/api/v1/nodes", resourceVersion="0")}
        ),
        "the API server's cache",
    )

    assert publisher.publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True)

    (owner,) = stored(cluster)["metadata"]["ownerReferences"]
    assert owner["uid"] == created["uid"] != node_uid


def test_a_deleted_state_is_restored(cluster: Cluster, agent_kube: Kube, node_uid: str) -> None:
    assert node_uid
    define_node_gpus(cluster)
    publisher = NodePublisher(agent_kube, NODE)
    publisher.write_state(IDLE)
    cluster.api.delete(NODE_GPUS.path(NODE))

    assert publisher.write_state(IDLE).written

    assert stored(cluster)["observedAt"] == IDLE.observed_at


def test_a_state_goes_away_with_its_node(
    cluster: Cluster, agent_kube: Kube, node_uid: str, request: pytest.FixtureRequest
) -> None:
    assert node_uid
    define_node_gpus(cluster)
    NodePublisher(agent_kube, NODE).write_state(IDLE)
    garbage_collector: Server = request.getfixturevalue("controller_manager")  # after the kind that it is to know
    assert garbage_collector

    cluster.api.delete(f"/api/v1/nodes/{NODE}")

    wait_for(lambda: cluster.api.items(NODE_GPUS.path()) == [], "the NodeGpus to be collected")


def test_a_missing_definition_is_an_error(agent_kube: Kube, node_uid: str) -> None:
    assert node_uid

    with pytest.raises(
        PublishError, match=r"the cluster has no nodegpus.gputopo.io: apply the CustomResourceDefinition"
    ):
        NodePublisher(agent_kube, NODE).write_state(IDLE)


def test_an_event_is_about_the_node(cluster: Cluster, agent_kube: Kube, node_uid: str) -> None:
    publisher = NodePublisher(agent_kube, NODE)

    publisher.write_event(NodeEvent("GpuLost", "GPU 3 is lost", warning=True))
    publisher.write_event(NodeEvent("Recovered", "x" * 2000, warning=False))

    result = cluster.api.items("/api/v1/events", fieldSelector=f"involvedObject.uid={node_uid}")
    by_reason = {each["reason"]: (each["type"], each["message"], each["involvedObject"]["name"]) for each in result}
    assert by_reason == {
        "GpuLost": ("Warning", "GPU 3 is lost", NODE),
        "Recovered": ("Normal", "x" * 1023 + "…", NODE),
    }


@pytest.fixture
def nfd_kube(cluster: Cluster, tmp_path: Path) -> Iterator[Kube]:
    grant(cluster, "agent-with-nfd", AGENT_WITH_NFD)
    kube = open_kube(cluster, "agent-with-nfd", AGENT_WITH_NFD, tmp_path)
    yield kube
    kube.close()


def test_a_node_feature_asks_nfd_for_our_labels(cluster: Cluster, nfd_kube: Kube, node_uid: str) -> None:
    define(cluster, NODE_FEATURE)
    publisher = NodeFeaturePublisher(nfd_kube, NODE, cluster.namespace)

    outcomes = [publisher.publish_facts(encode_topology(machine)) for machine in (dgx1(), dgx1(), hgx_h100())]

    assert outcomes == [PublishOutcome(written=True), PublishOutcome(written=False), PublishOutcome(written=True)]
    (found,) = cluster.api.items("/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures")
    assert found["spec"] == {"labels": encode_topology(hgx_h100()).labels}
    assert found["metadata"]["labels"] == {keys.NFD_NODE_NAME: NODE}
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [node_uid]
    assert found["metadata"]["name"] == "gputopo-features-for-gpu-0"
    assert cluster.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["labels"].keys() == {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
    }


def test_an_edited_node_feature_is_written_again(cluster: Cluster, nfd_kube: Kube, node_uid: str) -> None:
    assert node_uid
    define(cluster, NODE_FEATURE)
    publisher = NodeFeaturePublisher(nfd_kube, NODE, cluster.namespace)
    publisher.publish_facts(encode_topology(dgx1()))
    path = NODE_FEATURES.path("gputopo-features-for-gpu-0", cluster.namespace)
    cluster.api.patch(path, {"spec": {"labels": {keys.ISLANDS.key: "1"}}}, "merge", fieldManager="kubectl-edit")

    outcome = publisher.publish_facts(encode_topology(dgx1()))

    restored = (RestoredField(f".spec.labels.{keys.ISLANDS.key}", ("kubectl-edit",)),)
    assert outcome == PublishOutcome(written=True, restored=restored)
    assert cluster.api.get(path)["spec"]["labels"] == encode_topology(dgx1()).labels


def test_a_cluster_without_nfd_is_an_error(cluster: Cluster, nfd_kube: Kube, node_uid: str) -> None:
    assert node_uid

    with pytest.raises(PublishError, match=r"the cluster has no nodefeatures.nfd.k8s-sigs.io: install Node Feature"):
        NodeFeaturePublisher(nfd_kube, NODE, cluster.namespace).publish_facts(encode_topology(dgx1()))


def test_the_state_and_events_go_their_usual_way_beside_nfd(cluster: Cluster, nfd_kube: Kube, node_uid: str) -> None:
    define_node_gpus(cluster)
    publisher = NodeFeaturePublisher(nfd_kube, NODE, cluster.namespace)

    publisher.write_state(IDLE)
    publisher.write_event(NodeEvent("Degraded", "gpu3.nvlink", warning=True))

    assert stored(cluster)["contentHash"] == IDLE.content_hash
    (result,) = cluster.api.items("/api/v1/events", fieldSelector=f"involvedObject.uid={node_uid}")
    assert result["message"] == "gpu3.nvlink"
