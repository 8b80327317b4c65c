"""What a pod could have had at the moment when it was bound: on the node that we would have chosen, and at best. Pure.

All nodes count that have the GPUs, that nothing in the pod's own wishes speaks against, and that kube-scheduler's own
filters about nodes would have let pass (``stock.barred``). What depends on other pods and on volumes (CPU, memory, pod
affinity, spread) is not known here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules, rejection
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.score import Score
from scheduler_core.observe.gpu_layout import GpuLayout, LayoutRange, possible_layouts
from scheduler_core.observe.island_breakage import possible_broken_island_size
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPodSpec

_NO_RULES = SchedulingRules(FullPodSpec())


class Alternative(NamedTuple):
    """What a node had for the pod."""

    node: str
    layout: GpuLayout


class Alternatives(NamedTuple):
    """What there was to choose from. None: nothing that anybody knows of."""

    ours: Alternative | None = None  # the node that we would have chosen, and the worst that the pod may have got there
    best: Alternative | None = None  # the best that it may have got anywhere, had its device plugin been lucky
    suited: bool = False  # whether a node suited it at all, also one whose GPUs nobody can tell apart
    sparing: str | None = None  # a node where a single GPU would surely have broken no whole island


def alternatives_for(pod: PodUpdate, table: Snapshot, nodes: Mapping[str, FullNode], policy: Policy) -> Alternatives:
    """The pod's options among those nodes. ``table``: without the pod."""
    ranked = _suited(pod, table, nodes, policy)
    if not ranked:
        return Alternatives()
    profile = pod.occupant.profile
    ask = profile.device_request
    spans = [(name, state, span) for _, name, state in ranked if (span := possible_layouts(ask, state)) is not None]
    first_span = possible_layouts(ask, ranked[0][2])
    sparing = (
        name for name, state, _ in spans if profile.devices == 1 and possible_broken_island_size(ask, state) == 0
    )
    return Alternatives(
        ours=None if first_span is None else Alternative(ranked[0][1], first_span.worst),
        best=_best(spans),
        suited=True,
        sparing=next(sparing, None),
    )


def _best(spans: list[tuple[str, NodeState, LayoutRange]]) -> Alternative | None:
    """The best ring; of equals the first."""
    found = [Alternative(name, span.best) for name, _, span in spans]
    return max(found, key=_order, default=None)


def _order(offer: Alternative) -> tuple[object, ...]:
    ring, island = offer.layout.ring, offer.layout.one_island
    return (() if ring is None else ring.sort_key, island is True, -(offer.layout.numa_nodes or 1 << 10))


def _suited(
    pod: PodUpdate, table: Snapshot, nodes: Mapping[str, FullNode], policy: Policy
) -> list[tuple[float, str, NodeState]]:
    """One node of each state that suits the pod, best first: nodes in the same state are alike."""
    members: defaultdict[NodeState, list[str]] = defaultdict(list)
    for name, state in table.states.items():
        members[state].append(name)
    judged = evaluator_for(pod.occupant.profile, policy)
    found = []
    for state, names in members.items():
        score = judged(state)
        if isinstance(score, Score):
            found += [(-score.points, name, state) for name in islice(_allowed_nodes(pod, names, nodes), 1)]
    return sorted(found, key=lambda each: each[:2])


def _allowed_nodes(pod: PodUpdate, names: list[str], nodes: Mapping[str, FullNode]) -> Iterator[str]:
    """Those that kube-scheduler would take for it, by name; its own whatever has become of that since."""
    spec = (pod.rules or _NO_RULES).spec
    for name in sorted(names):
        node = nodes.get(name)
        if node is None or name == pod.node or rejection(spec, node) is None:
            yield name
