"""Pods that may not share a node: required anti-affinity by host, whichever of the two has it. Pure.

Source: the plugin InterPodAffinity. Pods that are being deleted count until they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import PodTerm, selects
from scheduler_core.planner.gang.member import Member

APART = "another pod on the node and this one may not share a node, as their podAntiAffinity says"
Pairs = frozenset[tuple[int, int]]  # of kinds, the smaller first; (1, 1): at most one of that kind on a node


class There(NamedTuple):
    """A pod where it is, or will be."""

    node: str
    member: Member


class Side(NamedTuple):
    """What a pod is to the terms of all, by their numbers."""

    refuses: frozenset[int] = frozenset()  # what it says itself
    meant: frozenset[int] = frozenset()  # that mean it


class Sides:
    """Of pods that are to have places, given those that have theirs. Who is among both has none."""

    def __init__(self, waiting: Collection[Member], there: Iterable[There]) -> None:
        uids = {each.uid for each in waiting}
        placed = [each for each in there if each.member.uid not in uids]
        self._terms: list[tuple[str, PodTerm]] = []  # namespace of who says it
        for pod in chain(waiting, (each.member for each in placed)):
            for term in pod.apart:
                if (pod.namespace, term) not in self._terms:
                    self._terms.append((pod.namespace, term))
        self._there = [(each.node, self.of(each.member)) for each in placed] if self._terms else []

    def of(self, pod: Member) -> Side:
        """What it is."""
        if not self._terms:
            return _NOBODY
        said = enumerate(self._terms)
        refuses = (at for at, (namespace, term) in said if namespace == pod.namespace and term in pod.apart)
        meant = (at for at, (namespace, term) in enumerate(self._terms) if _means(namespace, term, pod))
        return Side(frozenset(refuses), frozenset(meant))

    def add(self, node: str, side: Side) -> None:
        """One of those that were waiting has its place."""
        if side != _NOBODY:
            self._there.append((node, side))

    def closed(self, side: Side) -> frozenset[str]:
        """Nodes that such a pod may not go to."""
        return frozenset(node for node, other in self._there if apart(side, other))


_NOBODY = Side()


def apart(one: Side, other: Side) -> bool:
    """Whether they may not share a node."""
    return not (one.refuses.isdisjoint(other.meant) and other.refuses.isdisjoint(one.meant))


def pairs(sides: Sequence[Side]) -> Pairs:
    """Which of them, by their places, may not."""
    return frozenset((at, to) for to, other in enumerate(sides) for at in range(to + 1) if apart(sides[at], other))


def _means(namespace: str, term: PodTerm, pod: Member) -> bool:
    if term.label_selector is None or not selects(term.label_selector, pod.labels):
        return False
    if term.namespace_selector is not None or pod.namespace in (term.namespaces or ()):
        return True
    return not term.namespaces and pod.namespace == namespace
