"""Who is there: the members of each gang, from a stream of what comes and goes. No I/O.

    members and gone ──▶ Roster ──▶ Gang ──▶ queue

An event costs the same however large its gang is: what a gang has become is worked out when it is asked for, and kept
until one of its members changes. Nothing is remembered of a pod that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scheduler_core.gangs.gang import Declared, Gang, assess, by_rank
from scheduler_core.gangs.member import GangName, Member
from scheduler_core.sightings import Batch


class Roster:
    """The members of all gangs. For one thread."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}  # by UID
        self._gangs: dict[GangName, dict[str, Member]] = {}  # by UID, of each; none is empty
        self._declared: dict[type[Any], dict[str, Declared]] = {}  # by UID of the object, of each kind
        self._sizes: dict[GangName, dict[str, Declared]] = {}  # the same, of each gang
        self._known: dict[GangName, Gang] = {}  # what has not changed since it was asked for

    def take(self, batch: Batch[Member]) -> frozenset[GangName]:
        """Take note of members; keys are UIDs. Answers the gangs that may be others now."""
        touched: set[GangName] = set()
        gone = set(batch.gone)
        if batch.complete:
            gone |= self._members.keys() - {each.uid for each in batch.seen}
        for uid in gone:
            self._drop(uid, touched)
        for member in batch.seen:
            if self._members.get(member.uid) != member:
                self._drop(member.uid, touched)
                self._members[member.uid] = member
                self._gangs.setdefault(member.wanted.gang, {})[member.uid] = member
                touched.add(member.wanted.gang)
        return self._forgotten(touched)

    def take_sizes(self, batch: Batch[Any]) -> frozenset[GangName]:
        """Take note of what objects declare. ``batch.kind``: one per source, a ``Declared`` of its own."""
        touched: set[GangName] = set()
        known = self._declared.setdefault(batch.kind, {})
        gone = set(batch.gone)
        if batch.complete:
            gone |= known.keys() - {each.key for each in batch.seen}
        for key in gone:
            self._withdraw(known, key, touched)
        for each in batch.seen:
            self._withdraw(known, each.key, touched)
            known[each.key] = each
            self._sizes.setdefault(each.gang, {})[each.key] = each
            touched.add(each.gang)
        return self._forgotten(touched)

    def gang(self, name: GangName) -> Gang | None:
        """A gang as it is now; None: it has no member."""
        if name not in self._gangs:
            return None
        if name not in self._known:
            self._known[name] = assess(name, self._gangs[name].values(), self._sizes.get(name, {}).values())
        return self._known[name]

    def gangs(self) -> Iterator[Gang]:
        """All of them."""
        for name in self._gangs:
            gang = self.gang(name)
            assert gang is not None
            yield gang

    def members(self, name: GangName) -> tuple[Member, ...]:
        """All members by rank, those that end or have ended too."""
        return tuple(sorted(self._gangs.get(name, {}).values(), key=by_rank))

    def member(self, uid: str) -> Member | None:
        """A member of any gang."""
        return self._members.get(uid)

    def _drop(self, uid: str, touched: set[GangName]) -> None:
        member = self._members.pop(uid, None)
        if member is not None:
            name = member.wanted.gang
            del self._gangs[name][uid]
            if not self._gangs[name]:
                del self._gangs[name]
            touched.add(name)

    def _withdraw(self, known: dict[str, Declared], key: str, touched: set[GangName]) -> None:
        each = known.pop(key, None)
        if each is not None:
            del self._sizes[each.gang][key]
            if not self._sizes[each.gang]:
                del self._sizes[each.gang]
            touched.add(each.gang)

    def _forgotten(self, touched: set[GangName]) -> frozenset[GangName]:
        for name in touched:
            self._known.pop(name, None)
        return frozenset(touched)
