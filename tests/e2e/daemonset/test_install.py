"""`kubectl apply -k` and `helm install` on the real API server, and that both uninstall cleanly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.publish import PublishOutcome
from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.cli.cleanup import cleanup
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.client import Kube
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD, LEASES
from gputopo.labels import encode_topology
from tests import api_objects
from tests.api_objects import Object
from tests.daemonset.tools import helm_rendered, kustomized
from tests.e2e import cleaning
from tests.e2e.agent.access import DEFINITIONS, define
from tests.e2e.agent.node_features import NODE_FEATURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import ACCOUNT, AGENT_NAMESPACE, NAMESPACE, apply, path_of, wait_for_policies
from tests.e2e.process import Server
from tests.machines import dgx1

pytestmark = pytest.mark.e2e
ORDER = ("Namespace", "CustomResourceDefinition")
PRESENT = "nvidia.com/gpu.present"  # what GPU Feature Discovery, or a person, marks a GPU node with
STATE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())
NODES = {
    "gpu-0": {PRESENT: "true"},
    "gpu-1": {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    "cpu-0": {},
}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


@pytest.fixture
def nodes(cluster: Cluster) -> Cluster:
    """Two GPU nodes, known by what others say of them and tainted for a team, and one without GPUs."""
    for name, labels in NODES.items():
        node = api_objects.gpu_node(name, 8, {"kubernetes.io/os": "linux", **labels})
        cluster.api.create("/api/v1/nodes", node | {"spec": {"taints": [TAINT] if labels else []}})
    return cluster


def in_order(documents: Iterable[Object]) -> list[Object]:
    """Return objects in the order of kubectl and helm: namespaces first."""
    return sorted(documents, key=lambda each: each["kind"] not in ORDER)


def agent_pods(cluster: Cluster, count: int) -> dict[str, Object]:
    """Wait for ``count`` pods of agents. Returns them by node."""

    def running() -> list[Object] | None:
        pods = cluster.api.items(cluster.pods(namespace=AGENT_NAMESPACE))
        return pods if len(pods) == count else None

    found = wait_for(running, f"{count} pods of the DaemonSet")
    return {_node_of(pod): pod for pod in found}


def _node_of(pod: Object) -> str:
    """The DaemonSet controller pins a pod by its node's name; a scheduler would bind it there."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((field,),) = {tuple(term["matchFields"][0]["values"]) for term in affinity["nodeSelectorTerms"]}
    return str(field)


def bound(cluster: Cluster, pod: Object) -> Object:
    """The pod, bound to its node as the scheduler would."""
    path = cluster.pods(pod["metadata"]["name"], AGENT_NAMESPACE)
    target = {"apiVersion": "v1", "kind": "Node", "name": _node_of(pod)}
    cluster.api.create(f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})
    return dict(cluster.api.get(path))


@pytest.fixture
def kubes() -> Iterator[list[Kube]]:
    """Connections that are closed after the test."""
    opened: list[Kube] = []
    yield opened
    for kube in opened:
        kube.close()


@pytest.mark.parametrize("overlay", ["default", "no-kubelet-socket"])
def test_a_pod_comes_to_each_gpu_node_whatever_its_taints_and_publishes(
    nodes: Cluster, controller_manager: Server, kubes: list[Kube], tmp_path: Path, overlay: str
) -> None:
    assert controller_manager.running
    apply(nodes, in_order(kustomized(f"overlays/{overlay}")))
    pods = agent_pods(nodes, 2)
    wait_for_policies(nodes)

    assert pods.keys() == {"gpu-0", "gpu-1"}
    for name, pod in pods.items():
        token = nodes.token(ACCOUNT, bound(nodes, pod), AGENT_NAMESPACE)
        kubes.append(from_kubeconfig(AGENT, str(nodes.kubeconfig(tmp_path / name, token))))
        publisher = NodePublisher(kubes[-1], name)
        assert publisher.publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True)
        assert publisher.write_state(STATE).written


def test_the_demo_goes_to_every_node(nodes: Cluster, controller_manager: Server) -> None:
    assert controller_manager.running
    apply(nodes, in_order(kustomized("overlays/demo")))

    assert agent_pods(nodes, 3).keys() == NODES.keys()


