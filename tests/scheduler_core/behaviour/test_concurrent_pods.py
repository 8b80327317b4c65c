"""Pods that arrive together at the extender, with watches that lag: constraints hold, and predictions are correct.

The kubelets are simulated down to the order of their offers; kube-scheduler is one that counts and picks at random.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.labels.keys import TOPOLOGY_MANAGER
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import PodUpdate
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.request.pod_request import Strength
from tests.machines import MACHINES
from tests.scheduler_core.allocation.random_graphs import kubelet
from tests.scheduler_core.builders import request
from tests.scheduler_core.fake_scheduler import FakeScheduler, unbound_pod
from tests.simulated_node.kubelet import Container, DeviceManager, Pod
from tests.simulated_node.preferred import pair_scores

NODES = {
    "pairs-1": "a100_bridged", "pairs-2": "a100_bridged_across", "odd": "a6000_pair_and_one", "cube": "dgx1",
}  # fmt: skip


class ConcurrentPods:
    """The events of the cluster, and the events that the watch has delivered."""

    def __init__(self, random: Random, *, lag: bool) -> None:
        self.random = random
        self.lag = lag
        self.machines = {name: MACHINES[machine]() for name, machine in NODES.items()}
        self.kubelets: dict[str, DeviceManager] = {
            name: kubelet(machine, pair_scores(machine), random) for name, machine in self.machines.items()
        }
        self.stage = FakeScheduler.synced(self.machines)
        self.stage.labels = {TOPOLOGY_MANAGER.key: "none"}
        self.stage.watch_nodes()
        self.counted = {name: len(machine.gpus) for name, machine in self.machines.items()}  # by kube-scheduler
        self.bound: list[PodUpdate] = []  # not admitted yet
        self.ends: list[PodUpdate] = []  # admitted
        self.pods: deque[Callable[[], object]] = deque()  # events that the watch has yet to show
        self.words: deque[Callable[[], tuple[PredictionCheck, ...]]] = deque()
        self.settled: list[PredictionCheck] = []
        self.kept = 0
        self.serial = 0

    def step(self) -> None:
        deeds = (self.arrive, self.arrive, self.arrive, self.admit, self.admit, self.end, self.look, self.look)
        self.random.choice(deeds)()
        if self.lag:
            for _ in range(self.random.randint(0, 3)):
                self.show(self.random.choice((self.pods, self.pods, self.words)))
        else:
            while self.pods or self.words:
                self.show(self.pods or self.words)

    def show(self, queue: deque[Callable[[], object]] | deque[Callable[[], tuple[PredictionCheck, ...]]]) -> None:
        if queue:
            found = queue.popleft()()
            self.settled += found if isinstance(found, tuple) else ()

    def arrive(self) -> None:
        self.serial += 1
        size, name = self.random.choice((1, 1, 2, 2, 3, 4)), f"p{self.serial}"
        wishes = {"island": "required"} if self.random.random() < 0.5 else {}
        asked = request(size, name, **wishes)
        pod = PodUpdate(asked.uid, Occupant(asked.uid, "team", name, asked.profile), None)
        self._show(pod)
        room = [node for node, free in self.counted.items() if free >= size]
        answer = self.stage.filter(unbound_pod(name, size, **wishes), *room) if room else None
        if answer is None or not answer.nodes:
            self._gone(pod.key)
            return
        node = self.random.choice(answer.nodes)
        self.counted[node] -= size
        self.bound.append(pod._replace(node=node))
        self._show(self.bound[-1])

    def admit(self) -> None:
        """Let a random kubelet admit a random pod of its own."""
        if not self.bound:
            return
        pod = self.bound.pop(self.random.randrange(len(self.bound)))
        node, holder = pod.node or "", pod.occupant
        manager = self.kubelets[node]
        if manager.admit(
            Pod(holder.uid, "team", holder.name, (Container("c", {"nvidia.com/gpu": holder.profile.gpus}),))
        ):
            assert not holder.profile.requires_shape  # neither rejected, nor a crash of the plugin
            self.counted[node] += holder.profile.gpus
            self._gone(pod.key)
            return
        self.ends.append(pod)
        self._show(pod._replace(occupant=holder._replace(admitted=True)))
        self._hold_against_the_wish(node, holder)

    def end(self) -> None:
        """The kubelet releases the GPUs first, then the pod is deleted."""
        if self.ends:
            pod = self.ends.pop(self.random.randrange(len(self.ends)))
            self.kubelets[pod.node or ""].remove(pod.key)
            self.counted[pod.node or ""] += pod.occupant.profile.gpus
            self._gone(pod.key)

    def look(self) -> None:
        """Let an agent publish the report of its kubelet."""
        node = self.random.choice(list(NODES))
        held = {
            pod.name: [each.gpu for each in self.kubelets[node].devices_of(pod.uid)]
            for pod, _ in self.kubelets[node].pods
        }
        self.words.append(lambda: self.stage.prediction_checks({node: held}))

    def _show(self, pod: PodUpdate) -> None:
        self.pods.append(lambda: self.stage.watch_pods(pod) and None)

    def _gone(self, uid: str) -> None:
        self.pods.append(lambda: self.stage.watch_pods(gone=[uid]) and None)

    def _hold_against_the_wish(self, node: str, pod: Occupant) -> None:
        given_gpus = {device.gpu for device in self.kubelets[node].devices_of(pod.uid)}
        assert len(given_gpus) == pod.profile.gpus
        if pod.profile.constraints.island is Strength.REQUIRED:
            assert any(given_gpus <= set(island.gpus) for island in self.machines[node].islands or ())
            self.kept += 1


def live(seed: int, *, lag: bool, steps: int = 80) -> ConcurrentPods:
    pods = ConcurrentPods(Random(seed), lag=lag)
    for _ in range(steps):
        pods.step()
    while pods.bound:
        pods.admit()
    return pods


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_no_required_shape_is_violated_however_the_watches_lag(seed: int) -> None:
    live(seed, lag=True)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_every_prediction_is_right_if_the_watches_do_not_lag(seed: int) -> None:
    pods = live(seed, lag=False)

    assert [each for each in pods.settled if each.check is PredictionResult.MISS] == []
    assert [each for each in pods.settled if each.violated is not None] == []


@pytest.mark.parametrize("lag", [False, True], ids=["keeping up", "lagging"])
def test_pods_are_placed_and_predicted(lag: bool) -> None:
    """The properties above would also hold for an extender that rejects everything."""
    pods = live(11, lag=lag, steps=400)

    checks = [each.check for each in pods.settled]
    assert pods.kept > 20
    assert min(checks.count(PredictionResult.HIT), checks.count(PredictionResult.AMBIGUOUS)) > 5
    assert checks.count(PredictionResult.MISS) <= len(checks) / 20
