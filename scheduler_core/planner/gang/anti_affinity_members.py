"""Members with required anti-affinity by host, and the members that it selects, kept up to date. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from scheduler_core.planner.gang.affinity_terms import TermIndex, TermKey, selects, terms_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm

_MAX_COMPARED = 1 << 8  # terms: a member that more terms may select counts as selected


class AntiAffinityMembers:
    """Members that have a term, or that a term of any member selects. For one thread."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        """``members``: all, by UID; read when a new term may select some of them."""
        self._members = members
        self._terms = TermIndex()
        self._counts = Counter[TermKey]()  # members with the term
        self._new: dict[TermKey, PodAffinityTerm] = {}  # not compared with all members yet
        self._concerned: dict[str, Member] = {}  # by UID; some of them no term may select any more

    @property
    def has_terms(self) -> bool:
        """Return whether any member has a term."""
        return bool(self._counts)

    def add(self, member: Member) -> None:
        """Add a member."""
        for key, term in terms_of(member):
            if key not in self._counts:
                self._terms.add(key, term)
                self._new[key] = term
            self._counts[key] += 1
        if member.anti_affinity or _may_be_selected(self._terms, member):
            self._concerned[member.uid] = member

    def remove(self, member: Member) -> None:
        """Remove a member as it was added."""
        self._concerned.pop(member.uid, None)
        for key, term in terms_of(member):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
                self._terms.remove(key, term)
                self._new.pop(key, None)
        if not self._counts:
            self._concerned.clear()

    def concerned_members(self) -> Collection[Member]:
        """Return these members. Others may be among them."""
        if self._new:
            new, self._new = TermIndex(self._new.items()), {}
            namespaces = new.namespaces()
            for uid, member in self._members.items():
                is_about = namespaces is None or member.namespace in namespaces
                if is_about and uid not in self._concerned and _may_be_selected(new, member):
                    self._concerned[uid] = member
        return self._concerned.values()


def _may_be_selected(terms: TermIndex, member: Member) -> bool:
    if not terms.may_select(member):  # most members
        return False
    for number, (key, term) in enumerate(terms.candidates((member,))):
        if number >= _MAX_COMPARED or selects(key, term, member):
            return True
    return False
