"""A pod, the nodes, and the names that kube-scheduler asks about -> a decision. Pure: nothing is changed or looked up.

The same request, table and names give the same decision, whatever the order of the names. Nodes in the same state are
judged once. Pods of the same profile get their judgements from memory, which changes only how long it takes.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
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
_REMEMBERED_PROFILES = 64
_REMEMBERED_STATES = 1 << 14  # of each profile
_STRIDE = 2654435761  # Knuth's multiplier. A prime, so that walks by it come to every node; and they look random


class Decision(NamedTuple):
    """What kube-scheduler is told about a pod."""

    generation: int  # of the table
    nodes: tuple[str, ...]  # what Filter answers, best first: all that pass, or the best of them
    failed: Mapping[str, Reason]
    scores: Mapping[str, Score]  # of all that pass
    single: bool  # ``nodes`` is one name because something must hold there: it is to be assumed


def evaluate(request: PodRequest, table: NodeTable, names: Sequence[str], policy: Policy) -> Decision:
    """Judge the named nodes for the pod."""
    groups: defaultdict[NodeState | None, list[str]] = defaultdict(list)
    state_of = table.states.get
    for name in names:  # the only loop over names: what costs at 15,000 of them
        groups[state_of(name)].append(name)
    failed: dict[str, Reason] = {}
    scores: dict[str, Score] = {}
    ranked: defaultdict[float, list[str]] = defaultdict(list)
    known = _remembered(request.profile, policy)
    for state, members in groups.items():
        found = (
            Reason.UNKNOWN_NODE if state is None else known.get(state) or _learn(known, request.profile, state, policy)
        )
        if isinstance(found, Score):
            scores.update(dict.fromkeys(members, found))
            ranked[found.points] += members
        else:
            failed.update(dict.fromkeys(members, found))
    single = request.profile.must_hold
    most = 1 if single else len(scores) if request.soft_preferences else policy.shortlist
    return Decision(table.generation, shortlist(ranked, most, request.uid, table.order), failed, scores, single)


def judge(profile: Profile, state: NodeState, policy: Policy) -> Verdict:
    """Why a node in that state does not suit pods of that profile, or how well it does."""
    reason = verdict(profile, state, policy)
    return score(profile, state, policy) if reason is None else reason


def shortlist(ranked: Mapping[float, list[str]], most: int, uid: str, order: Sequence[str]) -> tuple[str, ...]:
    """The best of nodes by their points. Of equals each pod gets others, so that pods that arrive together spread.

    ``order``: all nodes there are, in the same order for everybody.
    """
    chosen: list[str] = []
    for points in sorted(ranked, reverse=True):
        chosen += _drawn(ranked[points], most - len(chosen), uid, order)
    return tuple(chosen)


def _drawn(equal: list[str], count: int, uid: str, order: Sequence[str]) -> Iterable[str]:
    """That many of them, or all: those that the pod meets first on a walk of its own through all nodes."""
    if len(equal) <= count:
        return equal
    wanted = set(equal)
    at = zlib.crc32(uid.encode())
    drawn: list[str] = []
    while len(drawn) < count:
        at = (at + _STRIDE) % len(order)
        if order[at] in wanted:
            drawn.append(order[at])
    return drawn


@lru_cache(maxsize=_REMEMBERED_PROFILES)
def _remembered(_profile: Profile, _policy: Policy) -> dict[NodeState, Verdict]:
    """What has been judged for such pods."""
    return {}


def _learn(
    known: dict[NodeState, Verdict], profile: Profile, state: NodeState, policy: Policy, most: int = _REMEMBERED_STATES
) -> Verdict:
    if len(known) >= most:
        known.clear()
    found = known[state] = judge(profile, state, policy)
    return found
