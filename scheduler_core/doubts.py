"""Pods that were answered with several nodes, and may be on their way to any of them. Pure.

kube-scheduler picks one of the nodes that Filter answered, and which one the watch shows only later. For pods without
a required shape that is no harm: its own assumption keeps the counts right. Where a shape must hold, a node is good
only if it is with every subset of the pods that may be on their way there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, combinations

from gputopo.labels.reasons import Reason
from scheduler_core.assumptions import Assumption
from scheduler_core.filters import promised
from scheduler_core.nodes import NodeState, NodeTable, state_if
from scheduler_core.request import Profile
from scheduler_core.scores import Score

MOST = 3  # pods in doubt on a node of which all subsets are tried: eight; each costs a few hundred microseconds

Judge = Callable[[NodeState], Reason | Score]


def firm(profile: Profile, table: NodeTable, name: str, doubtful: Sequence[Assumption], judge: Judge) -> bool:
    """Whether a node that suits pods of that profile still does, whichever of the doubtful pods are on their way there.

    ``judge`` says of a state whether it suits.
    """
    if not doubtful or not exposed(profile, table.states[name]):
        return True
    known = table.records[name].pods
    coming = [each.pod for each in doubtful if name in each.nodes]
    if len(coming) > MOST:
        return False
    subsets = chain.from_iterable(combinations(coming, size) for size in range(1, len(coming) + 1))
    return all(isinstance(judge(state_if(table, name, (*known, *pods))), Score) for pods in subsets)


def exposed(profile: Profile, state: NodeState) -> bool:
    """Whether doubts decide anything: to the pod, or to another on the node, something is promised that can break."""
    return profile.must_hold or promising(state)


def promising(state: NodeState) -> bool:
    """Whether something is promised to a pod on the node that another could break."""
    kept = state.company.no_training or state.company.no_inference or (state.ledger is not None and state.ledger.said)
    return kept or (state.unsettled is not None and bool(promised(state)))
