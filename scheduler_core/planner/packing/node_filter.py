"""kube-scheduler's own filters for a member, evaluated once for equivalent nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from scheduler_core.cache.kube_scheduler_filters import (
    NODE_REMOVAL_REASON,
    FullNode,
    SchedulingRules,
    is_leaving,
    rejection,
    volume_rejection,
)
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON
from scheduler_core.request.full_pod import FullPodSpec
from scheduler_core.request.pod import RequiredTerms, required_nodes

_Key = tuple[object, ...]
_MAX_KNOWN = 1 << 15  # rejections: with rules that name nodes, one for each node


class NodeFilter:
    """Rejections of nodes for pods with the same scheduling rules; None: no rules and no tolerations."""

    def __init__(
        self, rules: SchedulingRules | None, excluded: AbstractSet[str] = frozenset(), most: int = _MAX_KNOWN
    ) -> None:
        """``excluded``: nodes with pods that they may not share a node with. ``most``: rejections that are kept."""
        self._excluded, self._most = excluded, most
        self._spec = FullPodSpec() if rules is None else rules.spec
        self._volumes = () if rules is None else rules.volumes
        self._known: dict[_Key, str | None] = {}
        self._labels, self._by_name = _labels_read(self._spec, self._volumes)

    def rejection_of(self, node: FullNode) -> str | None:
        """Return why kube-scheduler would reject the node; None: no known reason."""
        if node.metadata.name in self._excluded:
            return ANTI_AFFINITY_REASON
        key = self._key(node)
        if key not in self._known:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = (
                NODE_REMOVAL_REASON
                if is_leaving(node)
                else rejection(self._spec, node) or volume_rejection(self._volumes, node)
            )
        return self._known[key]

    def _key(self, node: FullNode) -> _Key:
        """Return all properties of the node that the rules read."""
        labels = node.metadata.labels or {}
        name = node.metadata.name if self._by_name else None
        return (node.spec.taints, node.spec.unschedulable, name, *map(labels.get, self._labels))


def _labels_read(spec: FullPodSpec, volumes: Iterable[RequiredTerms]) -> tuple[tuple[str, ...], bool]:
    """Return the labels that the rules read, and whether they read the node's name."""
    terms = [
        term
        for each in (required_nodes(spec.affinity), *volumes)
        if each is not None
        for term in each.node_selector_terms or ()
    ]
    labels = {each.key for term in terms for each in term.match_expressions or ()} | {*(spec.node_selector or {})}
    return tuple(sorted(labels)), any(term.match_fields for term in terms)
