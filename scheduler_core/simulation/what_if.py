"""The nodes that a pod would be placed on now, the GPUs that it may get, and what would stay free. Pure.

``evaluate`` decides, as for real pods. The device plugin chooses the GPUs inside the node, so they are a list of
possible sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from gputopo.render.wording import counted_noun, escape_invisible, shorten_names
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.allocation.named_shares import free_fraction
from scheduler_core.cache.free_islands import min_free
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.possible_gpus import whole_gpu_outcome
from scheduler_core.evaluation.score_fragmentation import fragmented_gpus
from scheduler_core.explain.advice import SEE
from scheduler_core.explain.explain import offers_devices
from scheduler_core.explain.gpu_wording import gpu_set, gpu_set_words
from scheduler_core.explain.model import GpuSet
from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

_MOST_OUTCOMES = 4


class Remains(msgspec.Struct, frozen=True, rename="camel"):
    """The free GPUs of a node."""

    # Free whole GPUs in each island, largest first; one entry if NVLinks are unknown. None: it is not known which GPUs
    # are free, and they may be in several islands.
    islands: tuple[int, ...] | None
    fragments: float | None  # GPUs, by the usual requests of pods; None: it is not known which GPUs are free
    free: int  # whole GPUs


class PossiblePlacement(msgspec.Struct, frozen=True, rename="camel"):
    """A node that the pod may be placed on."""

    node: str
    points: float  # 0 to 10
    gets: tuple[GpuSet, ...] | None  # possible sets, best first; None: unknown
    more: int  # number of sets that are not listed
    before: Remains | None
    after: Remains | None  # in the worst case


class WhatIf(msgspec.Struct, frozen=True, rename="camel"):
    """The whole answer."""

    pod: str
    placements: tuple[PossiblePlacement, ...]  # best first; kube-scheduler takes one of the nodes equal to the best
    equals: int  # number of nodes that are as good as the best
    suitable: int  # number of nodes
    refused: dict[str, int]  # reason -> nodes that have such devices


def what_if(request: PodRequest, table: ClusterSnapshot, names: Sequence[str], policy: Policy, most: int = 3) -> WhatIf:
    """Evaluate a pod that does not exist yet."""
    offering = [name for name in names if offers_devices(table, name, request.profile)]
    decision = evaluate(request, table, offering, policy)
    placements = tuple(
        _possible_placement(name, request, table.states[name], decision.scores[name].points, policy)
        for name in decision.nodes[:most]
    )
    refused = Counter(reason.value for reason in decision.rejected.values())
    pod = f"{request.namespace}/{request.name}" if request.namespace else request.name
    return WhatIf(pod, placements, len(decision.nodes), len(decision.scores), dict(refused.most_common()))


def render_text(answer: WhatIf, why: str = "gputopo why -f FILE") -> str:
    """Return the result as text. ``why``: the command that explains the rejections."""
    lines = []
    pod = escape_invisible(shorten_names(answer.pod))
    if not answer.placements:
        lines.append(f"{pod} fits no node now.")
    for number, placement in enumerate(answer.placements):
        head = f"{pod} fits on" if number == 0 else "or on"
        lines.append(f"{head} {escape_invisible(shorten_names(placement.node))} (score {placement.points:.2f} of 10)")
        lines += [f"  {line}" for line in _gets(placement)]
        if placement.before is not None and placement.after is not None:
            lines.append(f"  {_free_words(placement.before, placement.after)}")
    if answer.placements:
        lines.append(_nodes_words(answer))
    refused = answer.refused.items()
    lines += [f"{counted_noun(count, 'node')} rejected: {reason.removesuffix(SEE)}" for reason, count in refused]
    if refused or not answer.placements:
        lines.append(f"The reasons in detail: {why}")
    return "\n".join(lines) + "\n"


def _possible_placement(
    name: str, request: PodRequest, state: NodeState, points: float, policy: Policy
) -> PossiblePlacement:
    found = whole_gpu_outcome(request.profile.device_request, state)
    if state.shape is None or state.free is None or found is None or not request.profile.gpus:
        return PossiblePlacement(name, points, None, 0, None, None)
    before = _without(state, 0, policy)
    if not isinstance(found.sets, ExactSets):
        return PossiblePlacement(name, points, None, 0, before, None)
    ranked = sorted(found.sets.masks, key=lambda mask: _quality(state, mask), reverse=True)
    gets = tuple(gpu_set(state.shape, mask) for mask in ranked[:_MOST_OUTCOMES])
    worst = max(
        (_without(state, mask, policy) for mask in ranked), key=lambda each: each.fragments or 0.0, default=None
    )
    return PossiblePlacement(name, points, gets, max(0, len(ranked) - _MOST_OUTCOMES), before, worst)


def _quality(state: NodeState, mask: int) -> tuple[object, ...]:
    assert state.shape is not None
    ring = state.shape.ring(mask)
    return () if ring is None else ring.sort_key, -mask


def _without(state: NodeState, mask: int, policy: Policy) -> Remains:
    """Return what stays free after this set is allocated."""
    assert state.shape is not None
    if state.free is not None and not (isinstance(state.free, ExactSets) and len(state.free.masks) == 1):
        number = max(0, min_free(state.free, state.shape.whole) - mask.bit_count())
        one_island = len(state.shape.islands or ()) < 2
        return Remains((number,) if one_island else None, None, number)
    free = tuple(
        0 if mask >> place & 1 else each
        for place, each in enumerate(free_fraction(state.shape, state.free, state.reserved_mib))
    )
    islands = state.shape.islands or (state.shape.whole,)
    counts = (sum(free[place] == WHOLE_GPU for place in range(len(free)) if each >> place & 1) for each in islands)
    lost = fragmented_gpus(state.shape, free, policy.demand_mix)
    return Remains(tuple(sorted(counts, reverse=True)), round(lost, 3), free.count(WHOLE_GPU))


def _gets(placement: PossiblePlacement) -> list[str]:
    """Return the GPUs that the pod may get, as lines."""
    if placement.gets is None:
        return ["which GPUs it gets is unknown"]
    lines = [gpu_set_words(each) for each in placement.gets]
    if len(lines) == 1 and not placement.more:
        return [f"gets {lines[0]}"]
    head = f"gets one of {len(lines) + placement.more} sets of GPUs{', for example' if placement.more else ''}:"
    return [head, *(f"  {line}" for line in lines)]


def _free_words(before: Remains, after: Remains) -> str:
    """Return the free GPUs before and after the pod is placed."""
    if before.islands is None or after.islands is None:
        return f"free GPUs: {before.free} before, {after.free} after; in which islands is unknown"
    return (
        f"free GPUs by island: {_remains(before, before.islands, 'before')}, {_remains(after, after.islands, 'after')}"
    )


def _remains(remains: Remains, islands: Sequence[int], when: str) -> str:
    fragments = "" if remains.fragments is None else f" ({remains.fragments:.2f} in fragments)"
    return f"{'+'.join(map(str, islands))} {when}{fragments}"


def _nodes_words(answer: WhatIf) -> str:
    """Return how many nodes suit the pod, and which of them kube-scheduler may choose."""
    nodes = counted_noun(answer.suitable, "node")
    if answer.suitable == 1:
        return f"{nodes} suits the pod."
    best = "the node" if answer.equals == 1 else f"the {answer.equals} nodes"
    return f"{nodes} suit the pod; kube-scheduler may choose {best} with the highest score."
