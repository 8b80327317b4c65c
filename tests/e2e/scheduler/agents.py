"""The agents of simulated nodes, all on one thread: the agent's own loop, discovery and publishing, turned for each.

Only the process around it is left out (threads, signals, health server), which ``tests/e2e/agent`` runs for real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from agent.allocation.client import PodResourcesClient
from agent.allocation.kubelet_reading import read_kubelet
from agent.allocation.watch import AllocationWatch
from agent.daemon import settings
from agent.daemon.loop import AgentLoop, LoopInput, Now, ProbeResult
from agent.daemon.metrics import AgentMetrics
from agent.publish.node import NodePublisher
from agent.recording.io import load_snapshot
from gputopo.kube.client import Kube
from gputopo.kube.rbac import AGENT
from tests.e2e.agent.access import define_node_gpus, grant, open_kube
from tests.e2e.cluster import Cluster
from tests.simulated_node.fleet import Fleet

ACCOUNT = "agent"
PAUSE_S = 0.1  # between rounds; agents of their own poll once a second
PATIENCE_S = 60.0
_SETTINGS = {"interval": "5m", "heartbeat": "5m", "hold": "0s"}


class Agents:
    """An agent for each node that the fleet has at the start. Ends with the ``with`` block."""

    def __init__(self, kube: Kube, fleet: Fleet) -> None:
        self._agents = [
            _Agent(kube, name, fleet[name].socket, fleet[name].snapshot, fleet[name].config) for name in fleet.names
        ]
        self._ended = threading.Event()
        self._may_turn = threading.Event()
        self._round = threading.Condition()
        self._rounds = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="agents")

    def __enter__(self) -> Self:
        self._may_turn.set()
        self._thread.start()
        self.catch_up()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._may_turn.set()
        self._thread.join()
        for each in self._agents:
            each.close()
        if self._failure is not None:
            raise self._failure

    def catch_up(self) -> None:
        """Wait until every agent has asked its kubelet and published what it heard, after this call."""
        with self._round:
            until = self._rounds + 2  # the one that is under way may have passed the node already
            if not self._round.wait_for(lambda: self._rounds >= until or self._failure, PATIENCE_S):
                raise TimeoutError(f"the agents did not get round {until} times in {PATIENCE_S:g} s")

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Within, no agent asks or publishes anything: what kubelets decide meanwhile is not known."""
        self._may_turn.clear()
        try:
            yield
        finally:
            self._may_turn.set()

    def _run(self) -> None:
        try:
            while not self._ended.wait(PAUSE_S):
                self._may_turn.wait()
                for each in self._agents:
                    each.turn()
                with self._round:
                    self._rounds += 1
                    self._round.notify_all()
        except Exception as failed:  # noqa: BLE001 - a thread's failure must reach the test
            with self._round:
                self._failure = failed
                self._round.notify_all()


class _Agent:
    def __init__(self, kube: Kube, node: str, socket: Path, snapshot: Path, config: Path) -> None:
        self._loop = AgentLoop(
            settings.read_settings(_SETTINGS | {"node": node}, {}), NodePublisher(kube, node), AgentMetrics()
        )
        self._kubelet = PodResourcesClient(socket)
        self._watch = AllocationWatch(
            self._kubelet.list_held_devices, read_kubelet=lambda: read_kubelet(self._kubelet, [config])
        )
        self._snapshot = snapshot
        self._text = ""
        self._is_probe_due = False

    def turn(self) -> None:
        """Run one iteration of the agent if the kubelet or the machine has changed."""
        now = Now(time.monotonic(), time.time())
        news: list[LoopInput] = []
        if (text := self._snapshot.read_text()) != self._text or self._is_probe_due:
            self._text = text
            news.append(ProbeResult(load_snapshot(text), 0.0))
        if (reading := self._watch.poll(now.monotonic)) is not None:
            news.append(reading)
        self._is_probe_due = self._loop.run_iteration(now, news).probe
        if news:  # the first turn recalls what an earlier agent published, the second publishes
            self._is_probe_due |= self._loop.run_iteration(now, []).probe

    def close(self) -> None:
        self._kubelet.close()


@contextmanager
def agents(cluster: Cluster, fleet: Fleet, folder: Path) -> Iterator[Agents]:
    """Agents with a service account that may do what the agent's role lists, once all have published."""
    define_node_gpus(cluster)
    grant(cluster, ACCOUNT, AGENT)
    kube = open_kube(cluster, ACCOUNT, AGENT, folder)
    try:
        with Agents(kube, fleet) as running:
            yield running
    finally:
        kube.close()
