"""Members onto nodes of a few classes: as many as possible, on as few nodes as possible, as well as possible. Pure.

Greedy first: often nothing better can be. Else exact, where that is few enough steps.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.gangs.exhaustive import Known, exhaustive
from scheduler_core.gangs.fitting import Fitting
from scheduler_core.gangs.greedy import greedy, improved
from scheduler_core.gangs.packs import Budget, Packing, Stock, at_most


class Bound(NamedTuple):
    """No packing is better than that. Compares as ``Packing.rank``."""

    members: int  # negative
    nodes: int
    points: int  # negative


def packed(stock: Stock, fitting: Fitting, budget: Budget, hope: Bound) -> Packing:
    """The best packing of as many of the wanted as fit. ``hope``: what ``bound`` says of it."""
    kinds = range(len(fitting.wanted))
    orders = [kinds, kinds[::-1]][: max(1, len(kinds))]
<<<<<<< HEAD
    tries = [_greedy(stock, fitting, budget, order) for order in orders]
    found = min((_improved(each, stock, fitting, budget) for each in tries), key=lambda each: each.rank)
=======
    tries = [greedy(stock, fitting, budget, order) for order in orders]
    found = min((improved(each, stock, fitting, budget) for each in tries), key=lambda each: each.rank)
>>>>>>> ff4d1eef3306ffcbec514e903e1ba90962664e9c
    if found.rank <= hope:
        return found._replace(exact=True)
    if budget.late:
        return found
    # Where not all fit that may, more may fit on more nodes; and nodes of siblings are not counted.
    good = found.members == -hope.members and not any(each.used for each in stock)
<<<<<<< HEAD
    most = max(sum(_alone(each, fitting)) for each in stock)
    return _exact(stock, fitting, budget, _Known(found.members if good else 0, found.nodes, most)) or found
=======
    most = max(sum(at_most(each, fitting)) for each in stock)
    return exhaustive(stock, fitting, budget, Known(found.members if good else 0, found.nodes, most)) or found
>>>>>>> ff4d1eef3306ffcbec514e903e1ba90962664e9c


def bound(stock: Stock, fitting: Fitting) -> Bound:
    """What a packing can be at the very best; of one kind of members the number of nodes is exact."""
    wanted = fitting.wanted
    takes = {each: at_most(each, fitting) for each in stock}
    members = sum(
        min(most, sum(nodes * takes[each][at] for each, nodes in stock.items())) for at, most in enumerate(wanted)
    )
<<<<<<< HEAD
    left, needed, most = members, 0, max(map(sum, alone.values()), default=0)
    for each in sorted(stock, key=lambda each: (not each.used, -sum(alone[each]))):
=======
    left, needed, most = members, 0, max(map(sum, takes.values()), default=0)
    for each in sorted(stock, key=lambda each: (not each.used, -sum(takes[each]))):
>>>>>>> ff4d1eef3306ffcbec514e903e1ba90962664e9c
        if left <= 0:
            break
        nodes = min(stock[each], -(-left // max(1, sum(takes[each]))))
        left -= nodes * sum(takes[each])
        needed += 0 if each.used else nodes
    # On so few nodes each has so many at least.
    least = 1 if any(each.used for each in stock) else most - (needed * most - members)
<<<<<<< HEAD
    per_member = max((fitting.per_member(each.ground, max(1, least)) for each in stock), default=0.0)
    return Bound(-members, needed, -int(members * per_member + 0.5))


def _alone(each: Class, fitting: Fitting) -> list[int]:
    """Members of each kind that a node takes where there are no others."""
    return [fitting.alone(each.ground, at) if suits else 0 for at, suits in enumerate(each.allowed)]


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


class _Known(NamedTuple):
    """A packing that there is: only what may become as good is followed."""

    members: int
    nodes: int
    most: int  # members that one more node takes

    def left(self, load: Load, nodes: int) -> bool:
        """Whether so many members on so many nodes may become as good."""
        return sum(load) + max(0, self.nodes - nodes) * self.most >= self.members


def _exact(stock: Stock, fitting: Fitting, budget: Budget, known: _Known) -> Packing | None:
    """None where it takes too many steps."""
    left, wanted = budget.share, fitting.wanted
    ways: dict[Load, _Way] = {(0,) * len(wanted): _Way(0, 0)}
    for each, nodes in stock.items():
        picks = [Pick(each, *found) for found in fitting.loads(each.ground, wanted, each.allowed)]
        for _ in range(min(nodes, sum(wanted))):
            steps = len(ways) * len(picks)
            budget.taken += min(steps, max(left, 0))
            left -= steps
            if left < 0 or budget.late:
                return None
            if not _one_more(ways, picks, wanted, known):
                break
    best = min(ways, key=lambda load: (-sum(load), ways[load].nodes, ways[load].minus, load))
    return Packing(tuple(ways[best].picks()))


def _one_more(ways: dict[Load, _Way], picks: Sequence[Pick], wanted: Load, known: _Known) -> bool:
    """Use one more node. Answers whether that made anything better."""
    better: dict[Load, _Way] = {}
    for load, way in ways.items():
        for pick in picks:
            after = tuple(map(add, load, pick.load))
            nodes, minus = way.nodes + (not pick.of.used), way.minus - pick.points
            if any(map(gt, after, wanted)) or not known.left(after, nodes):
                continue
            other = better.get(after) or ways.get(after)
            if other is None or (nodes, minus) < (other.nodes, other.minus):
                better[after] = _Way(nodes, minus, pick, way)
    ways.update(better)
    return bool(better)


def _greedy(stock: Stock, fitting: Fitting, budget: Budget, order: Sequence[int]) -> Packing:
    """One class after the other, always the one whose nodes take most of what is left."""
    left, remaining = dict(stock), fitting.wanted
    found = [_urged(number, each, remaining, fitting, order) for number, each in enumerate(stock)]
    queue = [each for each in found if each is not None]
    heapify(queue)
    picks: list[Pick] = []
    while queue and any(remaining):
        budget.taken += 1
        _, number, pick = heappop(queue)
        if any(take > have for take, have in zip(pick.load, remaining, strict=True)):
            again = _urged(number, pick.of, remaining, fitting, order)
            if again is not None:
                heappush(queue, again)
            continue
        times = min(left[pick.of], *(have // take for have, take in zip(remaining, pick.load, strict=True) if take))
        picks += [pick] * times
        remaining = tuple(have - times * take for have, take in zip(remaining, pick.load, strict=True))
        left[pick.of] -= times
        if left[pick.of]:
            heappush(queue, (_urge(pick, fitting), number, pick))
    return Packing(tuple(picks), exact=False)


_Urge = tuple[int, int, int]


def _urged(
    number: int, each: Class, remaining: Load, fitting: Fitting, order: Sequence[int]
) -> tuple[_Urge, int, Pick] | None:
    """What comes onto a node of the class. It stays that until there are fewer left of some kind than that."""
    load = fitting.filled(each.ground, remaining, each.allowed, order)
    points = fitting.points(each.ground, load)
    if not any(load) or not isinstance(points, int):
        return None
    pick = Pick(each, load, points)
    return _urge(pick, fitting), number, pick


def _urge(pick: Pick, fitting: Fitting) -> _Urge:
    """Nodes of siblings first, then those that take most, then those where members do best."""
    return not pick.of.used, -fitting.devices(pick.load), -pick.points


def _improved(packing: Packing, stock: Stock, fitting: Fitting, budget: Budget) -> Packing:
    """The same members together, each lot on a node where it does best."""
    free = Counter(stock)
    free.subtract(pick.of for pick in packing.picks)
    better: dict[Load, list[Pick]] = {}
    picks = []
    for pick in packing.picks:
        if pick.load not in better:
            budget.taken += len(free)
            better[pick.load] = _best_first(pick.load, stock, fitting)
        others = takewhile(lambda other, pick=pick: other.points > pick.points, better[pick.load])  # type: ignore[misc]
        best = next((other for other in others if free[other.of] and other.of.used >= pick.of.used), pick)
        free[pick.of] += 1
        free[best.of] -= 1
        picks.append(best)
    return Packing(tuple(picks), exact=False)


def _best_first(load: Load, stock: Stock, fitting: Fitting) -> list[Pick]:
    """That load on a node of each class that takes it."""
    kinds = [at for at, number in enumerate(load) if number]
    suited = (each for each in stock if all(each.allowed[at] for at in kinds))
    found = ((each, fitting.points(each.ground, load)) for each in suited)
    picks = [Pick(each, load, points) for each, points in found if isinstance(points, int)]
    return sorted(picks, key=lambda pick: -pick.points)
=======
    per_member = max((fitting.per_member(each.ground, least) for each in stock), default=0.0)
    return Bound(-members, needed, -int(members * per_member + 0.5))
>>>>>>> ff4d1eef3306ffcbec514e903e1ba90962664e9c
