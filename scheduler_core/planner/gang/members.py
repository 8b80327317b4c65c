"""The members of each gang, from batches of watch events. No I/O.

    Member batches ──▶ GangMembers ──▶ Gang ──▶ queue

The cost of an event does not depend on the size of its gang: the state of a gang is computed when asked for (1 ms per
1,000 members) and cached until one of its members changes. A pod that is gone leaves nothing behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any

from gputopo.labels.gate import has_gate
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.anti_affinity_members import AntiAffinityMembers
from scheduler_core.planner.gang.gang import FINISHED_PHASES, DeclaredSize, DeclaredSizes, Gang, by_rank, gang_of
from scheduler_core.planner.gang.member import GangName, Member


class _SortedMembers:
    """The members of one gang, sorted by rank."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._keys: list[tuple[Any, ...]] = []

    def add(self, member: Member) -> None:
        key = by_rank(member)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self.members.insert(at, member)

    def remove(self, member: Member) -> None:
        at = self._place(member)
        del self._keys[at], self.members[at]

    def replace(self, before: Member, after: Member) -> None:
        """Replace a member by one of the same rank."""
        self.members[self._place(before)] = after

    def _place(self, member: Member) -> int:
        return 0 if len(self.members) == 1 else bisect_left(self._keys, by_rank(member))


