"""Members onto nodes of a few classes: as many as possible, on as few nodes as possible, as well as possible. Pure.

Exact where that is few enough steps: of each number of members the best way to place them is worked out, node after
node. Else greedy: the node that takes most comes first, of several that take all that is left the best; then members
move to nodes of other classes where they do better. With members of one kind the greedy way is exact about how many
fit and on how many nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduler_core.gangs.fitting import Fitting, Ground, Load

_ALWAYS = 16  # of the budget: what one packing may take of it, as a part, so that there is something for all


class Class(NamedTuple):
    """Nodes that are alike for the gang."""

    ground: Ground
    allowed: tuple[bool, ...]  # kinds that kube-scheduler would take there
    used: bool = False  # siblings are there already: one more node costs nothing


class Pick(NamedTuple):
    """What comes onto one node of a class."""

    of: Class
    load: Load
    points: int


class Packing(NamedTuple):
    """Members and their nodes."""

    picks: tuple[Pick, ...] = ()
    exact: bool = True  # there is none that is better

    @property
    def members(self) -> int:
        """How many have a place."""
        return sum(sum(pick.load) for pick in self.picks)

    @property
    def nodes(self) -> int:
        """How many nodes they need that siblings are not on."""
        return sum(not pick.of.used for pick in self.picks)

    @property
    def rank(self) -> tuple[int, int, int]:
        """What packings compare by; smaller is better."""
        return -self.members, self.nodes, -sum(pick.points for pick in self.picks)


class Budget:
    """How many steps are left, for all that is tried for one gang."""

    def __init__(self, steps: int, out_of_time: Callable[[], bool]) -> None:
        self.taken = 0
        self._steps = steps
        self._out_of_time = out_of_time
        self._late = False

    @property
    def share(self) -> int:
        """What the next packing may take."""
        return max(0, self._steps - self.taken) // _ALWAYS

    @property
    def late(self) -> bool:
        """Whether to come to an end. Once it is, it stays."""
        self._late = self._late or self._out_of_time()
        return self._late


Stock = Mapping[Class, int]  # nodes of each class, in the order that decides between equals


def packed(stock: Stock, wanted: Load, fitting: Fitting, budget: Budget) -> Packing:
    """The best packing of as many of the wanted as fit."""
    found = None if budget.late else _exact(stock, wanted, fitting, budget)
    if found is not None:
        return found
    orders = [tuple(range(len(wanted))), tuple(reversed(range(len(wanted))))][: len(wanted)]
    tries = [_greedy(stock, wanted, fitting, budget, order) for order in orders]
    return min((_improved(each, stock, fitting, budget) for each in tries), key=lambda each: each.rank)


def room(stock: Stock, wanted: Load, fitting: Fitting) -> int:
    """Of the wanted, as many as fit at the very most."""
    return sum(_of_kind(stock, wanted, fitting, at) for at in range(len(wanted)))


def _of_kind(stock: Stock, wanted: Load, fitting: Fitting, at: int) -> int:
    """As many of one kind as fit where there are no others."""
    found = 0
    for each, nodes in stock.items():
        if found >= wanted[at]:
            break
        found += nodes * fitting.filled(each.ground, wanted, each.allowed, (at,))[at]
    return min(found, wanted[at])


class _Way(NamedTuple):
    """The best way so far to place some members."""

    nodes: int
    minus: int  # points, negative
    last: Pick | None = None
    before: _Way | None = None

    def picks(self) -> Iterator[Pick]:
        way: _Way | None = self
        while way is not None and way.last is not None:
            yield way.last
            way = way.before


def _exact(stock: Stock, wanted: Load, fitting: Fitting, budget: Budget) -> Packing | None:
    """None where it takes too many steps."""
    left = budget.share
    ways: dict[Load, _Way] = {(0,) * len(wanted): _Way(0, 0)}
    for each, nodes in stock.items():
        picks = [Pick(each, *found) for found in fitting.loads(each.ground, wanted, each.allowed)]
        for _ in range(min(nodes, sum(wanted))):
            steps = len(ways) * len(picks)
            budget.taken += min(steps, max(left, 0))
            left -= steps
            if left < 0 or budget.late:
                return None
            if not _one_more(ways, picks, wanted):
                break
    best = min(ways, key=lambda load: (-sum(load), ways[load].nodes, ways[load].minus, load))
    return Packing(tuple(ways[best].picks()))


def _one_more(ways: dict[Load, _Way], picks: Sequence[Pick], wanted: Load) -> bool:
    """Use one more node. Answers whether that made anything better."""
    better: dict[Load, _Way] = {}
    for load, way in ways.items():
        for pick in picks:
            after = tuple(map(sum, zip(load, pick.load, strict=True)))
            if any(one > most for one, most in zip(after, wanted, strict=True)):
                continue
            nodes, minus = way.nodes + (not pick.of.used), way.minus - pick.points
            known = better.get(after) or ways.get(after)
            if known is None or (nodes, minus) < (known.nodes, known.minus):
                better[after] = _Way(nodes, minus, pick, way)
    ways.update(better)
    return bool(better)


def _greedy(stock: Stock, wanted: Load, fitting: Fitting, budget: Budget, order: Sequence[int]) -> Packing:
    """One class after the other, always the one whose nodes take most of what is left."""
    left, remaining = dict(stock), wanted
    picks: list[Pick] = []
    while any(remaining):
        budget.taken += len(left)
        found = [pick for each in left if (pick := _filled(each, remaining, fitting, order)) is not None]
        if not found:
            break
        pick = min(found, key=lambda each: _urge(each, fitting))
        times = min(left[pick.of], *(have // take for have, take in zip(remaining, pick.load, strict=True) if take))
        picks += [pick] * times
        remaining = tuple(have - times * take for have, take in zip(remaining, pick.load, strict=True))
        left[pick.of] -= times
        if not left[pick.of]:
            del left[pick.of]
    return Packing(tuple(picks), exact=False)


def _urge(pick: Pick, fitting: Fitting) -> tuple[int, int, int]:
    """Nodes of siblings first, then those that take most, then those where members do best."""
    return not pick.of.used, -fitting.devices(pick.load), -pick.points


def _filled(each: Class, remaining: Load, fitting: Fitting, order: Sequence[int]) -> Pick | None:
    load = fitting.filled(each.ground, remaining, each.allowed, order)
    points = fitting.points(each.ground, load)
    return Pick(each, load, points) if any(load) and isinstance(points, int) else None


def _improved(packing: Packing, stock: Stock, fitting: Fitting, budget: Budget) -> Packing:
    """The same members together, each lot on a node where it does best."""
    free = dict(stock)
    for pick in packing.picks:
        free[pick.of] -= 1
    picks = []
    for pick in packing.picks:
        budget.taken += len(free)
        best = pick
        for other, nodes in free.items():
            suits = all(other.allowed[kind] for kind, number in enumerate(pick.load) if number)
            if nodes and suits and other.used >= pick.of.used:
                points = fitting.points(other.ground, pick.load)
                best = Pick(other, pick.load, points) if isinstance(points, int) and points > best.points else best
        free[pick.of] += 1
        free[best.of] -= 1
        picks.append(best)
    return Packing(tuple(picks), exact=False)
