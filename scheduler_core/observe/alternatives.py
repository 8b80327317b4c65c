"""The alternatives of a pod at the moment when it was bound: gputopo's choice, and the best possible. Pure.

A node counts if it has the GPUs, if the pod's constraints allow it, and if kube-scheduler's own filters about nodes
let it pass (``barred``). Filters that depend on other pods and on volumes (CPU, memory, pod affinity, spread) are not
evaluated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules, rejection
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.score import Score
from scheduler_core.observe.gpu_layout import GpuLayout, possible_layouts
from scheduler_core.observe.island_breakage import possible_broken_island_size
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPodSpec

_NO_RULES = SchedulingRules(FullPodSpec())


class Alternative(NamedTuple):
    """A node and the layout of GPUs that it had for the pod."""

    node: str
    layout: GpuLayout


class Alternatives(NamedTuple):
    """The alternatives of a pod. None: unknown or none."""

    by_gputopo: Alternative | None = None  # on the node that gputopo chooses, with the worst layout there
    best: Alternative | None = None  # the best layout that the pod may have got on any node
    suited: bool = False  # whether the pod fit any node, also one of unknown topology
    sparing: str | None = None  # a node where a single GPU would certainly have broken no free island


def alternatives_for(
    pod: PodUpdate, table: ClusterSnapshot, nodes: Mapping[str, FullNode], policy: Policy
) -> Alternatives:
    """Return the alternatives of a pod. ``table``: without the pod. ``nodes``: for kube-scheduler's filters."""
    ranked = _fitting_states(pod, table, nodes, policy)
    if not ranked:
        return Alternatives()
    profile = pod.occupant.profile
    ranges = [(name, state, possible_layouts(profile.device_request, state)) for _, name, state in ranked]
    first, _, chosen = ranges[0]
    offers = [Alternative(name, found.best) for name, _, found in ranges if found is not None]
    sparing = (
        name
        for name, state, found in ranges
        if profile.devices == 1
        and found is not None
        and possible_broken_island_size(profile.device_request, state) == 0
    )
    return Alternatives(
        by_gputopo=None if chosen is None else Alternative(first, chosen.worst),
        best=max(offers, key=_quality, default=None),
        suited=True,
        sparing=next(sparing, None),
    )


def _quality(offer: Alternative) -> tuple[object, ...]:
    ring, island = offer.layout.ring, offer.layout.one_island
    return (() if ring is None else ring.sort_key, island is True, -(offer.layout.numa_nodes or 1 << 10))


def _fitting_states(
    pod: PodUpdate, table: ClusterSnapshot, nodes: Mapping[str, FullNode], policy: Policy
) -> list[tuple[float, str, NodeState]]:
    """Return a node of each state that the pod fits, best first: the result is the same for all nodes in one state."""
    names: defaultdict[NodeState, list[str]] = defaultdict(list)
    for name, state in table.states.items():
        names[state].append(name)
    evaluate_state = evaluator_for(pod.occupant.profile, policy)
    found = []
    for state, same in names.items():
        score = evaluate_state(state)
        if isinstance(score, Score):
            found += [(-score.points, name, state) for name in islice(_allowed_nodes(pod, same, nodes), 1)]
    return sorted(found, key=lambda each: each[:2])


def _allowed_nodes(pod: PodUpdate, names: list[str], nodes: Mapping[str, FullNode]) -> Iterator[str]:
    """Yield the nodes that kube-scheduler allows, by name; the pod's own node always."""
    spec = (pod.rules or _NO_RULES).spec
    for name in sorted(names):
        node = nodes.get(name)
        if node is None or name == pod.node or rejection(spec, node) is None:
            yield name
