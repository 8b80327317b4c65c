"""Terms of required anti-affinity by host, and the pods that they select. Pure.

Source: kube-scheduler's plugin InterPodAffinity. Labels that are None were too many to be kept: any selector may match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from scheduler_core.cache.kube_scheduler_filters import selector_matches
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm


class TermKey(NamedTuple):
    """Identity of a term: equal for pods of one namespace with equal terms."""

    namespace: str  # of the pod that has the term
    term: bytes


Term = tuple[TermKey, PodAffinityTerm]


def terms_of(pod: Member) -> list[Term]:
    """Return the terms of a pod."""
    return [(TermKey(pod.namespace, each.key), each) for each in pod.anti_affinity]


def selects(key: TermKey, term: PodAffinityTerm, pod: Member) -> bool:
    """Return whether a term selects a pod."""
    return (
        term.label_selector is not None
        and _is_about_any(key, term, (pod.namespace,))  # first: most terms are about their own namespace
        and selector_matches(term.label_selector, pod.labels)
    )


class TermIndex:
    """Terms by a label that they require: finds those that may select a pod without a look at the others."""

    def __init__(self, terms: Iterable[Term] = ()) -> None:
        self._by_label: dict[tuple[str, str] | None, dict[TermKey, PodAffinityTerm]] = {}  # None: no required label
        for key, term in terms:
            self.add(key, term)

    def __bool__(self) -> bool:
        return bool(self._by_label)

    def add(self, key: TermKey, term: PodAffinityTerm) -> None:
        """Add a term."""
        self._by_label.setdefault(_required_label(term), {})[key] = term

    def remove(self, key: TermKey, term: PodAffinityTerm) -> None:
        """Remove a term."""
        label = _required_label(term)
        del self._by_label[label][key]
        if not self._by_label[label]:
            del self._by_label[label]

    def namespaces(self) -> AbstractSet[str] | None:
        """Return the namespaces of the pods that the terms may select; None: any."""
        terms = [each for of_label in self._by_label.values() for each in of_label.items()]
        if any(term.namespace_selector is not None for _, term in terms):
            return None
        return {name for key, term in terms for name in term.namespaces or (key.namespace,)}

    def may_select(self, pod: Member) -> bool:
        """Return False if no term can select a pod, by the labels that the terms require. Fast."""
        required = self._by_label.keys()
        return bool(required) and (
            None in required or pod.labels is None or not required.isdisjoint(pod.labels.items())
        )

    def candidates(self, pods: Collection[Member]) -> Iterator[Term]:
        """Yield once each term that may select one of these pods, by their namespaces and labels."""
        namespaces = {each.namespace for each in pods}
        labels = {label for each in pods for label in (each.labels or {}).items()}
        is_any_unknown = any(each.labels is None for each in pods)
        for label in self._by_label if is_any_unknown else (*labels, None):
            for key, term in self._by_label.get(label, {}).items():
                if term.label_selector is None or not _is_about_any(key, term, namespaces):
                    continue
                if is_any_unknown or (term.label_selector.match_labels or {}).items() <= labels:
                    yield key, term

    def selecting(self, pod: Member) -> Iterator[Term]:
        """Yield the terms that select a pod."""
        return ((key, term) for key, term in self.candidates((pod,)) if selects(key, term, pod))


def _is_about_any(key: TermKey, term: PodAffinityTerm, namespaces: Collection[str]) -> bool:
    return term.namespace_selector is not None or any(
        each in namespaces for each in term.namespaces or (key.namespace,)
    )


def _required_label(term: PodAffinityTerm) -> tuple[str, str] | None:
    labels = {} if term.label_selector is None else term.label_selector.match_labels or {}
    return min(labels.items(), default=None)
