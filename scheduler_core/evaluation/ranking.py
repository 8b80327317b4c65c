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
from scheduler_core.cache.change_log import Changes
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.evaluation.evaluate import RING, Judged, Verdict, on_ring, remembered
from scheduler_core.evaluation.in_flight import promising
from scheduler_core.evaluation.refusals import Refusals
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import is_unsure
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import Profile

MOST = 64  # profiles; of 15,000 nodes each takes about a megabyte
_TEXTS = {reason: reason.value for reason in Reason}
_UNKNOWN = Reason.UNKNOWN_NODE.value
_STRETCH = 256  # places on the ring that are looked at in one go
_FEW = 16  # where this many times more nodes pass than are named, the named ones are ranked instead

Place = tuple[int, str]  # on the ring, and whose it is


class Source(Protocol):
    """Whose nodes these are."""

    changes: Changes

    @property
    def table(self) -> NodeTable:
        """All nodes, now. Brings ``changes`` up to date."""
        ...


class Roll:
    """All nodes as they are now, in the forms that all standings walk. To look one up in a table costs three times."""

    def __init__(self) -> None:
        self.states: dict[str, NodeState] = {}
        self.promising: set[str] = set()  # nodes where doubts decide something (``doubts.promising``)
        self.unsure: set[str] = set()  # nodes of which not all is known (``hopes.is_unsure``)
        self.ring: list[Place] = []

    def follow(self, table: NodeTable, changed: Iterable[str] | None) -> None:
        """Catch up with a younger table; where it is not known what changed, with all of it."""
        if changed is None:
            self.states, self.promising, self.unsure = {}, set(), set()
            changed = table.states
        moved = False
        for name in changed:
            old, new = self.states.pop(name, None), table.states.get(name)
            moved |= (old is None) is not (new is None)
            self.promising.discard(name)
            self.unsure.discard(name)
            if new is not None:
                self.states[name] = new
                if promising(new):
                    self.promising.add(name)
                if is_unsure(new):
                    self.unsure.add(name)
        if moved:
            self.ring = sorted((on_ring(name), name) for name in self.states)


