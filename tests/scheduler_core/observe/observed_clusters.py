"""A cluster whose own scheduler places pods, as the observer's three watches show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputopo.model import NodeTopology
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.full_pods import scheduling_rules
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.observe.comparison import ObservedPlacement
from scheduler_core.observe.observer import Observer
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPodSpec
from tests.scheduler_core.builders import NOW, OBSERVED, kubelet_report, node, occupant, pod


def bound(name: str, gpus: int, on: str | None, spec: Mapping[str, Any] | None = None, **wishes: str) -> PodUpdate:
    """A pod; ``spec``: its rules about nodes, as in a manifest."""
    holder = occupant(name, gpus, admitted=False, **wishes)
    said = scheduling_rules(msgspec.convert(spec or {}, FullPodSpec))
    return PodUpdate(holder.uid, holder, on, scheduler="default-scheduler", rules=said)


def shares(name: str, number: int, on: str) -> PodUpdate:
    """A pod with shares of GPUs."""
    holder = parse_occupant(pod(name, number, resource="nvidia.com/gpu.shared"))
    assert holder is not None
    return PodUpdate(holder.uid, holder, on)


class ObservedCluster:
    """An observer, and what it is shown."""

    def __init__(self, machines: Mapping[str, NodeTopology | None], *ran: PodUpdate, **holds: Iterable[int]) -> None:
        """``ran`` with the GPUs that they hold by name; pods that ``holds`` does not name are unknown to kubelets."""
        self.machines = dict(machines)
        self.now = NOW
        self.observer = Observer(Policy())
        self.holds: dict[str, dict[str, Iterable[int]]] = {name: {} for name in machines}
        for each in ran:
            if each.occupant.name in holds:
                self.holds[str(each.node)][each.occupant.name] = holds[each.occupant.name]
        self.nodes(*machines, complete=True)
        self.pods(*ran, complete=True)
        self.ran = self.words(*machines, complete=True)

    def nodes(self, *names: str, complete: bool = False, gone: Iterable[str] = (), **rules: Any) -> None:
        """The nodes' watch; ``rules``: ``labels``, and ``spec`` of the Nodes."""
        shown = tuple(self._node(name, **rules) for name in names)
        self.observer.apply_batch(Batch(NodeUpdate, shown, tuple(gone), complete), self.now)

    def _node(self, name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> NodeUpdate:
        topology = self.machines[name]
        machine = parse_node(node(topology, allocatable=None if topology else {"nvidia.com/gpu": 8}))
        said = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        return NodeUpdate(name, machine, msgspec.convert(said, FullNode))

    def pods(self, *pods: PodUpdate, complete: bool = False, gone: Iterable[str] = ()) -> tuple[ObservedPlacement, ...]:
        """The pods' watch; ``gone``: names."""
        ended = tuple(f"uid-{name}" for name in gone)
        return self.observer.apply_batch(Batch(PodUpdate, pods, ended, complete), self.now)

    def words(self, *names: str, complete: bool = False, observed: str = OBSERVED) -> tuple[ObservedPlacement, ...]:
        """The kubelets' words, of those nodes that have an agent."""
        result = {name: each for name in names if (each := self.machines[name]) is not None}
        shown = tuple(
            NodeGpusUpdate(name, kubelet_report(each, self.holds[name], observed)) for name, each in result.items()
        )
        return self.observer.apply_batch(Batch(NodeGpusUpdate, shown, (), complete), self.now)

    def place(self, pod: PodUpdate, *gpus: int) -> ObservedPlacement:
        """A pod is created, bound, and given those GPUs by its kubelet."""
        self.pods(pod._replace(node=None))
        first = self.pods(pod)
        assert first == (), first
        self.holds[str(pod.node)][pod.occupant.name] = gpus
        (placement,) = self.words(str(pod.node))
        return placement
