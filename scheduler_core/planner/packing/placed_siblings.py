"""The placed siblings of single pods, and the nodes near them, kept from one snapshot to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from scheduler_core.cache.domain_index import DomainIndex
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.owner_pods import PlacedPod, with_owner
from scheduler_core.cache.pod_index import JobMember, sibling_keys
from scheduler_core.cache.sibling_proximity import with_near_siblings
from scheduler_core.evaluation.ranking import NodeRanking, PodRanking, Rankings
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

_MAX_SIBLINGS = 512  # of one pod that are found: thousands of pods of one job may be planned at once


class RequestWithSiblings(NamedTuple):
    """A request with what it takes from its placed siblings."""

    request: PodRequest
    table: ClusterSnapshot
    nodes: frozenset[str]  # with other states in ``table`` than for pods without these siblings

    def ranking(self, policy: Policy, rankings: Rankings) -> NodeRanking | PodRanking:
        """Return the ranking of the nodes."""
        found = rankings.ranking_for(self.request.profile, policy)
        return PodRanking(found, self.table, self.nodes) if self.nodes else found


class PlacedSiblings:
    """An index of the pods on nodes by owner and job. For one thread."""

    def __init__(self) -> None:
        self._records: dict[str, NodeRecord] = {}
        self._pods: dict[str, dict[tuple[str, str], PlacedPod]] = {}  # by key of the siblings, then by node and UID
        self._domains = DomainIndex()

    def update_nodes(self, snapshot: ClusterSnapshot, names: Iterable[str]) -> None:
        """Go on to another snapshot. ``names``: all nodes that may differ."""
        for name in names:
            before, after = self._records.get(name), snapshot.records.get(name)
            if before is after:
                continue
            if before is not None:
                self._remove_pods(before)
            self._domains.set_node(name, None if after is None else after.machine)
            if after is None:
                self._records.pop(name, None)
                continue
            self._records[name] = after
            for pod in after.pods:
                for key in sibling_keys(pod):
                    self._pods.setdefault(key, {})[name, pod.uid] = PlacedPod(name, pod)

    def with_siblings(self, request: PodRequest, snapshot: ClusterSnapshot) -> RequestWithSiblings:
        """Return the request and the nodes as its siblings make them: as for pods without a gate."""
        others = self._siblings_of(request)
        request, table = with_owner(request, others, snapshot)
        request, table, near = with_near_siblings(request, others, table, self._domains)
        nodes = frozenset[str]() if table is snapshot else frozenset(each.node for each in others).union(near)
        return RequestWithSiblings(request, table, nodes)

    def _siblings_of(self, request: JobMember) -> list[PlacedPod]:
        keys = sibling_keys(request)
        found = (pod for key in keys for pod in islice(self._pods.get(key, {}).values(), _MAX_SIBLINGS))
        return list({(each.node, each.pod.uid): each for each in found}.values())

    def _remove_pods(self, record: NodeRecord) -> None:
        for pod in record.pods:
            for key in sibling_keys(pod):
                same = self._pods.get(key, {})
                same.pop((record.name, pod.uid), None)
                if not same:
                    self._pods.pop(key, None)
