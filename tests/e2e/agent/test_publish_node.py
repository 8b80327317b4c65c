"""Labels and the annotation on a real Node: who owns them, what is written, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from agent.publish import PublishError, PublishOutcome, RestoredField
from agent.publish.node import NodePublisher
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.rbac import Resource
from gputopo.labels import EncodedTopology, decode_topology, encode_topology, keys
from gputopo.model import Degradation, Health, NodeTopology
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.access import user
from tests.e2e.agent.conftest import ACCOUNT
from tests.e2e.cluster import Cluster, wait_for
from tests.machines import dgx1, dgx1_link_down, hgx_h100

pytestmark = pytest.mark.e2e
T = TypeVar("T")
NODE = "gpu-0"
PATH = f"/api/v1/nodes/{NODE}"


@pytest.fixture
def node(cluster: Cluster) -> Callable[[], Object]:
    """Our Node, as it is whenever asked."""
    cluster.api.create("/api/v1/nodes", api_objects.gpu_node(NODE, 8))
    return lambda: dict(cluster.api.get(PATH)["metadata"])


@pytest.fixture
def publisher(agent_kube: Kube, node: Callable[[], Object]) -> NodePublisher:  # noqa: ARG001  the Node must be there
    return NodePublisher(agent_kube, NODE)


@pytest.fixture
def writes(cluster: Cluster) -> Callable[[], list[tuple[str, str, int]]]:
    """A function that returns the agent's writes since its last call: verb, resource, status."""
    seen = 0

    def since_last() -> list[tuple[str, str, int]]:
        nonlocal seen
        mine = [write for write in cluster.writes() if write.user == user(cluster, ACCOUNT)]
        new, seen = mine[seen:], len(mine)
        assert all(write.name in (NODE, "") for write in new)
        return [(write.verb, write.resource, write.status) for write in new]

    return since_last


class Overtaken(Kube):
    """A connection on which somebody else is always faster: they act between what is read and what is written."""

    def __init__(self, kube: Kube, act: Callable[[], object]) -> None:
        super().__init__(kube._api, kube._role)
        self._act = act

    def get(self, resource: Resource, name: str, kind: type[T], query: ListOptions = ListOptions()) -> T:  # noqa: B008  frozen
        found = super().get(resource, name, kind, query)
        self._act()
        return found


def ours(metadata: Object) -> dict[str, str]:
    """The labels of a Node without those that it was made with."""
    return {key: value for key, value in metadata["labels"].items() if "kubernetes.io/" not in key}


def label(cluster: Cluster, labels: dict[str, str | None], manager: str) -> None:
    """Label the Node as ``kubectl label --overwrite --field-manager=...`` does, and wait until cached reads show it.

    The publisher reads from the API server's cache: a change of somebody else may reach it a pass later.
    """
    written = cluster.api.patch(PATH, {"metadata": {"labels": labels}}, "merge", fieldManager=manager)
    version = written["metadata"]["resourceVersion"]
    wait_for(
        lambda: cluster.api.get(PATH, resourceVersion="0")["metadata"]["resourceVersion"] == version,
        "the API server's cache",
    )


def with_lost_gpu(topology: NodeTopology) -> NodeTopology:
    gpus = (*topology.gpus[:-1], msgspec.structs.replace(topology.gpus[-1], health=Health.LOST))
    return msgspec.structs.replace(topology, gpus=gpus, degraded=(Degradation("gpu7", "lost"),))


def test_a_node_carries_everything_that_is_published(
    publisher: NodePublisher, node: Callable[[], Object], writes: Callable[[], list[tuple[str, str, int]]]
) -> None:
    facts = encode_topology(dgx1())

    assert publisher.publish_facts(facts) == PublishOutcome(written=True)

    metadata = node()
    assert ours(metadata) == facts.labels | facts.mirrors
    assert decode_topology(metadata["labels"], metadata["annotations"]) == dgx1().stable_facts()
    # One for what is ours, one for the mirrors: they have owners of their own.
    assert writes() == [("patch", "nodes", 200)] * 2


def test_ten_unchanged_passes_write_nothing_also_after_a_restart(
    publisher: NodePublisher, agent_kube: Kube, writes: Callable[[], list[tuple[str, str, int]]]
) -> None:
    publisher.publish_facts(encode_topology(dgx1()))
    writes()

    assert [publisher.publish_facts(encode_topology(dgx1())).written for _ in range(10)] == [False] * 10
    assert NodePublisher(agent_kube, NODE).publish_facts(encode_topology(dgx1())) == PublishOutcome(written=False)

    assert writes() == []


def test_each_change_of_the_machine_is_one_write(
    publisher: NodePublisher, node: Callable[[], Object], writes: Callable[[], list[tuple[str, str, int]]]
) -> None:
    publisher.publish_facts(encode_topology(dgx1()))
    writes()

    publisher.publish_facts(encode_topology(dgx1_link_down()))

    assert writes() == [("patch", "nodes", 200)]
    assert ours(node()) == encode_topology(dgx1_link_down()).labels | encode_topology(dgx1()).mirrors
    publisher.publish_facts(encode_topology(dgx1()))

    assert writes() == [("patch", "nodes", 200)]
    assert ours(node()) == encode_topology(dgx1()).labels | encode_topology(dgx1()).mirrors