class GangMembers:
    """The members of all gangs. For one thread."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}  # by UID
        self._anti_affinity = AntiAffinityMembers(self._members)
        self._with_claims: set[str] = set()  # UIDs of gated members with volume claims
        self._ending: set[str] = set()  # UIDs of failed members whose gangs end with them
        self._awaiting_binding: dict[str, Member] = {}  # ungated members that are not bound
        self._gangs: dict[GangName, _SortedMembers] = {}  # without empty gangs
        self._declared: dict[type[Any], dict[str, DeclaredSizes]] = {}  # by kind, then by UID of the object
        # Sizes of each gang. A kind that is served in two versions shows one object twice.
        self._sizes: dict[GangName, dict[tuple[str, str], DeclaredSize]] = {}
        self._known: dict[GangName, Gang] = {}  # cache of ``get_gang``

    def changed_uids(self, batch: Batch[Member]) -> set[str]:
        """Return the UIDs of the members that a batch changes or removes."""
        gone = self._members.keys() - {each.uid for each in batch.updates} if batch.is_full_list else set[str]()
        changed = {each.uid for each in batch.updates if self._members.get(each.uid) != each}
        return gone | changed | set(batch.removed)

    def apply_members(self, batch: Batch[Member]) -> frozenset[GangName]:
        """Apply a batch of members by UID. Return the gangs that may have changed."""
        touched: set[GangName] = set()
        gone = set(batch.removed)
        if batch.is_full_list:
            gone |= self._members.keys() - {each.uid for each in batch.updates}
        for uid in gone:
            self._drop(uid, touched)
        for member in batch.updates:
            known = self._members.get(member.uid)
            if known != member:
                if known is not None and _slot(known) == _slot(member):
                    self._drop_marks(known)
                    self._gangs[member.gang_request.gang].replace(known, member)
                else:
                    self._drop(member.uid, touched)
                    self._gangs.setdefault(member.gang_request.gang, _SortedMembers()).add(member)
                self._members[member.uid] = member
                self._anti_affinity.add(member)
                if member.claims:
                    self._with_claims.add(member.uid)
                if member.phase == "Failed" and member.gang_request.ends_on_failure:
                    self._ending.add(member.uid)
                if _awaits_binding(member):
                    self._awaiting_binding[member.uid] = member
                touched.add(member.gang_request.gang)
        return self._without_removed(touched)

    def apply_declared_sizes(self, batch: Batch[Any]) -> frozenset[GangName]:
        """Apply a batch of declared sizes. ``batch.kind``: the source's own subclass of ``DeclaredSizes``."""
        touched: set[GangName] = set()
        known = self._declared.setdefault(batch.kind, {})
        gone = set(batch.removed)
        if batch.is_full_list:
            gone |= known.keys() - {each.key for each in batch.updates}
        for key in gone:
            self._withdraw(batch.kind, key, touched)
        for each in batch.updates:
            self._withdraw(batch.kind, each.key, touched)
            known[each.key] = each
            for size in each.sizes:
                self._sizes.setdefault(size.gang, {})[each.key, batch.kind.__name__] = size
                touched.add(size.gang)
        return self._without_removed(touched)

    def get_gang(self, name: GangName) -> Gang | None:
        """Return a gang as observed; None: it has no member."""
        if name not in self._gangs:
            return None
        if name not in self._known:
            sizes = self._sizes.get(name, {})  # several only while one object replaces another
            self._known[name] = gang_of(name, self._gangs[name].members, sizes[max(sizes)] if sizes else None)
        return self._known[name]

    def all_gangs(self) -> Iterator[Gang]:
        """Yield all gangs."""
        for name in self._gangs:
            gang = self.get_gang(name)
            assert gang is not None
            yield gang

    def members_of(self, name: GangName) -> tuple[Member, ...]:
        """Return all members by rank, with terminating and finished ones."""
        return tuple(self._gangs[name].members) if name in self._gangs else ()

    @property
    def uids(self) -> Collection[str]:
        """The UIDs of the members of all gangs."""
        return self._members.keys()

    def get_member(self, uid: str) -> Member | None:
        """Return a member of any gang."""
        return self._members.get(uid)

    @property
    def has_anti_affinity(self) -> bool:
        """True if any member has required anti-affinity by host."""
        return self._anti_affinity.has_terms

    def members_with_claims(self) -> Iterator[Member]:
        """Yield the gated members of all gangs that have volume claims."""
        return (self._members[uid] for uid in self._with_claims)

    def failed_members_that_end_gangs(self) -> Iterator[Member]:
        """Yield the failed members, of all gangs, that ask for the end of their gang."""
        return (self._members[uid] for uid in self._ending)

    def awaiting_binding(self) -> Collection[Member]:
        """Return members of all gangs that are ungated and have no node yet."""
        return self._awaiting_binding.values()

    def live_members_concerned_by_anti_affinity(self) -> Iterator[Member]:
        """Yield the members that have a term of required anti-affinity by host, or that such a term selects.

        Terminating members count, finished ones do not. Other members may be among them.
        """
        return (each for each in self._anti_affinity.concerned_members() if each.phase not in FINISHED_PHASES)

    def _drop(self, uid: str, touched: set[GangName]) -> None:
        member = self._members.pop(uid, None)
        if member is not None:
            name = member.gang_request.gang
            self._drop_marks(member)
            self._gangs[name].remove(member)
            if not self._gangs[name].members:
                del self._gangs[name]
            touched.add(name)

    def _drop_marks(self, member: Member) -> None:
        self._anti_affinity.remove(member)
        self._awaiting_binding.pop(member.uid, None)
        self._with_claims.discard(member.uid)
        self._ending.discard(member.uid)

    def _withdraw(self, kind: type[Any], key: str, touched: set[GangName]) -> None:
        withdrawn = self._declared[kind].pop(key, None)
        for size in () if withdrawn is None else withdrawn.sizes:
            del self._sizes[size.gang][key, kind.__name__]
            if not self._sizes[size.gang]:
                del self._sizes[size.gang]
            touched.add(size.gang)

    def _without_removed(self, touched: set[GangName]) -> frozenset[GangName]:
        for name in touched:
            self._known.pop(name, None)
        return frozenset(touched)


_slot = attrgetter("gang_request.gang", "gang_request.rank", "name")  # members with the same UID and slot sort alike


def _awaits_binding(member: Member) -> bool:
    ungated = member.reservation is not None and not has_gate(member.gates)
    return ungated and member.node is None and not member.is_terminating and member.phase not in FINISHED_PHASES
