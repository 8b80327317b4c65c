"""The ranking of all nodes for each profile, kept from one request to the next.

The answers are those of ``evaluate``, at lower cost: only nodes that changed are evaluated again, and a request walks
from the best node until it has enough nodes, instead of over all named nodes. A profile never seen before may find
thousands of states to evaluate. So evaluation can stop after a time, most promising nodes first, and go on later; the
answers are then those of ``evaluate`` without the nodes that wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from heapq import merge
from itertools import chain, islice
from typing import Protocol

from gputopo.labels.reasons import Reason
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import HASH_RANGE, Evaluation, Evaluator, evaluator_for, spread_hash
from scheduler_core.evaluation.node_index import HashedName, NodeIndex
from scheduler_core.evaluation.rejections import Rejections
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import is_uncertain
from scheduler_core.evaluation.waiting_nodes import WaitingNodes
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

MAX_PROFILES = 64  # each takes about a megabyte with 15,000 nodes
_TEXTS = {reason: reason.value for reason in Reason}
_UNKNOWN = Reason.UNKNOWN_NODE.value
_BATCH = 256  # hashed names that are tested at once
_MIN_CHANGES, _REBUILT_AT = 256, 16  # where a 16th of the nodes changed, a new ranking of known states is faster
_FEW = 16  # where this many times more nodes pass than are named, only the named nodes are ranked


class SnapshotSource(Protocol):
    """The owner of the current snapshot."""

    change_log: ChangeLog

    @property
    def snapshot(self) -> ClusterSnapshot:
        """All nodes, now. Brings ``change_log`` up to date."""
        ...


class NodeRanking:
    """The ranking of all nodes for one profile.

    It keeps the states that it has ranked, which equal nodes share, and no snapshot: a ranking that is not used again
    would keep the records of all nodes alive.
    """

    def __init__(self, evaluator: Evaluator, index: NodeIndex) -> None:
        """Rank the nodes whose evaluation is known; all others wait for ``evaluate_waiting``."""
        self.evaluator = evaluator
        self._index = index
        self._states = index.snapshot.states
        self._rejected: dict[str, set[str]] = {}  # reason -> nodes
        self._ranked: dict[float, list[HashedName]] = {}  # points -> nodes, ordered except in ``_unordered``
        self._unordered: set[float] = set()  # points
        # States to evaluate: the most promising first, then those that were added later. All their nodes wait.
        self._waiting: dict[NodeState, None] = {}
        self._begun: tuple[NodeState, Iterator[None]] | None = None  # the evaluation that is done in steps
        states = index.ordered_states(evaluator.profile.devices)
        if not len(evaluator):
            self._waiting = dict.fromkeys(states)
            return
        # This and ``points_of`` are the only loops over all states.
        for state in states:
            found = evaluator.known(state)
            if found is None:
                self._waiting[state] = None
            else:
                self._place(found, index.by_state[state])

    def _place(self, found: Evaluation, hashed_names: list[HashedName]) -> None:
        """Add nodes of one state."""
        if isinstance(found, Score):
            self._ranked.setdefault(found.points, []).extend(hashed_names)
            self._unordered.add(found.points)
        else:
            self._rejected.setdefault(_TEXTS[found], set()).update([name for _, name in hashed_names])

    def _nodes_with(self, points: float) -> list[HashedName]:
        """Return the nodes of these points, ordered. Most points are never asked for, so they are ordered only here."""
        found = self._ranked[points]
        if points in self._unordered:
            found.sort()
            self._unordered.discard(points)
        return found

    @property
    def waits(self) -> bool:
        """True if some nodes are not evaluated yet."""
        return bool(self._waiting)

    @property
    def accepts_some(self) -> bool:
        """True if some node fits."""
        return bool(self._ranked)

    @property
    def waiting(self) -> WaitingNodes:
        """The nodes that are not evaluated yet."""
        number = sum([len(self._index.by_state[state]) for state in self._waiting])
        return WaitingNodes(frozenset(self._waiting), number)

    def evaluate_waiting(self, may_continue: Callable[[NodeRanking], bool], *, with_long: bool = True) -> None:
        """Evaluate the states that wait.

        ``may_continue``: is asked before each step. ``with_long``: False: states whose evaluation may take long wait
        if a node fits.
        """
        for state in list(self._waiting):
            is_long = self.evaluator.may_take_long(state)
            if is_long and self._ranked and not with_long:
                continue
            if not may_continue(self) or (is_long and not self._take_steps(state, may_continue)):
                return
            self._place(self.evaluator(state), self._index.by_state[state])
            del self._waiting[state]

    def _take_steps(self, state: NodeState, may_continue: Callable[[NodeRanking], bool]) -> bool:
        """Do the steps of an evaluation, at least one. Return False if some are left."""
        if self._begun is None or self._begun[0] is not state:
            self._begun = state, self.evaluator.steps(state)
        for _ in self._begun[1]:
            if not may_continue(self):
                return False
        self._begun = None
        return True

    @property
    def snapshot(self) -> ClusterSnapshot:
        """All nodes, when the last ranking was requested."""
        return self._index.snapshot

    @property
    def with_commitments(self) -> AbstractSet[str]:
        """The nodes where in-flight pods matter for every pod."""
        return self._index.with_commitments

    @property
    def rejection_counts(self) -> dict[str, int]:
        """Return the number of known nodes that are rejected, by reason. Its cost does not depend on their number."""
        return {reason: len(names) for reason, names in self._rejected.items()}

    def catch_up(self, changed: Iterable[str]) -> bool:
        """Apply the changes up to the snapshot of the index.

        Return False if the evaluation of a former state is no longer known; this ranking is of no use then.
        """
        before, after = self._states, self._index.snapshot.states
        maybe_unused = set[NodeState]()  # states that wait, and may have no nodes any more
        newly_waiting = Counter[NodeState]()  # the changed nodes of states that begin to wait
        for name in changed:
            old, new = before.get(name), after.get(name)
            if old is new:
                continue
            if old is not None and old in self._waiting:
                maybe_unused.add(old)
            elif old is not None and not self._remove_node(name, old):
                return False
            # Others may evaluate a state that waits here: its nodes are placed together later.
            if new is not None and new not in self._waiting and not self._add_node(name, new):
                newly_waiting[new] += 1
        for state in maybe_unused - self._index.by_state.keys():
            del self._waiting[state]
        self._waiting |= dict.fromkeys(newly_waiting)
        self._states = after
        # If a number differs, other nodes of that state are placed, and its evaluation was removed from the cache.
        return all(len(self._index.by_state[state]) == number for state, number in newly_waiting.items())

    def score_of(self, name: str) -> Score | None:
        """Return the score of the node; None where it is rejected, or waits."""
        state = self._states.get(name)
        found = None if state is None or state in self._waiting else self.evaluator(state)
        return found if isinstance(found, Score) else None

    def points_of(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """Return the points of each named node, as the extender protocol requires them; 0 where it waits."""
        states = list(map(self._index.states.get, names))
        points_of = {
            state: 0 if state is None or state in self._waiting else rounded_points(self.evaluator(state))
            for state in set(states)
        }
        return list(zip(names, map(points_of.__getitem__, states), strict=True))

    def best_nodes(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """Yield the named nodes that fit, best first; nodes of equal points in the order of ``shortlist``."""
        return chain.from_iterable(self._batches(names, uid))

    def _batches(self, names: AbstractSet[str], uid: str) -> Iterator[list[str]]:
        start = (spread_hash(uid), "")
        only_named = len(names) * _FEW < len(self._states) - sum(map(len, self._rejected.values()))
        ranked = self._rank_named(names) if only_named else None
        for points in sorted(self._ranked if ranked is None else ranked, reverse=True):
            same_points = self._nodes_with(points) if ranked is None else ranked[points]
            at = bisect_left(same_points, start)
            for low, end in ((at, len(same_points)), (0, at)):
                for since in range(low, end, _BATCH):
                    batch = same_points[since : min(end, since + _BATCH)]
                    yield [name for _, name in batch if name in names]

    def rejections_of(self, names: AbstractSet[str]) -> Rejections:
        """Return the reasons of the named nodes, all of which are rejected or wait. Sets are faster than loops here."""
        names = self._without_waiting(names) if self._waiting else names
        usual = max(self._rejected, key=lambda reason: len(self._rejected[reason]), default=_UNKNOWN)
        left = names - self._rejected.get(usual, frozenset())
        others = dict.fromkeys(left, _UNKNOWN)
        for reason, rejected in self._rejected.items():
            others.update(dict.fromkeys(left & rejected, reason))
        return Rejections(names, usual, others)

    def _without_waiting(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Return the names without those that wait. Of these there may be many more than of all others."""
        fitting = (name for same_points in self._ranked.values() for _, name in same_points)
        evaluated = set[str]().union(fitting, *self._rejected.values())
        return (names & evaluated) | (names - self._index.states.keys())

    def uncertain_nodes(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Return the named nodes that are rejected and uncertain."""
        uncertain = self._index.uncertain & names
        return frozenset().union(*(uncertain & rejected for rejected in self._rejected.values()))

    def _add_node(self, name: str, state: NodeState) -> bool:
        """Place a node. Return False if its evaluation is not known."""
        found = self.evaluator.known(state)
        if isinstance(found, Score):
            self._ranked.setdefault(found.points, [])
            insort(self._nodes_with(found.points), (spread_hash(name), name))
        elif found is not None:
            self._rejected.setdefault(_TEXTS[found], set()).add(name)
        return found is not None

    def _remove_node(self, name: str, state: NodeState) -> bool:
        """Remove a node that is placed. Return False if the evaluation of its state is not known any more."""
        found = self.evaluator.known(state)
        if isinstance(found, Score):
            hashed = (spread_hash(name), name)
            same_points = self._nodes_with(found.points)
            del same_points[bisect_left(same_points, hashed)]
            if not same_points:
                del self._ranked[found.points]
        elif found is not None:
            rejected = self._rejected[_TEXTS[found]]
            rejected.remove(name)
            if not rejected:
                del self._rejected[_TEXTS[found]]
        return found is not None

    def _rank_named(self, names: Iterable[str]) -> dict[float, list[HashedName]]:
        ranked: dict[float, list[HashedName]] = {}
        for name in names:
            found = self.score_of(name)
            if found is not None:
                ranked.setdefault(found.points, []).append((spread_hash(name), name))
        for same_points in ranked.values():
            same_points.sort()
        return ranked


class PodRanking:
    """A ranking for one pod: nodes with other pods of its owner, or with a reservation for it, have other states."""

    def __init__(self, ranking: NodeRanking, snapshot: ClusterSnapshot, nodes: Iterable[str]) -> None:
        """Create the ranking. ``nodes``: the nodes whose states differ."""
        self.snapshot = snapshot
        self.evaluator = ranking.evaluator
        self._ranking = ranking
        self._own = {name: snapshot.states[name] for name in nodes if name in snapshot.states}

    def score_of(self, name: str) -> Score | None:
        """Return the score of the node; None where it is rejected."""
        if name not in self._own:
            return self._ranking.score_of(name)
        found = self.evaluator(self._own[name])
        return found if isinstance(found, Score) else None

    def points_of(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """Return the points as ``NodeRanking.points_of`` does."""
        own = [(name, rounded_points(self.evaluator(state))) for name, state in self._own.items() if name in names]
        return self._ranking.points_of(names - self._own.keys()) + own

    @property
    def rejection_counts(self) -> dict[str, int]:
        """As ``NodeRanking.rejection_counts``; nodes with a state of their own count as for other pods."""
        return self._ranking.rejection_counts

    @property
    def waiting(self) -> WaitingNodes:
        """The nodes as ``NodeRanking.waiting``."""
        states, number, _ = self._ranking.waiting
        state_of = self._ranking.snapshot.states.get
        evaluated = sum(state_of(name) in states for name in self._own)
        return WaitingNodes(states, number - evaluated, frozenset(self._own))

    @property
    def with_commitments(self) -> AbstractSet[str]:
        """As ``NodeRanking.with_commitments``; may include a node with no reservation but the pod's own."""
        return self._ranking.with_commitments

    def best_nodes(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """Yield the nodes as ``NodeRanking.best_nodes`` does."""
        start = spread_hash(uid)

        def ranked(some: Iterable[str]) -> Iterator[tuple[float, int, str]]:
            for name in some:
                score = self.score_of(name)
                if score is not None:
                    yield -score.points, (spread_hash(name) - start) % HASH_RANGE, name

        others = (name for name in self._ranking.best_nodes(names, uid) if name not in self._own)
        for _, _, name in merge(sorted(ranked(names & self._own.keys())), ranked(others)):
            yield name

    def rejections_of(self, names: AbstractSet[str]) -> Rejections:
        """Return the reasons as ``NodeRanking.rejections_of`` does."""
        own = {name: self.evaluator(state) for name, state in self._own.items() if name in names}
        found = {name: _TEXTS[each] for name, each in own.items() if isinstance(each, Reason)}
        return self._ranking.rejections_of(names).with_reasons(found)

    def uncertain_nodes(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Return the nodes as ``NodeRanking.uncertain_nodes`` does."""
        own = {
            name for name in self._own.keys() & names if self.score_of(name) is None and is_uncertain(self._own[name])
        }
        return (self._ranking.uncertain_nodes(names) - self._own.keys()) | own


class Rankings:
    """The rankings of the profiles requested last."""

    def __init__(self, source: SnapshotSource, most: int = MAX_PROFILES) -> None:
        self._source = source
        self._most = most
        self._rankings: OrderedDict[tuple[PodProfile, Policy], tuple[NodeRanking, int]] = OrderedDict()
        self._index = NodeIndex()
        self._mark = -1  # of ``_index``; -1: before all changes

    def ranking_for(
        self,
        profile: PodProfile,
        policy: Policy,
        may_continue: Callable[[NodeRanking], bool] = lambda _: True,
        *,
        with_long: bool = True,
    ) -> NodeRanking:
        """Return the current ranking for pods of this profile.

        ``may_continue``, ``with_long``: as for ``evaluate_waiting``; the remaining nodes wait.
        """
        key = (profile, policy)
        snapshot = self._catch_up()
        kept = self._rankings.pop(key, None)
        changed = None if kept is None else self._source.change_log.names_since(kept[1])
        too_many = max(_MIN_CHANGES, len(snapshot.states) // _REBUILT_AT)
        ranking = None if kept is None or changed is None or len(changed) > too_many else kept[0]
        if ranking is None or not ranking.catch_up(changed or ()):
            ranking = NodeRanking(evaluator_for(profile, policy), self._index)
        self._rankings[key] = (ranking, self._source.change_log.mark)
        if len(self._rankings) > self._most:
            self._rankings.popitem(last=False)
        ranking.evaluate_waiting(may_continue, with_long=with_long)
        return ranking

    def _catch_up(self) -> ClusterSnapshot:
        """Apply the changes of the cluster to the index; return the present snapshot."""
        snapshot = self._index.snapshot = self._source.snapshot
        if self._mark != self._source.change_log.mark:
            self._index.catch_up(snapshot, self._source.change_log.names_since(self._mark))
            self._mark = self._source.change_log.mark
        return snapshot

    def evaluate_ahead(self, most: int, may_continue: Callable[[], bool]) -> bool:
        """Evaluate what waits in the rankings used last, at most ``most`` of them. Return whether something is left."""
        self._catch_up()  # also before the first call, for which it would be long
        for profile, policy in list(islice(reversed(self._rankings), most))[::-1]:  # the one used last stays the last
            if not may_continue():
                return True
            if self.ranking_for(profile, policy, lambda _: may_continue()).waits:
                return True
        return False


def rounded_points(found: Evaluation) -> int:
    """Return the points of an evaluation as the extender protocol requires them: 0 to 10."""
    return found.rounded if isinstance(found, Score) else 0
