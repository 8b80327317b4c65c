"""Required anti-affinity by host, in both directions: pods that may not share a node. Pure.

Source: kube-scheduler's plugin InterPodAffinity. Terminating pods count until they are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import selector_matches
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm

ANTI_AFFINITY_REASON = "podAntiAffinity: this pod may not share a node with another pod on it"
_MAX_TERMS = 256
_MAX_CHECKS = 1 << 15  # pairs of term and pod, when changed pods are compared with waiting pods
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
    term: bytes


class AntiAffinities:
    """Anti-affinity of pods that are to be placed, and of placed pods. A pod in both counts as not placed.

    The cost is bounded, because any tenant may write terms. Of each namespace ``_MAX_TERMS`` different terms count:
    those of the pods to be placed, then those that may select one of them. Only kube-scheduler checks the others.
    """

    def __init__(self, waiting: Collection[Member], placed_members: Iterable[PlacedMember]) -> None:
        uids = {each.uid for each in waiting}
        placed = [each for each in placed_members if each.member.uid not in uids]
        own = dict(chain.from_iterable(map(_terms_of, waiting)))
        others = dict(chain.from_iterable(_terms_of(each.member) for each in placed))
        pairs = {pair for pod in waiting for pair in (pod.labels or {}).items()}
        namespaces = {pod.namespace for pod in waiting}
        counts = Counter[str]()
        self._terms: dict[_TermKey, PodAffinityTerm] = {}
        for key, term in chain(own.items(), others.items()):
            if (key in own or _may_select(key.namespace, term, pairs, namespaces)) and key not in self._terms:
                counts[key.namespace] += 1
                if counts[key.namespace] <= _MAX_TERMS:
                    self._terms[key] = term
        self._numbers = {key: number for number, key in enumerate(self._terms)}
        self._own = {key: term for key, term in self._terms.items() if key in own}
        self._placed = [(each.node, self._relation(each.member, self._own)) for each in placed] if self._terms else []

    def anti_affinity_of(self, pod: Member) -> AntiAffinity:
        """Return the pod's relation to all terms."""
        return self._relation(pod, self._terms)

    def _relation(self, pod: Member, terms: Mapping[_TermKey, PodAffinityTerm]) -> AntiAffinity:
        """Return the pod's relation to its own terms, and by which of ``terms`` it is selected."""
        if not self._terms:
            return NO_RELATION
        rejects = (self._numbers[key] for key, _ in _terms_of(pod) if key in self._numbers)
        matched_by = (self._numbers[key] for key, term in terms.items() if _selects(key.namespace, term, pod))
        return AntiAffinity(frozenset(rejects), frozenset(matched_by))

    def add_placed(self, node: str, anti_affinity: AntiAffinity) -> None:
        """Add a pod that has been placed."""
        if anti_affinity != NO_RELATION:
            self._placed.append((node, anti_affinity))

    def excluded_nodes(self, anti_affinity: AntiAffinity) -> frozenset[str]:
        """Return nodes that such a pod may not go to."""
        return frozenset(node for node, other in self._placed if are_conflicting(anti_affinity, other))


NO_RELATION = AntiAffinity()


def are_conflicting(one: AntiAffinity, other: AntiAffinity) -> bool:
    """Return whether two pods may not share a node."""
    return not (one.rejects.isdisjoint(other.matched_by) and other.rejects.isdisjoint(one.matched_by))


class ChangedPods:
    """The placed pods whose node, labels or terms changed, as they were and as they are."""

    def __init__(self, before: Iterable[PlacedMember], after: Iterable[PlacedMember]) -> None:
        was, now = ({each.member.uid: each for each in placed} for placed in (before, after))
        pairs = ((was.get(uid), now.get(uid)) for uid in was.keys() | now.keys())
        changed = [each.member for pair in pairs if not _are_alike(*pair) for each in pair if each is not None]
        self._terms = dict(chain.from_iterable(map(_terms_of, changed)))
        self._pods = list({(each.namespace, _labels_key(each)): each for each in changed}.values())
        self._checks_left = _MAX_CHECKS

    def may_affect(self, waiting: Iterable[Member]) -> bool:
        """Return whether a waiting pod may not share a node with a changed pod.

        True also for all later calls once ``_MAX_CHECKS`` pairs of term and pod were compared.
        """
        for pod in waiting:
            self._checks_left -= len(self._terms) + len(pod.anti_affinity) * len(self._pods)
            if self._checks_left < 0 or any(_selects(key.namespace, term, pod) for key, term in self._terms.items()):
                return True
            if any(_selects(pod.namespace, term, other) for term in pod.anti_affinity for other in self._pods):
                return True
        return False


def _are_alike(one: PlacedMember | None, other: PlacedMember | None) -> bool:
    if one is None or other is None or one.node != other.node:
        return False
    return one.member is other.member or _affinity_inputs(one.member) == _affinity_inputs(other.member)


_affinity_inputs = attrgetter("labels", "anti_affinity")


def _labels_key(pod: Member) -> tuple[tuple[str, str], ...] | None:
    return None if pod.labels is None else tuple(sorted(pod.labels.items()))


def conflicting_pairs(kinds: Sequence[AntiAffinity]) -> ConflictingPairs:
    """Return the pairs of indices that may not share a node."""
    return frozenset(
        (at, to) for to, other in enumerate(kinds) for at in range(to + 1) if are_conflicting(kinds[at], other)
    )


def _terms_of(pod: Member) -> list[tuple[_TermKey, PodAffinityTerm]]:
    return [(_TermKey(pod.namespace, each.key), each) for each in pod.anti_affinity]


def _may_select(
    namespace: str, term: PodAffinityTerm, pairs: Container[tuple[str, str]], namespaces: AbstractSet[str]
) -> bool:
    """Return False if the term certainly selects no pod with labels of ``pairs`` in ``namespaces``."""
    if term.label_selector is None or (
        term.namespace_selector is None and namespaces.isdisjoint(term.namespaces or (namespace,))
    ):
        return False
    return all(pair in pairs for pair in (term.label_selector.match_labels or {}).items())


def _selects(namespace: str, term: PodAffinityTerm, pod: Member) -> bool:
    if term.label_selector is None:
        return False
    # Namespaces first: they are cheaper to compare, and most terms are about their own.
    if term.namespace_selector is None and pod.namespace not in (term.namespaces or (namespace,)):
        return False
    return selector_matches(term.label_selector, pod.labels)
