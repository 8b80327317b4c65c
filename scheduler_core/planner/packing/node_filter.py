"""Which nodes kube-scheduler itself would take for a member, worked out once for nodes that are alike. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules, rejection
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON
from scheduler_core.request.full_pod import FullPodSpec

_Key = tuple[object, ...]


class NodeFilter:
    """What stands against nodes for pods with the same rules; None: they have none, and tolerate nothing."""

    def __init__(self, rules: SchedulingRules | None, closed: AbstractSet[str] = frozenset()) -> None:
        """``closed``: nodes of pods that they may not be beside."""
        self._closed = closed
        self._spec = FullPodSpec() if rules is None else rules.spec
        self._known: dict[_Key, str | None] = {}
        self._labels, self._by_name = _mentioned(self._spec)

    def rejection_of(self, node: FullNode) -> str | None:
        """Why kube-scheduler would not take it; None: nothing is known against it."""
        if node.metadata.name in self._closed:
            return ANTI_AFFINITY_REASON
        key = self._key(node)
        if key not in self._known:
            self._known[key] = rejection(self._spec, node)
        return self._known[key]

    def _key(self, node: FullNode) -> _Key:
        """All that the rules look at."""
        labels = node.metadata.labels or {}
        name = node.metadata.name if self._by_name else None
        return (node.spec.taints, node.spec.unschedulable, name, *map(labels.get, self._labels))


def _mentioned(spec: FullPodSpec) -> tuple[tuple[str, ...], bool]:
    """The labels that rules look at, and whether they look at the node's name."""
    own = None if spec.affinity is None else spec.affinity.node_affinity
    required = None if own is None else own.required_during_scheduling_ignored_during_execution
    terms = (required and required.node_selector_terms) or ()
    labels = {each.key for term in terms for each in term.match_expressions or ()} | {*(spec.node_selector or {})}
    return tuple(sorted(labels)), any(term.match_fields for term in terms)