class Standing:
    """How all nodes stand for one profile."""

    def __init__(self, judged: Judged, table: NodeTable, roll: Roll) -> None:
        self.judged = judged
        self.table = table
        self._roll = roll
        self._failing: dict[str, set[str]] = {}  # reason -> nodes
        self._ranked: dict[float, list[Place]] = {}  # points -> nodes, in the order of the ring
        refused: dict[Reason, list[Place]] = {}
        place_of = {}
        for state in set(roll.states.values()):
            found = judged(state)
            if isinstance(found, Score):
                place_of[state] = self._ranked.setdefault(found.points, []).append
            else:
                place_of[state] = refused.setdefault(found, []).append
        for place in roll.ring:  # with ``points``, the only loops over all nodes
            place_of[roll.states[place[1]]](place)
        for reason, equal in refused.items():
            self._failing[_TEXTS[reason]] = {name for _, name in equal}

    @property
    def promising(self) -> AbstractSet[str]:
        """The nodes where doubts decide something, whatever is asked."""
        return self._roll.promising

    def follow(self, table: NodeTable, changed: Iterable[str]) -> None:
        """Catch up with a younger table."""
        before, after = self.table.states, table.states
        for name in changed:
            old, new = before.get(name), after.get(name)
            if old is not new:
                self._leave(name, old)
                self._enter(name, new)
        self.table = table

    def score(self, name: str) -> Score | None:
        """How well that node does; None where it does not suit."""
        state = self.table.states.get(name)
        found = None if state is None else self.judged(state)
        return found if isinstance(found, Score) else None

    def points(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """How well each of the named nodes does, as the protocol wants it."""
        states = list(map(self._roll.states.get, names))
        points_of = {state: 0 if state is None else points(self.judged(state)) for state in set(states)}
        return list(zip(names, map(points_of.__getitem__, states), strict=True))

    def best(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """Those of the named nodes that suit, best first; of equals in the pod's own order (``shortlist``)."""
        return chain.from_iterable(self._stretches(names, uid))

    def _stretches(self, names: AbstractSet[str], uid: str) -> Iterator[list[str]]:
        start = (on_ring(uid), "")
        few = len(names) * _FEW < len(self.table.states) - sum(map(len, self._failing.values()))
        ranked = self._ranked_few(names) if few else self._ranked
        for points in sorted(ranked, reverse=True):
            equal = ranked[points]
            at = bisect_left(equal, start)
            for low, end in ((at, len(equal)), (0, at)):
                for since in range(low, end, _STRETCH):
                    stretch = equal[since : min(end, since + _STRETCH)]
                    yield [name for _, name in stretch if name in names]

    def refused(self, names: AbstractSet[str]) -> Refusals:
        """Why the named nodes do not suit, none of which does. Sets are told apart several times as fast as names."""
        usual = max(self._failing, key=lambda reason: len(self._failing[reason]), default=_UNKNOWN)
        left = names - self._failing.get(usual, frozenset())
        others = dict.fromkeys(left, _UNKNOWN)
        for reason, failing in self._failing.items():
            others.update(dict.fromkeys(left & failing, reason))
        return Refusals(names, usual, others)

    def unsure(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Those of the named nodes that do not suit, as far as is known: not all is known of their GPUs."""
        unsure = self._roll.unsure & names
        return frozenset().union(*(unsure & failing for failing in self._failing.values()))

    def _enter(self, name: str, state: NodeState | None) -> None:
        found = None if state is None else self.judged(state)
        if isinstance(found, Score):
            insort(self._ranked.setdefault(found.points, []), (on_ring(name), name))
        elif found is not None:
            self._failing.setdefault(_TEXTS[found], set()).add(name)

    def _leave(self, name: str, state: NodeState | None) -> None:
        found = None if state is None else self.judged(state)
        if isinstance(found, Score):
            equal = self._ranked[found.points]
            del equal[bisect_left(equal, (on_ring(name), name))]
            if not equal:
                del self._ranked[found.points]
        elif found is not None:
            failing = self._failing[_TEXTS[found]]
            failing.remove(name)
            if not failing:
                del self._failing[_TEXTS[found]]

    def _ranked_few(self, names: Iterable[str]) -> dict[float, list[Place]]:
        ranked: dict[float, list[Place]] = {}
        for name in names:
            found = self.score(name)
            if found is not None:
                ranked.setdefault(found.points, []).append((on_ring(name), name))
        for equal in ranked.values():
            equal.sort()
        return ranked


class Outlook:
    """A standing as one pod sees it: a few nodes differ, those with other pods of its owner or a place kept for it."""

    def __init__(self, standing: Standing, table: NodeTable, nodes: Iterable[str]) -> None:
        """``nodes``: those whose states differ."""
        self.table = table
        self.judged = standing.judged
        self._standing = standing
        self._own = {name: table.states[name] for name in nodes if name in table.states}

    def score(self, name: str) -> Score | None:
        """How well that node does; None where it does not suit."""
        if name not in self._own:
            return self._standing.score(name)
        found = self.judged(self._own[name])
        return found if isinstance(found, Score) else None

    def points(self, names: AbstractSet[str]) -> list[tuple[str, int]]:
        """As ``Standing.points``."""
        own = [(name, points(self.judged(state))) for name, state in self._own.items() if name in names]
        return self._standing.points(names - self._own.keys()) + own

    @property
    def promising(self) -> AbstractSet[str]:
        """As ``Standing.promising``; among these may be one where only the pod's own place is."""
        return self._standing.promising

    def best(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """As ``Standing.best``."""
        start = on_ring(uid)

        def ranked(these: Iterable[str]) -> Iterator[tuple[float, int, str]]:
            for name in these:
                score = self.score(name)
                if score is not None:
                    yield -score.points, (on_ring(name) - start) % RING, name

        others = (name for name in self._standing.best(names, uid) if name not in self._own)
        for _, _, name in merge(sorted(ranked(names & self._own.keys())), ranked(others)):
            yield name

    def refused(self, names: AbstractSet[str]) -> Refusals:
        """As ``Standing.refused``."""
        own = {name: self.judged(state) for name, state in self._own.items() if name in names}
        found = {name: _TEXTS[each] for name, each in own.items() if isinstance(each, Reason)}
        return self._standing.refused(names).but(found)

    def unsure(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """As ``Standing.unsure``."""
        own = {name for name in self._own.keys() & names if self.score(name) is None and is_unsure(self._own[name])}
        return (self._standing.unsure(names) - self._own.keys()) | own


class Standings:
    """Those of the profiles that were asked for last."""

    def __init__(self, source: Source, most: int = MOST) -> None:
        self._source = source
        self._most = most
        self._held: OrderedDict[tuple[Profile, Policy], tuple[Standing, int]] = OrderedDict()
        self._roll = Roll()
        self._mark = -1  # of the roll: before all changes

    def of(self, profile: Profile, policy: Policy) -> Standing:
        """How all nodes stand now for pods of that profile."""
        key = (profile, policy)
        table = self._source.table
        held = self._held.pop(key, None)
        if self._mark != self._source.changes.mark:
            self._roll.follow(table, self._source.changes.since(self._mark))
            self._mark = self._source.changes.mark
        changed = None if held is None else self._source.changes.since(held[1])
        if held is None or changed is None:
            standing = Standing(remembered(profile, policy), table, self._roll)
        else:
            standing = held[0]
            standing.follow(table, changed)
        self._held[key] = (standing, self._source.changes.mark)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return standing


def points(found: Verdict) -> int:
    """A verdict as the protocol wants it: 0 to 10."""
    return found.rounded if isinstance(found, Score) else 0


def near(best: Iterable[str], score: Callable[[str], Score | None], within: float) -> Iterator[str]:
    """Of nodes that suit, best first, those within so many points of the first."""
    least = -inf
    for name in best:
        found = score(name)
        assert found is not None  # it suits
        if found.points < least:
            return
        least = max(least, found.points - within)
        yield name
