"""Draw an ungated pod to the nodes, cliques and racks of its siblings: the other pods of its owner or job. Pure.

How near a node is depends on the pod, so it is not part of the states that all pods share: a pod with placed siblings
gets states of its own for at most ``MAX_NODES`` nodes. A pod without siblings costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import msgspec

from scheduler_core.cache.colocation import Domain, Proximity
from scheduler_core.cache.domain_index import DomainIndex
from scheduler_core.cache.node_state import with_proximity
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.owner_pods import PlacedPod
from scheduler_core.request.pod_request import PodProfile, PodRequest
from scheduler_core.request.workload_type import WorkloadType

MAX_NODES = 128  # with a state of their own for one pod


class NearSiblings(NamedTuple):
    """A request and the snapshot for it."""

    request: PodRequest
    snapshot: ClusterSnapshot
    nodes: dict[str, Proximity]  # whose states differ for this pod; the first are those with most siblings


def with_near_siblings(
    request: PodRequest, others: Iterable[PlacedPod], snapshot: ClusterSnapshot, domains: DomainIndex
) -> NearSiblings:
    """Return the request and the snapshot with the nodes near the siblings marked. ``others``: pods of owner or job.

    Inference, and pods that ask to be spread, should be apart from each other: nothing changes for them.
    """
    siblings = Counter(each.node for each in others if each.pod.uid != request.uid and each.node in snapshot.states)
    if not siblings or not wants_proximity(request.profile):
        return NearSiblings(request, snapshot, {})
    near = _near_nodes(siblings, snapshot, domains)
    states = {name: with_proximity(snapshot.states[name], proximity) for name, proximity in near.items()}
    return NearSiblings(
        request._replace(profile=request.profile._replace(near_siblings=True, has_peers=True)),
        msgspec.structs.replace(snapshot, states=snapshot.states.update(states)),
        near,
    )


def wants_proximity(profile: PodProfile) -> bool:
    """Return whether the pod should be near its siblings."""
    return not profile.wants_spread and profile.constraints.workload is not WorkloadType.INFERENCE


def _near_nodes(siblings: Counter[str], snapshot: ClusterSnapshot, domains: DomainIndex) -> dict[str, Proximity]:
    """Return at most ``MAX_NODES`` nodes: those with most siblings first, then those of their cliques, then racks."""
    with_siblings = sorted(siblings, key=lambda name: (-siblings[name], name))[:MAX_NODES]
    near = dict.fromkeys(with_siblings, Proximity.NODE)
    for level in (Proximity.CLIQUE, Proximity.RACK):
        for domain in _domains_at(level, with_siblings, domains):
            # Each node passed over is in ``near`` already or no longer known, so the slice bounds the work.
            for name in islice(domains.nodes_in(domain), 2 * MAX_NODES):
                if len(near) == MAX_NODES:
                    return near
                if name in snapshot.states:
                    near.setdefault(name, level)
    return near


def _domains_at(level: Proximity, names: Iterable[str], domains: DomainIndex) -> dict[Domain, None]:
    return dict.fromkeys(each for name in names for each in domains.domains_of_node(name) if each[0] is level)
