"""Required anti-affinity by host, in both directions: pods that may not share a node. Pure.

Source: kube-scheduler's plugin InterPodAffinity. Terminating pods count until they are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from scheduler_core.planner.gang.affinity_terms import TermIndex, TermKey, terms_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.placed_pods import PlacedMember, placed_pods
from scheduler_core.request.full_pod import PodAffinityTerm

ANTI_AFFINITY_REASON = "podAntiAffinity: this pod may not share a node with another pod on it"
_MAX_TERMS = 256
ConflictingPairs = frozenset[tuple[int, int]]  # of kinds, the smaller first; (1, 1): at most one per node


class AntiAffinity(NamedTuple):
    """A pod's relation to all anti-affinity terms, by their numbers."""

    rejects: frozenset[int] = frozenset()  # terms of the pod itself
    matched_by: frozenset[int] = frozenset()  # terms that select the pod


NO_RELATION = AntiAffinity()


class AntiAffinities:
    """Anti-affinity of pods that are to be placed, and of placed pods. A pod in both counts as not placed.

    The cost is bounded, because any tenant may write terms. Of each namespace ``_MAX_TERMS`` different terms count:
    those of the pods to be placed, then those that may select one of them. Only kube-scheduler checks the others.
    """

    def __init__(self, waiting: Collection[Member], placed_members: Iterable[PlacedMember]) -> None:
        self._placed = placed_pods(placed_members)
        self._uids = {each.uid for each in waiting if each.uid in self._placed.by_uid}
        own = chain.from_iterable(map(terms_of, waiting))
        others = self._placed.terms.candidates(waiting) if self._placed.terms else ()
        self._terms: dict[TermKey, PodAffinityTerm] = {}
        counts = Counter[str]()
        for key, term in chain(own, others):
            if key not in self._terms:
                counts[key.namespace] += 1
                if counts[key.namespace] <= _MAX_TERMS:
                    self._terms[key] = term
        self._keys = list(self._terms)
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        self._index = TermIndex(self._terms.items())
        self._added: list[tuple[str, AntiAffinity]] = []

    def anti_affinity_of(self, pod: Member) -> AntiAffinity:
        """Return the pod's relation to all terms."""
        if not self._terms:
            return NO_RELATION
        rejects = (self._numbers[key] for key, _ in terms_of(pod) if key in self._numbers)
        matched_by = (self._numbers[key] for key, _ in self._index.selecting(pod))
        return AntiAffinity(frozenset(rejects), frozenset(matched_by))

    def add_placed(self, node: str, anti_affinity: AntiAffinity) -> None:
        """Add a pod that has been placed."""
        if anti_affinity != NO_RELATION:
            self._added.append((node, anti_affinity))

    def excluded_nodes(self, anti_affinity: AntiAffinity) -> frozenset[str]:
        """Return nodes that such a pod may not go to."""
        pods = [self._placed.with_term(self._keys[number]) for number in anti_affinity.matched_by]
        own = [self._keys[number] for number in anti_affinity.rejects]
        pods += [self._placed.selected_by(key, self._terms[key]) for key in own]
        added = frozenset(node for node, other in self._added if are_conflicting(anti_affinity, other))
        found = [nodes for nodes in (added, *(each.without(self._uids) for each in pods)) if nodes]
        return found[0] if len(found) == 1 else frozenset[str]().union(*found)  # equal pods share one object


def are_conflicting(one: AntiAffinity, other: AntiAffinity) -> bool:
    """Return whether two pods may not share a node."""
    return not (one.rejects.isdisjoint(other.matched_by) and other.rejects.isdisjoint(one.matched_by))


def conflicting_pairs(kinds: Sequence[AntiAffinity]) -> ConflictingPairs:
    """Return the pairs of indices that may not share a node."""
    return frozenset(
        (at, to) for to, other in enumerate(kinds) for at in range(to + 1) if are_conflicting(kinds[at], other)
    )
