"""How all nodes stand for pods of one profile, kept from one request to the next.

The same answers as ``evaluate``, at the cost of what is asked for: only nodes that changed are judged again, and a
request looks at the best nodes until it has enough, not at all that are named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from heapq import merge
from itertools import chain
from math import inf
from typing import Protocol

from gputopo.labels.reasons import Reason
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.evaluation.evaluate import HASH_RANGE, Evaluation, Evaluator, evaluator_for, spread_hash
from scheduler_core.evaluation.in_flight import has_commitments
from scheduler_core.evaluation.refusals import Rejections
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import is_uncertain
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

MAX_PROFILES = 64  # profiles; of 15,000 nodes each takes about a megabyte
_TEXTS = {reason: reason.value for reason in Reason}
_UNKNOWN = Reason.UNKNOWN_NODE.value
_STRETCH = 256  # places on the ring that are looked at in one go
_FEW = 16  # where this many times more nodes pass than are named, the named ones are ranked instead

HashedName = tuple[int, str]  # on the ring, and whose it is


class SnapshotSource(Protocol):
    """Whose nodes these are."""

    change_log: ChangeLog

    @property
    def table(self) -> Snapshot:
        """All nodes, now. Brings ``changes`` up to date."""
        ...


class NodeIndex:
    """All nodes as they are now, in the forms that all standings walk. To look one up in a table costs three times."""

    def __init__(self) -> None:
        self.states: dict[str, NodeState] = {}
        self.with_commitments: set[str] = set()  # nodes where doubts decide something (``doubts.promising``)
        self.uncertain: set[str] = set()  # nodes of which not all is known (``hopes.is_unsure``)
        self.hash_order: list[HashedName] = []

    def catch_up(self, table: Snapshot, changed: Iterable[str] | None) -> None:
        """Catch up with a younger table; where it is not known what changed, with all of it."""
        if changed is None:
            self.states, self.with_commitments, self.uncertain = {}, set(), set()
            changed = table.states
        moved = False
        for name in changed:
            old, new = self.states.pop(name, None), table.states.get(name)
            moved |= (old is None) is not (new is None)
            self.with_commitments.discard(name)
            self.uncertain.discard(name)
            if new is not None:
                self.states[name] = new
                if has_commitments(new):
                    self.with_commitments.add(name)
                if is_uncertain(new):
                    self.uncertain.add(name)
        if moved:
            self.hash_order = sorted((spread_hash(name), name) for name in self.states)


class NodeRanking:
    """How all nodes stand for one profile."""

    def __init__(self, judged: Evaluator, table: Snapshot, roll: NodeIndex) -> None:
        self.evaluator = judged
        self.table = table
        self._roll = roll
        self._failing: dict[str, set[str]] = {}  # reason -> nodes
        self._ranked: dict[float, list[HashedName]] = {}  # points -> nodes, in the order of the ring
        refused: dict[Reason, list[HashedName]] = {}
        place_of = {}
        for state in set(roll.states.values()):
            found = judged(state)
            if isinstance(found, Score):
                place_of[state] = self._ranked.setdefault(found.points, []).append
            else:
                place_of[state] = refused.setdefault(found, []).append
        for place in roll.hash_order:  # with ``points``, the only loops over all nodes
            place_of[roll.states[place[1]]](place)
        for reason, equal in refused.items():
            self._failing[_TEXTS[reason]] = {name for _, name in equal}

    @property
    def with_commitments(self) -> AbstractSet[str]:
        """The nodes where doubts decide something, whatever is asked."""
        return self._roll.with_commitments

    def catch_up(self, table: Snapshot, changed: Iterable[str]) -> None:
        """Catch up with a younger table."""
        before, after = self.table.states, table.states
        for name in changed:
            old, new = before.get(name), after.get(name)
            if old is not new:
                self._leave(name, old)
                self._enter(name, new)
        self.table = table

    def score_of(self, name: str) -> Score | None:
        """How well that node does; None where it does not suit."""
        state = self.table.states.get(name)
        found = None if state is None else self.evaluator(state)
        return found if isinstance(found, Score) else None

    def points_of(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """How well each of the named nodes does, as the protocol wants it."""
        states = list(map(self._roll.states.get, names))
        points_of = {state: 0 if state is None else rounded_points(self.evaluator(state)) for state in set(states)}
        return list(zip(names, map(points_of.__getitem__, states), strict=True))

    def best_nodes(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """Those of the named nodes that suit, best first; of equals in the pod's own order (``shortlist``)."""
        return chain.from_iterable(self._stretches(names, uid))

    def _stretches(self, names: AbstractSet[str], uid: str) -> Iterator[list[str]]:
        start = (spread_hash(uid), "")
        few = len(names) * _FEW < len(self.table.states) - sum(map(len, self._failing.values()))
        ranked = self._ranked_few(names) if few else self._ranked
        for points in sorted(ranked, reverse=True):
            equal = ranked[points]
            at = bisect_left(equal, start)
            for low, end in ((at, len(equal)), (0, at)):
                for since in range(low, end, _STRETCH):
                    stretch = equal[since : min(end, since + _STRETCH)]
                    yield [name for _, name in stretch if name in names]

    def rejections_of(self, names: AbstractSet[str]) -> Rejections:
        """Why the named nodes do not suit, none of which does. Sets are told apart several times as fast as names."""
        usual = max(self._failing, key=lambda reason: len(self._failing[reason]), default=_UNKNOWN)
        left = names - self._failing.get(usual, frozenset())
        others = dict.fromkeys(left, _UNKNOWN)
        for reason, failing in self._failing.items():
            others.update(dict.fromkeys(left & failing, reason))
        return Rejections(names, usual, others)

    def uncertain_nodes(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Those of the named nodes that do not suit, as far as is known: not all is known of their GPUs."""
        unsure = self._roll.uncertain & names
        return frozenset().union(*(unsure & failing for failing in self._failing.values()))

    def _enter(self, name: str, state: NodeState | None) -> None:
        found = None if state is None else self.evaluator(state)
        if isinstance(found, Score):
            insort(self._ranked.setdefault(found.points, []), (spread_hash(name), name))
        elif found is not None:
            self._failing.setdefault(_TEXTS[found], set()).add(name)

    def _leave(self, name: str, state: NodeState | None) -> None:
        found = None if state is None else self.evaluator(state)
        if isinstance(found, Score):
            equal = self._ranked[found.points]
            del equal[bisect_left(equal, (spread_hash(name), name))]
            if not equal:
                del self._ranked[found.points]
        elif found is not None:
            failing = self._failing[_TEXTS[found]]
            failing.remove(name)
            if not failing:
                del self._failing[_TEXTS[found]]

    def _ranked_few(self, names: Iterable[str]) -> dict[float, list[HashedName]]:
        ranked: dict[float, list[HashedName]] = {}
        for name in names:
            found = self.score_of(name)
            if found is not None:
                ranked.setdefault(found.points, []).append((spread_hash(name), name))
        for equal in ranked.values():
            equal.sort()
        return ranked


class PodRanking:
    """A standing as one pod sees it: a few nodes differ, those with other pods of its owner or a place kept for it."""

    def __init__(self, standing: NodeRanking, table: Snapshot, nodes: Iterable[str]) -> None:
        """``nodes``: those whose states differ."""
        self.table = table
        self.evaluator = standing.evaluator
        self._standing = standing
        self._own = {name: table.states[name] for name in nodes if name in table.states}

    def score_of(self, name: str) -> Score | None:
        """How well that node does; None where it does not suit."""
        if name not in self._own:
            return self._standing.score_of(name)
        found = self.evaluator(self._own[name])
        return found if isinstance(found, Score) else None

    def points_of(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """As ``Standing.points``."""
        own = [(name, rounded_points(self.evaluator(state))) for name, state in self._own.items() if name in names]
        return self._standing.points_of(names - self._own.keys()) + own

    @property
    def with_commitments(self) -> AbstractSet[str]:
        """As ``Standing.promising``; among these may be one where only the pod's own place is."""
        return self._standing.with_commitments

    def best_nodes(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """As ``Standing.best``."""
        start = spread_hash(uid)

        def ranked(these: Iterable[str]) -> Iterator[tuple[float, int, str]]:
            for name in these:
                score = self.score_of(name)
                if score is not None:
                    yield -score.points, (spread_hash(name) - start) % HASH_RANGE, name

        others = (name for name in self._standing.best_nodes(names, uid) if name not in self._own)
        for _, _, name in merge(sorted(ranked(names & self._own.keys())), ranked(others)):
            yield name

    def rejections_of(self, names: AbstractSet[str]) -> Rejections:
        """As ``Standing.refused``."""
        own = {name: self.evaluator(state) for name, state in self._own.items() if name in names}
        found = {name: _TEXTS[each] for name, each in own.items() if isinstance(each, Reason)}
        return self._standing.rejections_of(names).with_reasons(found)

    def uncertain_nodes(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """As ``Standing.unsure``."""
        own = {
            name for name in self._own.keys() & names if self.score_of(name) is None and is_uncertain(self._own[name])
        }
        return (self._standing.uncertain_nodes(names) - self._own.keys()) | own


class Rankings:
    """Those of the profiles that were asked for last."""

    def __init__(self, source: SnapshotSource, most: int = MAX_PROFILES) -> None:
        self._source = source
        self._most = most
        self._rankings: OrderedDict[tuple[PodProfile, Policy], tuple[NodeRanking, int]] = OrderedDict()
        self._roll = NodeIndex()
        self._mark = -1  # of the roll: before all changes

    def ranking_for(self, profile: PodProfile, policy: Policy) -> NodeRanking:
        """How all nodes stand now for pods of that profile."""
        key = (profile, policy)
        table = self._source.table
        held = self._rankings.pop(key, None)
        if self._mark != self._source.change_log.mark:
            self._roll.catch_up(table, self._source.change_log.names_since(self._mark))
            self._mark = self._source.change_log.mark
        changed = None if held is None else self._source.change_log.names_since(held[1])
        if held is None or changed is None:
            standing = NodeRanking(evaluator_for(profile, policy), table, self._roll)
        else:
            standing = held[0]
            standing.catch_up(table, changed)
        self._rankings[key] = (standing, self._source.change_log.mark)
        if len(self._rankings) > self._most:
            self._rankings.popitem(last=False)
        return standing


def rounded_points(found: Evaluation) -> int:
    """A verdict as the protocol wants it: 0 to 10."""
    return found.rounded if isinstance(found, Score) else 0


def within_points(best: Iterable[str], score: Callable[[str], Score | None], within: float) -> Iterator[str]:
    """Of nodes that suit, best first, those within so many points of the first."""
    least = -inf
    for name in best:
        found = score(name)
        assert found is not None  # it suits
        if found.points < least:
            return
        least = max(least, found.points - within)
        yield name
