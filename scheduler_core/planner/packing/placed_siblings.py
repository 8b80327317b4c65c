"""The placed siblings of single pods, and the nodes near them, kept from one snapshot to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

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

    def request_and_ranking(
        self, request: PodRequest, policy: Policy, snapshot: ClusterSnapshot, rankings: Rankings
    ) -> tuple[PodRequest, NodeRanking | PodRanking]:
        """Return the request and its ranking of the nodes, given its siblings: as for pods without a gate."""
        others = self._siblings_of(request)
        request, table = with_owner(request, others, snapshot)
        request, table, near = with_near_siblings(request, others, table, self._domains)
        ranking = rankings.ranking_for(request.profile, policy)
        if table is snapshot:
            return request, ranking
        return request, PodRanking(ranking, table, {each.node for each in others}.union(near))

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
