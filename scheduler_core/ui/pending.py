"""The pods that wait for a node, with the reason as far as gates, rules about nodes and free GPUs show it. Pure.

No pod is evaluated here: at each change of a large cluster that would take seconds. So a reason is given only where it
follows from a scheduling gate, from the node selector, affinity, tolerations, GPU model and memory of the pod, from the
number of free GPUs, or where a node is already planned. The page of the pod explains the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gputopo.render.wording import counted_noun, format_gib
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.full_pods import TOO_MANY_RULES, scheduling_rules
from scheduler_core.cache.kube_scheduler_filters import rejection
from scheduler_core.planner.gang.pod_source import ParsePod, PlannerPod, planner_pod
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.gpu_model import is_model
from scheduler_core.request.pod_request import Constraints, Strength
from scheduler_core.ui.model import NodeRow, PendingPod

_MOST_CHECKS = 4_000  # of a pod against a node, for one overview: 40 ms


class _MostFree(NamedTuple):
    """The most GPUs that are certainly free together, of all nodes where this is known."""

    on_node: int
    in_island: int
    whose: str = ""  # of which nodes; "": of all


def ui_pod(uid: str, pod: FullPod, parse: ParsePod) -> PlannerPod | None:
    """Return what the pages keep of a pod: as the planner, and of a pending pod its rules about nodes and its gates."""
    found = planner_pod(uid, pod, parse)
    if found is None or found.update is None or found.member is not None or found.update.node is not None:
        return found
    rules = scheduling_rules(pod.spec)
    gated = msgspec.structs.replace(rules.spec, scheduling_gates=pod.spec.scheduling_gates)
    return found._replace(update=found.update._replace(rules=msgspec.structs.replace(rules, spec=gated)))


def pending_pods(view: PlannerView, rows: Iterable[NodeRow]) -> tuple[PendingPod, ...]:
    """Return the pods without a node that are in no gang, highest priority first."""
    nodes = _Nodes(view, list(rows))
    unbound = [pod for pod in view.cache.pods.values() if pod.node is None]
    found = [_pending_pod(pod, nodes) for pod in unbound if view.gang_members.get_member(pod.key) is None]
    return tuple(sorted(found, key=lambda pod: (-pod.priority, pod.namespace, pod.name)))


class _Nodes:
    """The nodes that pods may use. Pods with the same rules share a result; the number of comparisons is bounded."""

    def __init__(self, view: PlannerView, rows: Sequence[NodeRow]) -> None:
        self._view = view
        self._by_node = sorted(rows, key=_free_on_node, reverse=True)
        self._by_island = sorted(rows, key=_free_in_island, reverse=True)
        self._checks_left = _MOST_CHECKS
        self._known: dict[Hashable, _MostFree | str] = {}

    def free_for(self, pod: PodUpdate) -> _MostFree | str:
        """Return the most free GPUs for a pod, or why no node suits it."""
        constraints = pod.occupant.profile.constraints
        key = pod.rules and pod.rules.key, constraints.model, constraints.min_vram_mib
        if key not in self._known:
            self._known[key] = self._free_for(pod, constraints)
        return self._known[key]

    def _free_for(self, pod: PodUpdate, constraints: Constraints) -> _MostFree | str:
        if not self._by_node:
            return "the cluster has no GPU node"
        most = _MostFree(_free_on_node(self._by_node[0]), _free_in_island(self._by_island[0]))
        if pod.rules is None or TOO_MANY_RULES in pod.rules.unchecked:
            return most
        reasons: Counter[str] = Counter()
        for row in self._by_node:
            if (why := self._unsuited(row, pod, constraints)) is None:
                break
            reasons[why] += 1
        else:
            return _unsuited_text(reasons, len(self._by_node))
        suited = (each for each in self._by_island if self._unsuited(each, pod, constraints) is None)
        found = _MostFree(_free_on_node(row), _free_in_island(next(suited, row)))
        return most if self._checks_left < 0 or found == most else found._replace(whose=" that suits the pod")

    def _unsuited(self, row: NodeRow, pod: PodUpdate, constraints: Constraints) -> str | None:
        """Return why the pod cannot use a node, whatever is free on it; None: no reason is known."""
        self._checks_left -= 1
        if self._checks_left < 0:
            return None
        node = self._view.rules.get(row.name)
        why = None if node is None or pod.rules is None else rejection(pod.rules.spec, node)
        return why or self._unsuited_gpus(row, constraints)

    def _unsuited_gpus(self, row: NodeRow, constraints: Constraints) -> str | None:
        """Return what all GPUs of the node lack; None: nothing."""
        shape = self._view.cache.snapshot.states[row.name].shape
        gpus = [] if shape is None else [gpu for gpu in shape.gpus if gpu.usable]
        model, memory = constraints.model, constraints.min_vram_mib
        if model is not None and not any(gpu.product is not None and is_model(gpu.product, model) for gpu in gpus):
            return f"the node has no GPU that is known to be of the model {model}"
        if memory is not None and all(gpu.memory_mib is not None and gpu.memory_mib < memory for gpu in gpus):
            return f"the node has no GPU with {format_gib(memory)}"
        return None


def _unsuited_text(reasons: Counter[str], nodes: int) -> str:
    (why, number), *others = reasons.most_common()
    return f"no GPU node suits it: {why}" + (f" ({number} of {counted_noun(nodes, 'node')})" if others else "")


def _free_on_node(row: NodeRow) -> int:
    return row.free or 0


def _free_in_island(row: NodeRow) -> int:
    return row.in_one_island or 0


def _pending_pod(pod: PodUpdate, nodes: _Nodes) -> PendingPod:
    profile = pod.occupant.profile
    return PendingPod(
        pod.occupant.namespace, pod.occupant.name, profile.devices, pod.priority, pod.scheduler, _reason(pod, nodes)
    )


def _reason(pod: PodUpdate, nodes: _Nodes) -> str:
    gates = [] if pod.rules is None else [gate.name for gate in pod.rules.spec.scheduling_gates or ()]
    if gates:
        return f"held by the gate{'s' * (len(gates) > 1)} {', '.join(gates)}"
    if pod.nominated_node:
        return f"expected on {pod.nominated_node}"
    most = nodes.free_for(pod)
    if isinstance(most, str):
        return most
    profile = pod.occupant.profile
    wanted = counted_noun(profile.gpus, "GPU")
    if profile.gpus > most.on_node:
        return f"no node{most.whose} has {wanted} known to be free; the most is {most.on_node}"
    if profile.gpus > most.in_island and profile.constraints.island is Strength.REQUIRED:
        island = f"no NVLink island{most.whose and f' of a node{most.whose}'}"
        return f"{island} has {wanted} known to be free; the most is {most.in_island}"
    return ""