def test_with_nfd_the_agent_writes_its_node_feature_and_no_node(
    nodes: Cluster, controller_manager: Server, kubes: list[Kube], tmp_path: Path
) -> None:
    assert controller_manager.running
    define(nodes, NODE_FEATURE)
    apply(nodes, in_order(kustomized("overlays/nfd")))
    pod = bound(nodes, agent_pods(nodes, 2)["gpu-0"])
    (container,) = pod["spec"]["containers"]
    (place,) = (each["value"] for each in container["env"] if each["name"] == "GPUTOPO_PUBLISH")
    wait_for_policies(nodes)
    token = nodes.token(ACCOUNT, pod, AGENT_NAMESPACE)
    kubes.append(from_kubeconfig(AGENT_WITH_NFD, str(nodes.kubeconfig(tmp_path / "agent", token))))
    publisher = NodeFeaturePublisher(kubes[-1], "gpu-0", place.partition(":")[2])

    assert publisher.publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True)
    assert publisher.write_state(STATE).written
    assert nodes.api.get("/api/v1/nodes/gpu-0")["metadata"]["labels"].items() >= NODES["gpu-0"].items()


def traces(cluster: Cluster) -> set[tuple[str, str, str]]:
    """Every object of every kind but Events, which the API server forgets after an hour, and the controllers' own."""
    found = {(each.kind.resource, each.namespace, each.name) for each in cleaning.inventory(cluster.api)}
    return {
        (resource, namespace, name)
        for resource, namespace, name in found
        if resource != "events"
        and (resource != "serviceaccounts" or namespace == AGENT_NAMESPACE)
        and (resource != "leases" or not namespace.startswith("kube-"))
    }


def elect(cluster: Cluster, name: str, spec: Object) -> None:
    """Write the Lease of a leader election, as a program does that has ended since."""
    lease = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": name}, "spec": spec}
    cluster.api.create(LEASES.path(namespace=NAMESPACE), lease)


def node_facts(cluster: Cluster) -> list[tuple[str, Object, Object | None]]:
    items = cluster.api.items("/api/v1/nodes")
    return [
        (each["metadata"]["name"], each["metadata"]["labels"], each["metadata"].get("annotations")) for each in items
    ]


@pytest.mark.parametrize("installer", ["kustomize", "helm"])
def test_deleting_the_applied_objects_and_one_cleanup_remove_everything(
    nodes: Cluster, controller_manager: Server, kubes: list[Kube], tmp_path: Path, installer: str
) -> None:
    assert controller_manager.running
    if installer == "helm":
        nodes.create_namespace(NAMESPACE)
    before, facts_before = traces(nodes), node_facts(nodes)
    documents = in_order(kustomized("overlays/default") if installer == "kustomize" else helm_rendered())
    apply(nodes, documents)
    pod = bound(nodes, agent_pods(nodes, 2)["gpu-0"])
    wait_for_policies(nodes)
    token = nodes.token(ACCOUNT, pod, AGENT_NAMESPACE)
    kubes.append(from_kubeconfig(AGENT, str(nodes.kubeconfig(tmp_path / "agent", token))))
    NodePublisher(kubes[-1], "gpu-0").publish_facts(encode_topology(dgx1()))
    NodePublisher(kubes[-1], "gpu-0").write_state(STATE)
    assert node_facts(nodes) != facts_before
    assert len(traces(nodes) - before) >= len(documents)
    elect(nodes, "gputopo-planner", {"holderIdentity": "", "leaseDurationSeconds": 1})
    old = {"leaseDurationSeconds": 15, "renewTime": "2026-11-21T12:00:00.000000Z"}
    elect(nodes, "gputopo-scheduler", {"holderIdentity": "scheduler-0", **old})

    for each in reversed(documents):
        nodes.api.delete(f"{DEFINITIONS}/{each['metadata']['name']}" if each["kind"] == ORDER[1] else path_of(each))
    for pod in nodes.api.items(nodes.pods(namespace=AGENT_NAMESPACE)):  # no kubelet is here to end them
        nodes.api.delete(nodes.pods(pod["metadata"]["name"], AGENT_NAMESPACE))
    done = CliRunner().invoke(cleanup, ["--kubeconfig", str(nodes.kubeconfig(tmp_path / "admin")), "--all"])

    assert done.exit_code == 0, done.output
    assert node_facts(nodes) == facts_before
    wait_for(lambda: "namespaces" not in {kind for kind, _, _ in traces(nodes) - before}, "the namespace to go")
    assert traces(nodes) == before
