"""Pods that may not share a node: required anti-affinity by host, whichever of the two has it. Pure.

Source: the plugin InterPodAffinity. Pods that are being deleted count until they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import selector_matches
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm

ANTI_AFFINITY_REASON = "another pod on the node and this one may not share a node, as their podAntiAffinity says"
ConflictingPairs = frozenset[tuple[int, int]]  # of kinds, the smaller first; (1, 1): at most one of that kind on a node


class PlacedMember(NamedTuple):
    """A pod where it is, or will be."""

    node: str
    member: Member


class AntiAffinity(NamedTuple):
    """What a pod is to the terms of all, by their numbers."""

    rejects: frozenset[int] = frozenset()  # what it says itself
    matched_by: frozenset[int] = frozenset()  # that mean it


class AntiAffinities:
    """Of pods that are to have places, given those that have theirs. Who is among both has none."""

    def __init__(self, waiting: Collection[Member], there: Iterable[PlacedMember]) -> None:
        uids = {each.uid for each in waiting}
        placed = [each for each in there if each.member.uid not in uids]
        self._terms: list[tuple[str, PodAffinityTerm]] = []  # namespace of who says it
        for pod in chain(waiting, (each.member for each in placed)):
            for term in pod.anti_affinity:
                if (pod.namespace, term) not in self._terms:
                    self._terms.append((pod.namespace, term))
        self._there = [(each.node, self.anti_affinity_of(each.member)) for each in placed] if self._terms else []

    def anti_affinity_of(self, pod: Member) -> AntiAffinity:
        """What it is."""
        if not self._terms:
            return _NOBODY
        said = enumerate(self._terms)
        refuses = (at for at, (namespace, term) in said if namespace == pod.namespace and term in pod.anti_affinity)
        meant = (at for at, (namespace, term) in enumerate(self._terms) if _means(namespace, term, pod))
        return AntiAffinity(frozenset(refuses), frozenset(meant))

    def add_placed(self, node: str, side: AntiAffinity) -> None:
        """One of those that were waiting has its place."""
        if side != _NOBODY:
            self._there.append((node, side))

    def excluded_nodes(self, side: AntiAffinity) -> frozenset[str]:
        """Nodes that such a pod may not go to."""
        return frozenset(node for node, other in self._there if are_conflicting(side, other))


_NOBODY = AntiAffinity()


def are_conflicting(one: AntiAffinity, other: AntiAffinity) -> bool:
    """Whether they may not share a node."""
    return not (one.rejects.isdisjoint(other.matched_by) and other.rejects.isdisjoint(one.matched_by))


def conflicting_pairs(sides: Sequence[AntiAffinity]) -> ConflictingPairs:
    """Which of them, by their places, may not."""
    return frozenset(
        (at, to) for to, other in enumerate(sides) for at in range(to + 1) if are_conflicting(sides[at], other)
    )


def _means(namespace: str, term: PodAffinityTerm, pod: Member) -> bool:
    if term.label_selector is None or not selector_matches(term.label_selector, pod.labels):
        return False
    if term.namespace_selector is not None or pod.namespace in (term.namespaces or ()):
        return True
    return not term.namespaces and pod.namespace == namespace
