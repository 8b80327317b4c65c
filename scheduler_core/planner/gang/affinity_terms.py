"""Terms of required anti-affinity by host, and the pods that they select. Pure.

Source: kube-scheduler's plugin InterPodAffinity. Labels that are None were too many to be kept: any selector may match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
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
    # Namespaces first: they are cheaper to compare, and most terms are about their own.
    return (
        term.label_selector is not None
        and _is_about_namespace_of(key, term, pod)
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

    @property
    def without_label(self) -> int:
        """The number of terms that require no label: each of them is compared with each pod."""
        return len(self._by_label.get(None, ()))

    def add(self, key: TermKey, term: PodAffinityTerm) -> None:
        """Add a term."""
        self._by_label.setdefault(_required_label(term), {})[key] = term

    def remove(self, key: TermKey, term: PodAffinityTerm) -> None:
        """Remove a term."""
        label = _required_label(term)
        del self._by_label[label][key]
        if not self._by_label[label]:
            del self._by_label[label]

    def selecting(self, pod: Member) -> Iterator[Term]:
        """Yield the terms that select a pod."""
        return ((key, term) for key, term in self.candidates(pod) if selects(key, term, pod))

    def candidates(self, pod: Member) -> Iterator[Term]:
        """Yield the terms that may select a pod, by its namespace and the labels that they require."""
        labels = self._by_label.keys() if pod.labels is None else [*pod.labels.items(), None]
        found = chain.from_iterable(self._by_label[each].items() for each in labels if each in self._by_label)
        for key, term in found:
            if term.label_selector is None or not _is_about_namespace_of(key, term, pod):
                continue
            required = term.label_selector.match_labels or {}
            if pod.labels is None or required.items() <= pod.labels.items():
                yield key, term


def _is_about_namespace_of(key: TermKey, term: PodAffinityTerm, pod: Member) -> bool:
    return term.namespace_selector is not None or pod.namespace in (term.namespaces or (key.namespace,))


def _required_label(term: PodAffinityTerm) -> tuple[str, str] | None:
    labels = {} if term.label_selector is None else term.label_selector.match_labels or {}
    return min(labels.items(), default=None)
