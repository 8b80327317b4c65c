"""Required anti-affinity by host, in both directions: pods that may not share a node. Pure.

Source: kube-scheduler's plugin InterPodAffinity. Terminating pods count until they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from scheduler_core.cache.kube_scheduler_filters import selector_matches
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm

ANTI_AFFINITY_REASON = "podAntiAffinity: this pod may not share a node with another pod on it"
ConflictingPairs = frozenset[tuple[int, int]]  # of kinds, the smaller first; (1, 1): at most one per node


class PlacedMember(NamedTuple):
    """A pod and the node that it is on, or will be."""

    node: str
    member: Member


class AntiAffinity(NamedTuple):
    """A pod's relation to all anti-affinity terms, by their numbers."""

    rejects: frozenset[int] = frozenset()  # terms of the pod itself
    matched_by: frozenset[int] = frozenset()  # terms that select the pod


class _TermKey(NamedTuple):
    namespace: str  # of the pod that has the term
    term: bytes  # JSON: a term itself has no hash


class AntiAffinities:
    """Anti-affinity of pods that are to be placed, and of placed pods. A pod in both counts as not placed."""

    def __init__(self, waiting: Collection[Member], placed_members: Iterable[PlacedMember]) -> None:
        uids = {each.uid for each in waiting}
        placed = [each for each in placed_members if each.member.uid not in uids]
        self._terms: dict[_TermKey, PodAffinityTerm] = {}
        for pod in chain(waiting, (each.member for each in placed)):
            self._terms |= zip(_term_keys(pod), pod.anti_affinity, strict=True)
        self._numbers = {key: number for number, key in enumerate(self._terms)}
        self._placed = [(each.node, self.anti_affinity_of(each.member)) for each in placed] if self._terms else []

    def anti_affinity_of(self, pod: Member) -> AntiAffinity:
        """Return the pod's relation to all terms."""
        if not self._terms:
            return _NONE
        rejects = (self._numbers[key] for key in _term_keys(pod))
        terms = enumerate(self._terms.items())
        matched_by = (number for number, (key, term) in terms if _selects(key.namespace, term, pod))
        return AntiAffinity(frozenset(rejects), frozenset(matched_by))

    def add_placed(self, node: str, anti_affinity: AntiAffinity) -> None:
        """Add a pod that has been placed."""
        if anti_affinity != _NONE:
            self._placed.append((node, anti_affinity))

    def excluded_nodes(self, anti_affinity: AntiAffinity) -> frozenset[str]:
        """Return nodes that such a pod may not go to."""
        return frozenset(node for node, other in self._placed if are_conflicting(anti_affinity, other))


_NONE = AntiAffinity()


def are_conflicting(one: AntiAffinity, other: AntiAffinity) -> bool:
    """Return whether two pods may not share a node."""
    return not (one.rejects.isdisjoint(other.matched_by) and other.rejects.isdisjoint(one.matched_by))


def conflicting_pairs(kinds: Sequence[AntiAffinity]) -> ConflictingPairs:
    """Return the pairs of indices that may not share a node."""
    return frozenset(
        (at, to) for to, other in enumerate(kinds) for at in range(to + 1) if are_conflicting(kinds[at], other)
    )


def _term_keys(pod: Member) -> list[_TermKey]:
    return [_TermKey(pod.namespace, msgspec.json.encode(each, order="deterministic")) for each in pod.anti_affinity]


def _selects(namespace: str, term: PodAffinityTerm, pod: Member) -> bool:
    if term.label_selector is None:
        return False
    # Namespaces first: they are cheaper to compare, and most terms are about their own.
    if term.namespace_selector is None and pod.namespace not in (term.namespaces or (namespace,)):
        return False
    return selector_matches(term.label_selector, pod.labels)
