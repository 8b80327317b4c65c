"""The nodes that suit a pending pod, and the GPUs that are certainly free on them. Pure.

No pod is evaluated here: at each change of a large cluster that would take seconds. A node suits a pod if no rule about
nodes (node selector, affinity, taints), no GPU model and no GPU memory excludes it. Pods with the same rules share a
result, and the number of comparisons is bounded: beyond, results hold for all nodes, or are unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gputopo.render.wording import counted_noun, format_gib
from scheduler_core.cache.full_pods import TOO_MANY_RULES
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules, rejection
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.request.gpu_model import is_model
from scheduler_core.request.pod_request import Constraints, PodProfile, Strength
from scheduler_core.ui.model import NodeRow

_MOST_REASONS = 3  # that exclude nodes, and are named
_MOST_CHECKS = 4_000  # of a pod against a node, for one overview: 40 ms, with the longest rules 0.3 s


class MostFree(NamedTuple):
    """The most GPUs that are certainly free together, of all nodes where this is known."""

    on_node: int
    in_island: int  # where the islands of a node's free GPUs are unknown, all of them may be in one
    node_clause: str = ""  # restricts the nodes, for people; "": of all nodes


class PodRequirements(NamedTuple):
    """The requests and rules of a pending pod. ``rules``: None: unknown."""

    profile: PodProfile
    rules: SchedulingRules | None

    @property
    def key(self) -> Hashable:
        """Equal for pods that the same nodes suit."""
        constraints = self.profile.constraints
        return self.rules and self.rules.key, constraints.model, constraints.min_vram_mib

    @property
    def is_checked(self) -> bool:
        """Return whether its rules about nodes are known."""
        return self.rules is not None and TOO_MANY_RULES not in self.rules.unchecked


class SuitableNodes:
    """Finds the nodes that suit pods, for one overview."""

    def __init__(self, view: PlannerView, rows: Sequence[NodeRow]) -> None:
        self._view = view
        self._by_node = sorted(rows, key=lambda row: (_free_on_node(row), row.free is None), reverse=True)
        self._by_island = sorted(rows, key=_free_in_island, reverse=True)
        self._checks_left = _MOST_CHECKS
        self._most_free: dict[Hashable, MostFree | str] = {}
        self._places: dict[Hashable, int | None] = {}

    def most_free(self, pod: PodRequirements) -> MostFree | str:
        """Return the most free GPUs for a pod, or why no node suits it; "": free GPUs are unknown where it may run."""
        if pod.key not in self._most_free:
            self._most_free[pod.key] = self._search(pod)
        return self._most_free[pod.key]

    def places(self, pod: PodRequirements, most: int) -> int | None:
        """Return for how many such pods, at most ``most``, GPUs are certainly free; None: unknown."""
        key = pod.key, pod.profile.gpus, pod.profile.constraints.island, most
        if key not in self._places:
            self._places[key] = self._count_places(pod, most)
        return self._places[key]

    def _search(self, pod: PodRequirements) -> MostFree | str:
        if not self._by_node:
            return "the cluster has no GPU node"
        most = MostFree(_free_on_node(self._by_node[0]), _free_in_island(self._by_island[0]))
        if not pod.is_checked:
            return "" if self._by_node[0].free is None else most
        reasons: Counter[str] = Counter()
        for row in self._by_node:
            if (why := self._exclusion(row, pod)) is None:
                break
            reasons[why] += 1
        else:
            return _exclusion_text(reasons, len(self._by_node))
        if row.free is None:
            return ""
        suited = (each for each in self._by_island if self._exclusion(each, pod) is None)
        found = MostFree(_free_on_node(row), _free_in_island(next(suited, row)))
        return most if self._checks_left < 0 or found == most else found._replace(node_clause=" that suits the pod")

    def _count_places(self, pod: PodRequirements, most: int) -> int | None:
        gpus, found = pod.profile.gpus, 0
        if not gpus or not pod.is_checked:
            return None
        in_island = pod.profile.constraints.island is Strength.REQUIRED
        for row in self._by_node:
            if found >= most or _free_on_node(row) < gpus:
                break
            if self._exclusion(row, pod) is None:
                if in_island and not row.has_known_islands:
                    return None
                together = [each.free or 0 for each in row.islands] if in_island else [_free_on_node(row)]
                found += sum(free // gpus for free in together)
        return None if self._checks_left < 0 else min(found, most)

    def _exclusion(self, row: NodeRow, pod: PodRequirements) -> str | None:
        """Return why the pod cannot use a node, whatever is free on it; None: no reason is known."""
        self._checks_left -= 1
        if self._checks_left < 0:
            return None
        node = self._view.rules.get(row.name)
        why = None if node is None or pod.rules is None else rejection(pod.rules.spec, node)
        return why or self._gpu_exclusion(row, pod.profile.constraints)

    def _gpu_exclusion(self, row: NodeRow, constraints: Constraints) -> str | None:
        """Return what no GPU of the node offers; None: nothing."""
        shape = self._view.cache.snapshot.states[row.name].shape
        gpus = [] if shape is None else [gpu for gpu in shape.gpus if gpu.usable]
        model, memory = constraints.model, constraints.min_vram_mib
        if model is not None and not any(gpu.product is not None and is_model(gpu.product, model) for gpu in gpus):
            return f"the node has no GPU that is known to be of the model {model}"
        if memory is not None and gpus and all(gpu.memory_mib is not None and gpu.memory_mib < memory for gpu in gpus):
            return f"the node has no GPU with {format_gib(memory)}"
        return None


def _exclusion_text(reasons: Counter[str], nodes: int) -> str:
    if len(reasons) == 1:
        return f"no GPU node suits it: {next(iter(reasons))}"
    of = f" of {counted_noun(nodes, 'node')}"
    listed = [f"{why} ({number:,}{of})" for why, number in reasons.most_common(_MOST_REASONS)]
    left = nodes - sum(number for _, number in reasons.most_common(_MOST_REASONS))
    return f"no GPU node suits it: {'; '.join(listed)}" + (f"; other reasons ({left:,}{of})" if left else "")


def _free_on_node(row: NodeRow) -> int:
    return row.free or 0


def _free_in_island(row: NodeRow) -> int:
    """Return the most free GPUs of a node in one island; where this is unknown, all that are free."""
    return (row.in_one_island if row.has_known_islands else row.free) or 0
