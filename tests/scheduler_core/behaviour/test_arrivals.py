"""Pods that arrive together: required shapes hold, in whatever order the kubelets admit pods."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.model import NodeTopology
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPods
from scheduler_core.cache.node_record import with_gpus, with_pod, without_pod
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, with_records
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import Strength
from tests.machines import MACHINES
from tests.scheduler_core.allocation.random_graphs import kubelet
from tests.scheduler_core.builders import NOW, kubelet_report, record, request, with_pods
from tests.simulated_node.kubelet import Container, DeviceManager, Pod
from tests.simulated_node.preferred import pair_scores

POLICY = Policy()
NODES = {
    "pairs-1": "a100_bridged", "pairs-2": "a100_bridged_across", "odd": "a6000_pair_and_one", "cube": "dgx1",
}  # fmt: skip


class Cluster:
    """Nodes with kubelets, and the state that the watch has delivered."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.machines: dict[str, NodeTopology] = {name: MACHINES[machine]() for name, machine in NODES.items()}
        self.kubelets: dict[str, DeviceManager] = {
            name: kubelet(machine, pair_scores(machine), random) for name, machine in self.machines.items()
        }
        records = [record(name, machine, held={}) for name, machine in self.machines.items()]
        self.table: ClusterSnapshot = snapshot_of(records, NOW, POLICY)
        self.assumptions = AssumedPods()
        self.bound: list[tuple[str, Occupant]] = []  # not admitted yet
        self.unseen: list[tuple[str, Occupant]] = []  # bound, and the watch has not shown it yet
        self.kept = 0

    def arrive(self, serial: int) -> None:
        """Filter a pod, and bind it to one of the returned nodes, as kube-scheduler does."""
        size = self.random.choice((1, 1, 2, 2, 3, 4))
        wishes = {"island": "required"} if self.random.random() < 0.6 else {}
        asked = request(size, f"p{serial}", **wishes)
        taken = [(name, each) for name in NODES for each in self.assumptions.pods_on(name)]
        seen = with_pods(self.table, taken, NOW, POLICY)
        decision = evaluate(asked, seen, list(NODES), POLICY)
        if not decision.nodes:
            return
        node = self.random.choice(decision.nodes)
        pod = Occupant(asked.uid, "team", asked.name, asked.profile)
        self.bound.append((node, pod))
        if decision.single:
            self.assumptions.add_pod(pod, {node}, NOW + ASSUMED_POD_LIFETIME_S)
            self.unseen.append((node, pod))
        else:
            self._show(node, pod)

    def watch(self) -> None:
        """Deliver all pending events of the watch."""
        while self.unseen:
            node, pod = self.unseen.pop()
            self._show(node, pod)
            self.assumptions.drop_pod(pod.uid)

    def admit(self) -> None:
        """Let a random kubelet admit a random pod of its own."""
        if not self.bound:
            return
        node, pod = self.bound.pop(self.random.randrange(len(self.bound)))
        manager = self.kubelets[node]
        self.watch()
        container = Container("c", {"nvidia.com/gpu": pod.profile.gpus})
        if manager.admit(Pod(pod.uid, "team", pod.name, (container,))):
            assert not pod.profile.requires_shape  # neither rejected, nor a crash of the plugin
            self._change(node, without=pod.uid)
            return
        given_gpus = {device.gpu for device in manager.devices_of(pod.uid)}
        assert len(given_gpus) == pod.profile.gpus
        if pod.profile.constraints.island is Strength.REQUIRED:
            islands = self.machines[node].islands or ()
            assert any(given_gpus <= set(island.gpus) for island in islands)
            self.kept += 1

    def end(self) -> None:
        """End a random pod."""
        running = [(node, pod.uid) for node, manager in self.kubelets.items() for pod, _ in manager.pods]
        if running:
            node, uid = self.random.choice(running)
            self.kubelets[node].remove(uid)
            self._change(node, without=uid)

    def look(self) -> None:
        """Let an agent publish the report of its kubelet."""
        node = self.random.choice(list(NODES))
        held = {
            pod.name: [each.gpu for each in self.kubelets[node].devices_of(pod.uid)]
            for pod, _ in self.kubelets[node].pods
        }
        result = with_gpus(self.table.records[node], kubelet_report(self.machines[node], held))
        self.table = with_records(self.table, [result], NOW, POLICY)

    def _show(self, node: str, pod: Occupant) -> None:
        self.table = with_records(self.table, [with_pod(self.table.records[node], pod)], NOW, POLICY)

    def _change(self, node: str, *, without: str) -> None:
        self.table = with_records(self.table, [without_pod(self.table.records[node], without)], NOW, POLICY)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_no_required_island_is_violated_and_no_node_is_overcommitted(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(random)
    for serial in range(60):
        deed = random.choice(("arrive", "arrive", "arrive", "watch", "admit", "admit", "end", "look", "look"))
        if deed == "arrive":
            cluster.arrive(serial)
        else:
            {"watch": cluster.watch, "admit": cluster.admit, "end": cluster.end, "look": cluster.look}[deed]()
    while cluster.bound:
        cluster.admit()


def test_pods_with_required_shapes_are_placed() -> None:
    """The property above would also hold for a scheduler that rejects everything."""
    cluster = Cluster(Random(7))
    for serial in range(40):
        cluster.arrive(serial)
        cluster.admit()
        cluster.look()
        cluster.look()
        cluster.end()

    assert cluster.kept > 10
    assert msgspec.json.encode(dict(cluster.table.records))