def test_a_lost_gpu_is_taken_out_of_every_count(publisher: NodePublisher, node: Callable[[], Object]) -> None:
    publisher.publish_facts(encode_topology(hgx_h100()))

    publisher.publish_facts(encode_topology(with_lost_gpu(hgx_h100())))

    carried = ours(node())
    assert (
        carried
        == encode_topology(with_lost_gpu(hgx_h100())).labels | encode_topology(with_lost_gpu(hgx_h100())).mirrors
    )
    assert (carried[keys.GPUS.key], carried[keys.DEGRADED.key], carried[keys.NVIDIA_COUNT.key]) == ("7", "true", "7")


def test_keys_that_are_no_longer_true_are_removed(publisher: NodePublisher, node: Callable[[], Object]) -> None:
    publisher.publish_facts(encode_topology(dgx1()))

    publisher.publish_facts(EncodedTopology({keys.SCHEMA.key: "1"}, {}, {}))

    assert ours(node()) == {keys.SCHEMA.key: "1"}
    assert keys.TOPOLOGY.key not in node().get("annotations", {})


def test_a_deleted_label_is_restored(publisher: NodePublisher, cluster: Cluster, node: Callable[[], Object]) -> None:
    publisher.publish_facts(encode_topology(dgx1()))
    label(cluster, {keys.ISLANDS.key: None}, "kubectl-label")

    restored = (RestoredField(keys.ISLANDS.key),)
    assert publisher.publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True, restored=restored)

    assert ours(node()) == encode_topology(dgx1()).labels | encode_topology(dgx1()).mirrors


def test_mirrors_of_somebody_else_stay_theirs_without_another_attempt(
    publisher: NodePublisher,
    cluster: Cluster,
    node: Callable[[], Object],
    writes: Callable[[], list[tuple[str, str, int]]],
) -> None:
    theirs = {keys.NVIDIA_PRODUCT.key: "Tesla-V100", keys.NVIDIA_COUNT.key: "8"}
    label(cluster, dict(theirs), "nfd-master")

    first = publisher.publish_facts(encode_topology(dgx1()))
    second = publisher.publish_facts(encode_topology(dgx1()))

    assert first == PublishOutcome(written=True, kept_by_others=tuple(sorted(theirs)))
    assert second == PublishOutcome(written=False, kept_by_others=tuple(sorted(theirs)))
    assert ours(node()) == encode_topology(dgx1()).labels | encode_topology(dgx1()).mirrors | theirs
    assert writes() == [("patch", "nodes", 200)] * 2


def test_a_mirror_that_an_administrator_took_over_stays_theirs(
    publisher: NodePublisher, cluster: Cluster, node: Callable[[], Object]
) -> None:
    publisher.publish_facts(encode_topology(dgx1()))
    label(cluster, {keys.NVIDIA_COUNT.key: "2"}, "kubectl-label")

    assert publisher.publish_facts(encode_topology(dgx1())).kept_by_others == (keys.NVIDIA_COUNT.key,)

    assert node()["labels"][keys.NVIDIA_COUNT.key] == "2"
    label(cluster, {keys.NVIDIA_COUNT.key: None}, "kubectl-label")
    assert publisher.publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True)
    assert node()["labels"][keys.NVIDIA_COUNT.key] == "8"


def test_a_mirror_that_is_taken_between_reading_and_writing_is_dropped_and_the_rest_applied(
    agent_kube: Kube,
    cluster: Cluster,
    node: Callable[[], Object],
    writes: Callable[[], list[tuple[str, str, int]]],
) -> None:
    take = {keys.NVIDIA_COUNT.key: "16", keys.GPUS.key: "16"}
    overtaken = Overtaken(agent_kube, lambda: label(cluster, dict(take), "nfd-master"))

    outcome = NodePublisher(overtaken, NODE).publish_facts(encode_topology(dgx1()))

    theirs = {keys.NVIDIA_COUNT.key: "16"}
    assert outcome == PublishOutcome(written=True, kept_by_others=tuple(theirs))
    assert ours(node()) == encode_topology(dgx1()).labels | encode_topology(dgx1()).mirrors | theirs
    assert writes() == [("patch", "nodes", 200), ("patch", "nodes", 409), ("patch", "nodes", 200)]


def test_nothing_is_published_for_a_node_that_is_not_there(agent_kube: Kube) -> None:
    with pytest.raises(PublishError, match=r'nodes/gone: 404: nodes "gone" not found'):
        NodePublisher(agent_kube, "gone").publish_facts(encode_topology(dgx1()))


def test_a_node_that_is_deleted_meanwhile_is_not_created_anew(
    agent_kube: Kube,
    cluster: Cluster,
    node: Callable[[], Object],
) -> None:
    assert node()["name"] == NODE
    overtaken = Overtaken(agent_kube, lambda: cluster.api.delete(PATH))

    with pytest.raises(PublishError, match=r"409: .*uid mismatch"):
        NodePublisher(overtaken, NODE).publish_facts(encode_topology(dgx1()))

    assert cluster.api.items("/api/v1/nodes") == []
