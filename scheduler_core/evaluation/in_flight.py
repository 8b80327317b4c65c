"""Pods that were answered with several nodes, and may be on their way to any of them. Pure.

kube-scheduler picks one of the nodes that Filter answered, and which one the watch shows only later. For pods without
a required shape that is no harm: its own assumption keeps the counts right. Where a shape must hold, a node is good
only if it is with every subset of the pods that may be on their way there. Of what planners keep on a node it knows
nothing: there all who may be on their way must leave enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, combinations

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import Assumption
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import NodeTable, state_if
from scheduler_core.evaluation.score import Score
from scheduler_core.request.pod_request import Profile

MOST = 3  # pods in doubt on a node of which all subsets are tried: eight; each costs a few hundred microseconds

Judge = Callable[[NodeState], Reason | Score]


def firm(profile: Profile, table: NodeTable, name: str, doubtful: Sequence[Assumption], judge: Judge) -> bool:
    """Whether a node that suits pods of that profile still does, whichever of the doubtful pods are on their way there.

    ``judge`` says of a state whether it suits.
    """
    state = table.states[name]
    if not doubtful or not exposed(profile, state):
        return True
    coming = [each.pod for each in doubtful if name in each.nodes]
    if not (profile.must_hold or breakable(state)):
        return leaves_enough(profile, state, coming)
    known = table.records[name].pods
    if len(coming) > MOST:
        return False
    subsets = chain.from_iterable(combinations(coming, size) for size in range(1, len(coming) + 1))
    return all(isinstance(judge(state_if(table, name, (*known, *pods))), Score) for pods in subsets)


def exposed(profile: Profile, state: NodeState) -> bool:
    """Whether doubts decide anything: to the pod, or to another on the node, something is promised that can break."""
    return profile.must_hold or promising(state)


def promising(state: NodeState) -> bool:
    """Whether something is promised on the node that another pod could break: GPUs that are kept, or what they are."""
    return state.open is not None or breakable(state)


def leaves_enough(profile: Profile, state: NodeState, coming: Iterable[Occupant]) -> bool:
    """Whether there are enough devices for the pod with all that may come."""
    taken = Counter[str]()
    for pod in coming:
        taken.update(dict(pod.profile.ask.totals))
    return all(state.count(resource) - taken[resource] >= wanted for resource, wanted in profile.ask.totals)


def breakable(state: NodeState) -> bool:
    """Whether a pod on the node was promised more than a number of GPUs."""
    kept = state.company.no_training or state.company.no_inference or (state.ledger is not None and state.ledger.said)
    return kept or bool(state.waiting)
