"""A pod, the nodes, and the names that kube-scheduler asks about -> a decision. Pure: nothing is changed or looked up.

The same request, table and names give the same decision, whatever the order of the names. Nodes in the same state are
judged once. Pods of the same profile get their judgements from memory, which changes only how long it takes.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.filters import verdict
from scheduler_core.nodes import NodeState, NodeTable
from scheduler_core.policy import Policy
from scheduler_core.request import PodRequest, Profile
from scheduler_core.scores import Score, score

Verdict = Reason | Score
_SPREAD = 2654435761  # Knuth's multiplier: neighbouring salts end up far apart


class Decision(NamedTuple):
    """What kube-scheduler is told about a pod."""

    generation: int  # of the table
    nodes: tuple[str, ...]  # what Filter answers, in the order asked: all that pass, or the best of them
    failed: Mapping[str, Reason]
    scores: Mapping[str, Score]  # of all that pass
    single: bool  # ``nodes`` is one name because a shape is required: it is to be assumed


def evaluate(request: PodRequest, table: NodeTable, names: Sequence[str], policy: Policy) -> Decision:
    """Judge the named nodes for the pod."""
    failed: dict[str, Reason] = {}
    scores: dict[str, Score] = {}
    known: dict[NodeState, Verdict] = {}
    states = table.states
    profile = request.profile
    for name in names:
        state = states.get(name)
        if state is None:
            failed[name] = Reason.UNKNOWN_NODE
            continue
        found = known.get(state)
        if found is None:
            found = known[state] = judge(profile, state, policy)
        if isinstance(found, Reason):
            failed[name] = found
        else:
            scores[name] = found
    single = profile.shape_required
    most = 1 if single else len(scores) if request.soft_preferences else policy.shortlist
    chosen = shortlist(scores, most, request.uid, table.salts)
    nodes = tuple(scores) if len(chosen) == len(scores) else tuple(name for name in scores if name in chosen)
    return Decision(table.generation, nodes, failed, scores, single)


@lru_cache(maxsize=1 << 16)
def judge(profile: Profile, state: NodeState, policy: Policy) -> Verdict:
    """Why a node in that state does not suit pods of that profile, or how well it does."""
    reason = verdict(profile, state, policy)
    return score(profile, state, policy) if reason is None else reason


def shortlist(scores: Mapping[str, Score], most: int, uid: str, salts: Mapping[str, int]) -> frozenset[str]:
    """The best nodes. Of equals each pod gets others, so that pods that arrive together spread."""
    if len(scores) <= most:
        return frozenset(scores)
    by_points: dict[float, list[str]] = {}
    for name, each in scores.items():
        by_points.setdefault(each.points, []).append(name)
    chosen: list[str] = []
    for points in sorted(by_points, reverse=True):
        equal = by_points[points]
        missing = most - len(chosen)
        chosen += equal if len(equal) <= missing else _drawn(equal, missing, uid, salts)
        if len(chosen) == most:
            break
    return frozenset(chosen)


def _drawn(names: Iterable[str], count: int, uid: str, salts: Mapping[str, int]) -> list[str]:
    """That many of the names: those whose salt, mixed with the pod's, is least."""
    pod = zlib.crc32(uid.encode())
    mixed = [(((salts[name] ^ pod) * _SPREAD) & 0xFFFFFFFF, name) for name in names]
    return [name for _, name in heapq.nsmallest(count, mixed)]
