"""Which GPUs of a machine can be exchanged without any other change: sets that are equal up to that. Pure.

GPUs and pairs of GPUs have labels. GPUs with equal labels that all others see in the same way can be exchanged. They
form a part, and parts of one kind that all others see in the same way can be exchanged too, and so on: up to the whole
machine, if it is a tree of switches, or if all pairs are alike. There are machines with other exchanges, such as a cube
mesh; not to find them costs time, not correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations_with_replacement, groupby, product
from math import comb
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputopo.recent_results import recent_results
from scheduler_core.allocation.gpu_sets import union

_REMEMBERED, _REMEMBERED_EXCHANGES, _REMEMBERED_CHOICES = 1 << 12, 1 << 10, 1 << 10  # of each machine shape
_FEW = 64
_MOST_WASTED = 16  # combinations that are too large, for each that is not

Order = tuple[int, ...]
T = TypeVar("T")


class _Part(msgspec.Struct, frozen=True, eq=False):
    """GPUs that all other GPUs see in the same way; or the whole machine."""

    kind: int  # parts of one kind can be exchanged: their places correspond by position
    places: Order
    gpus: int  # the same as a set
    parts: tuple[_Part, ...] = ()
    equal: bool = True  # its parts can be exchanged


# GPUs, and the equal parts which they form, each with its own groups. No parts: any of the GPUs can be exchanged.
_Group = tuple[int, tuple[tuple["_Group", ...], ...]]


class _Arranged(NamedTuple):
    """A part, its GPUs ordered by their marks as far as exchanges permit."""

    marks: Order
    places: Order
    parts: tuple[_Arranged, ...] = ()
    equal: bool = True  # its parts with the same marks can be exchanged
    groups: tuple[_Group, ...] = ()  # its GPUs and parts, by which of them can be exchanged


class Permutation(NamedTuple):
    """A permutation of the GPUs of a machine."""

    places: Order  # the new place of each GPU

    def apply(self, mask: int) -> int:
        """Return the set after the exchange."""
        places, moved = self.places, 0
        while mask:
            lowest = mask & -mask
            moved |= 1 << places[lowest.bit_length() - 1]
            mask ^= lowest
        return moved

    def apply_all(self, masks: Collection[int]) -> list[int]:
        """Return the sets after the exchange; many of them are looked up byte by byte."""
        if len(masks) < _FEW:
            return list(map(self.apply, masks))
        if len(self.places) <= 8:
            (low,) = _moved_bytes(self)
            return [low[mask] for mask in masks]
        if len(self.places) > 16:
            return list(map(self.apply, masks))
        low, high = _moved_bytes(self)
        return [low[mask & 255] | high[mask >> 8] for mask in masks]

    @property
    def inverse(self) -> Permutation:
        """The exchange that undoes this one."""
        return Permutation(tuple(sorted(range(len(self.places)), key=self.places.__getitem__)))


class Symmetry:
    """The exchanges of GPUs that keep the label of each GPU and of each pair."""

    def __init__(self, gpus: Sequence[Hashable], pair: Callable[[int, int], Hashable]) -> None:
        """``gpus``: the label of each GPU; ``pair``: the label of two GPUs, whichever comes first."""
        self._size = len(gpus)
        self._whole = _join_parts(gpus, pair)
        self.is_trivial = not self._whole.equal and len(self._whole.parts) == self._size  # no GPUs can be exchanged
        self._arranged_part = recent_results(_REMEMBERED)(self._arrange_part)
        self.permutation = recent_results(_REMEMBERED)(self._permutation)
        self._exchanges = lru_cache(maxsize=_REMEMBERED_EXCHANGES)(self._find_exchanges)
        self._groups_for = lru_cache(maxsize=_REMEMBERED_EXCHANGES)(self._find_groups)
        self.canonical = lru_cache(maxsize=_REMEMBERED)(self._canonical)
        self._code = lru_cache(maxsize=_REMEMBERED)(self._find_code)
        self._choices = lru_cache(maxsize=_REMEMBERED_CHOICES)(self._find_choices)
        self._place_of_bit = Permutation(self._whole.places[::-1])

    def _permutation(self, *masks: int) -> Permutation:
        """Return an exchange for some sets together; sets that are equal up to exchanges become the same sets."""
        places = [0] * self._size
        for new, old in zip(self._whole.places, self._arrange_part(self._whole, *masks).places, strict=True):
            places[old] = new
        return Permutation(tuple(places))

    def _canonical(self, mask: int) -> int:
        """Return the same set for all sets that are equal up to exchanges: what ``permutation`` makes of the set."""
        return mask if self.is_trivial else self._place_of_bit.apply(self._find_code(self._whole, mask))

    def _find_code(self, part: _Part, mask: int) -> int:
        """Return the marks of the GPUs of a part when it is arranged for this set; its first GPU is the highest bit."""
        if not part.parts:
            return 1 if mask else 0
        codes = [self._code(each, mask & each.gpus) for each in part.parts]
        if part.equal:
            codes.sort()
        found = 0
        for each, code in zip(part.parts, codes, strict=True):
            found = found << len(each.places) | code
        return found

    def form(self, *masks: int) -> Hashable:
        """Return the same value for all sequences of sets that are equal up to exchanges."""
        whole, arranged = self._whole, self._arranged_part
        found = [arranged(each, *[mask & each.gpus for mask in masks]).marks for each in whole.parts or (whole,)]
        if whole.equal:
            found.sort()
        return tuple(found)

    def representatives(self, among: int, size: int, most: int) -> list[int] | None:
        """Return the subsets of this size, but only some of those that are equal up to exchanges within ``among``.

        None: there would be more than ``most``.
        """
        found = self._find_choices(self._whole, among, size, most)
        return None if found is None else [mask for mask in found if mask.bit_count() == size]

    def _find_choices(self, part: _Part, among: int, size: int, most: int) -> tuple[int, ...] | None:
        """Return subsets of the GPUs ``among`` in a part with at most ``size`` members.

        Of those that are equal up to exchanges within ``among``, only some are returned.
        None: there would be more than ``most``.
        """
        if not part.parts:
            return (0, part.gpus) if among else (0,)
        codes = {each: self._code(each, among & each.gpus) for each in part.parts}
        found = [0]
        for parts in _alike(part.parts, codes.__getitem__, equal=part.equal):
            chosen = [self._choices(each, among & each.gpus, size, most) for each in parts]
            longer = _combine_choices(chosen, size, most)
            if longer is None or len(found) * len(longer) > _MOST_WASTED * most:
                return None
            found = [one | other for one, other in product(found, longer) if (one | other).bit_count() <= size]
            if len(found) > most:
                return None
        return tuple(found)

    def equals(self, fixed: tuple[int, ...], masks: Iterable[int], most: int) -> set[int] | None:
        """Return the sets and all that are equal to them up to exchanges that leave each set of ``fixed`` as it is.

        None: there are more than ``most``.
        """
        return _reached(set(masks), self._exchanges(*fixed), most)

    def distinct(self, fixed: tuple[int, ...], masks: Sequence[int]) -> Sequence[int]:
        """Return some of the sets. Each other is equal to one of them up to exchanges that leave ``fixed`` as it is."""
        unmoved, groups = self._groups_for(*fixed)
        if not groups:
            return masks
        found: dict[Hashable, int] = {}
        for mask in masks:
            found.setdefault((mask & unmoved, *_class_of(groups, mask)), mask)
        return list(found.values())

    def _find_exchanges(self, *fixed: int) -> tuple[Permutation, ...]:
        """Return exchanges that together make up all exchanges which leave these sets as they are."""
        return tuple(_exchanges(self._arrange(self._whole, fixed), self._size))

    def _find_groups(self, *fixed: int) -> tuple[int, tuple[_Group, ...]]:
        """Return the GPUs that no exchange moves which leaves these sets as they are, and the groups of the others."""
        groups = self._arrange(self._whole, fixed).groups
        unmoved = union([gpus for gpus, _ in groups if not gpus & (gpus - 1)])
        return unmoved, tuple([each for each in groups if not each[0] & unmoved])

    def _arrange(self, part: _Part, masks: tuple[int, ...]) -> _Arranged:
        return self._arranged_part(part, *(mask & part.gpus for mask in masks))

    def _arrange_part(self, part: _Part, *masks: int) -> _Arranged:
        if not part.parts:
            marks = tuple([_mark(place, masks) for place in part.places])
            return _Arranged(marks, part.places, groups=((part.gpus, ()),))
        parts = [self._arrange(each, masks) for each in part.parts]
        if part.equal:
            parts.sort()
        groups = _groups(parts) if part.equal else tuple(chain.from_iterable([each.groups for each in parts]))
        marks = tuple(chain.from_iterable([each.marks for each in parts]))
        places = tuple(chain.from_iterable([each.places for each in parts]))
        return _Arranged(marks, places, tuple(parts), part.equal, groups)


def _join_parts(gpus: Sequence[Hashable], pair: Callable[[int, int], Hashable]) -> _Part:
    """Return the machine, divided into parts."""
    kinds: dict[Hashable, int] = {}

    def kind(description: Hashable) -> int:
        return kinds.setdefault(description, len(kinds))

    def between(one: _Part, other: _Part) -> int:
        first, second = sorted((one.places[0], other.places[0]))
        return pairs[first, second]

    size = len(gpus)
    pairs = {(one, other): kind(("pair", pair(one, other))) for other in range(size) for one in range(other)}
    parts = [_Part(kind(("gpu", label)), (place,), 1 << place) for place, label in enumerate(gpus)]
    while True:
        joined: list[list[_Part]] = []
        for part in parts:
            for members in joined:
                one = members[0]
                if one.kind == part.kind and all(
                    between(one, each) == between(part, each) for each in parts if each is not one and each is not part
                ):
                    members.append(part)
                    break
            else:
                joined.append([part])
        if len(joined) == len(parts):
            break
        parts = [_joined(members, kind, between) for members in joined]
    if len(parts) == 1:
        return parts[0]
    return _Part(
        -1, tuple(place for each in parts for place in each.places), (1 << size) - 1, tuple(parts), equal=False
    )


def _joined(members: list[_Part], kind: Callable[[Hashable], int], between: Callable[[_Part, _Part], int]) -> _Part:
    if len(members) == 1:
        return members[0]
    places = tuple(place for each in members for place in each.places)
    number = kind((between(*members[:2]), members[0].kind, len(members)))
    return _Part(number, places, union(each.gpus for each in members), tuple(members))


@lru_cache(maxsize=256)
def _moved_bytes(exchange: Permutation) -> tuple[Order, ...]:
    """Return the results of the exchange for each byte of a set."""
    tables = []
    for first in range(0, len(exchange.places), 8):
        moved = [0]
        for place in exchange.places[first : first + 8]:
            moved += [one | 1 << place for one in moved]
        tables.append(tuple(moved))
    return tuple(tables)


def _mark(place: int, masks: tuple[int, ...]) -> int:
    code = 0
    for mask in masks:
        code = code << 1 | mask >> place & 1
    return code


_marks_of = attrgetter("marks")


def _alike(parts: Sequence[T], marks: Callable[[T], Any], *, equal: bool) -> Iterator[tuple[T, ...]]:
    """Yield the parts that can be exchanged with each other in any way. ``equal``: those with the same marks can be."""
    if not equal:
        yield from ((each,) for each in parts)
        return
    for _, same in groupby(sorted(parts, key=marks), key=marks):
        yield tuple(same)


def _reached(masks: set[int], exchanges: Sequence[Permutation], most: int) -> set[int] | None:
    """Return what the sets become by these exchanges, one after the other; None: more than ``most``."""
    new: Collection[int] = masks
    while new and len(masks) <= most:
        new = set(chain.from_iterable([each.apply_all(new) for each in exchanges])) - masks
        masks |= new
    return masks if len(masks) <= most else None


def _exchanges(arranged: _Arranged, size: int) -> Iterator[Permutation]:
    """Yield few exchanges that make up all others: of parts, the first two, and each for the next one.

    Those inside of one part make up those inside of the others, together with these.
    """
    for parts in _alike(arranged.parts, _marks_of, equal=arranged.equal):
        yield from _exchanges(parts[0], size)
        if len(parts) > 1:
            yield _moved(parts[:2], size)
        if len(parts) > 2:
            yield _moved(parts, size)


def _groups(parts: Sequence[_Arranged]) -> tuple[_Group, ...]:
    """Return the groups of a part whose parts can be exchanged if they have the same marks."""
    found = list[_Group]()
    for alike in _alike(parts, _marks_of, equal=True):
        if len(alike) == 1:
            found += alike[0].groups
        else:
            nested = tuple([each.groups for each in alike]) if alike[0].parts else ()
            found.append((union([1 << place for each in alike for place in each.places]), nested))
    return tuple(found)


def _class_of(groups: tuple[_Group, ...], mask: int) -> tuple[Any, ...]:
    """Return the same value for all sets that are equal up to exchanges of the groups' GPUs and parts."""
    return tuple(
        [
            (mask & gpus).bit_count()
            if not parts
            else tuple(sorted([_class_of(part, mask) for part in parts]))
            if mask & gpus
            else ()
            for gpus, parts in groups
        ]
    )


def _moved(parts: Sequence[_Arranged], size: int) -> Permutation:
    """Return the permutation that moves each part to the place of the next one, and the last to that of the first."""
    places = list(range(size))
    for one, other in zip(parts, (*parts[1:], parts[0]), strict=True):
        for old, new in zip(one.places, other.places, strict=True):
            places[old] = new
    return Permutation(tuple(places))


def _combine_choices(choices: Sequence[tuple[int, ...] | None], size: int, most: int) -> list[int] | None:
    """Return the unions of one choice of each part, only some of those that are equal up to exchanges of the parts.

    ``choices``: of each part; those at the same position are equal up to an exchange. Larger unions than ``size`` are
    left out. None: there would be more than ``most``.
    """
    known = [each for each in choices if each is not None]
    if len(known) < len(choices) or comb(len(known[0]) + len(known) - 1, len(known)) > _MOST_WASTED * most:
        return None
    found: list[int] = []
    for indices in combinations_with_replacement(range(len(known[0])), len(known)):
        together = sum(of_part[index] for of_part, index in zip(known, indices, strict=True))
        if together.bit_count() <= size:
            found.append(together)
            if len(found) > most:
                return None
    return found
