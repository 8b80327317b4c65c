"""How all nodes stand for pods of one profile, kept from one request to the next.

The same answers as ``evaluate``, at the cost of what is asked for: only nodes that changed are judged again, and a
request looks at the best nodes until it has enough, not at all that are named.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from math import inf
from typing import Protocol

from gputopo.labels.reasons import Reason
from scheduler_core.changes import Changes
from scheduler_core.evaluate import Judged, on_ring, remembered
from scheduler_core.hopes import is_unsure
from scheduler_core.nodes import NodeState, NodeTable
from scheduler_core.policy import Policy
from scheduler_core.request import Profile
from scheduler_core.scores import Score

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


class Standing:
    """How all nodes stand for one profile."""

    def __init__(self, judged: Judged, table: NodeTable, ring: Iterable[Place]) -> None:
        self.judged = judged
        self.table = table
        self._failing: dict[str, str] = {}  # node -> reason
        self._unsure: set[str] = set()  # of the failing ones
        self._ranked: dict[float, list[Place]] = {}  # points -> nodes, in the order of the ring
        for place in ring:
            state = table.states[place[1]]
            found = judged(state)
            if isinstance(found, Score):
                self._ranked.setdefault(found.points, []).append(place)
            else:
                self._fail(place[1], state, found)

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

    def best(self, names: AbstractSet[str], uid: str) -> Iterator[str]:
        """Those of the named nodes that suit, best first; of equals in the pod's own order (``shortlist``)."""
        start = (on_ring(uid), "")
        few = len(names) * _FEW < len(self.table.states) - len(self._failing)
        ranked = self._ranked_few(names) if few else self._ranked
        for points in sorted(ranked, reverse=True):
            equal = ranked[points]
            at = bisect_left(equal, start)
            for low, end in ((at, len(equal)), (0, at)):
                for since in range(low, end, _STRETCH):
                    for _, name in equal[since : min(end, since + _STRETCH)]:
                        if name in names:
                            yield name

    def near(self, best: Iterable[str], within: float) -> Iterator[str]:
        """Of nodes that suit, best first, those within so many points of the first."""
        least = -inf
        for name in best:
            found = self.score(name)
            assert found is not None  # it suits
            if found.points < least:
                return
            least = max(least, found.points - within)
            yield name

    def refused(self, names: AbstractSet[str]) -> dict[str, str]:
        """Why the named nodes do not suit, none of which does."""
        reason = self._failing.get
        return {name: reason(name, _UNKNOWN) for name in names}

    def unsure(self, names: AbstractSet[str]) -> AbstractSet[str]:
        """Those of the named nodes that do not suit, as far as is known: not all is known of their GPUs."""
        return self._unsure & names

    def _enter(self, name: str, state: NodeState | None) -> None:
        found = None if state is None else self.judged(state)
        if isinstance(found, Score):
            insort(self._ranked.setdefault(found.points, []), (on_ring(name), name))
        elif found is not None and state is not None:
            self._fail(name, state, found)

    def _fail(self, name: str, state: NodeState, reason: Reason) -> None:
        self._failing[name] = _TEXTS[reason]
        if is_unsure(state):
            self._unsure.add(name)

    def _leave(self, name: str, state: NodeState | None) -> None:
        self._unsure.discard(name)
        if self._failing.pop(name, None) is None and state is not None:
            found = self.judged(state)
            assert isinstance(found, Score)  # it is not failing
            equal = self._ranked[found.points]
            del equal[bisect_left(equal, (on_ring(name), name))]
            if not equal:
                del self._ranked[found.points]

    def _ranked_few(self, names: Iterable[str]) -> dict[float, list[Place]]:
        ranked: dict[float, list[Place]] = {}
        for name in names:
            found = self.score(name)
            if found is not None:
                ranked.setdefault(found.points, []).append((on_ring(name), name))
        for equal in ranked.values():
            equal.sort()
        return ranked


class Standings:
    """Those of the profiles that were asked for last."""

    def __init__(self, source: Source, most: int = MOST) -> None:
        self._source = source
        self._most = most
        self._held: OrderedDict[tuple[Profile, Policy], tuple[Standing, int]] = OrderedDict()
        self._ring: list[Place] = []
        self._ring_of: NodeTable = NodeTable()
        self._ring_mark = -1  # before all changes

    def of(self, profile: Profile, policy: Policy) -> Standing:
        """How all nodes stand now for pods of that profile."""
        key = (profile, policy)
        table = self._source.table
        held = self._held.pop(key, None)
        changed = None if held is None else self._source.changes.since(held[1])
        if held is None or changed is None:
            standing = Standing(remembered(profile, policy), table, self._places(table))
        else:
            standing = held[0]
            standing.follow(table, changed)
        self._held[key] = (standing, self._source.changes.mark)
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return standing

    def _places(self, table: NodeTable) -> list[Place]:
        """All nodes, in the order of the ring."""
        changed = self._source.changes.since(self._ring_mark)
        before, after = self._ring_of.records, table.records
        if changed is None or any((name in before) != (name in after) for name in changed):
            self._ring = sorted((on_ring(name), name) for name in after)
        self._ring_of, self._ring_mark = table, self._source.changes.mark
        return self._ring
