"""Placed pods and changes of them, for required anti-affinity by host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from scheduler_core.planner.gang.affinity_terms import Term, TermIndex, TermKey, selects, terms_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import PodAffinityTerm

_MAX_SELECTED = 1 << 18  # kept pods that terms of waiting pods select, of all these terms together
_MAX_CHECKS = 1 << 15  # pairs of term and pod, when changed pods are compared with waiting pods


class PlacedMember(NamedTuple):
    """A pod and the node that it is on, or will be."""

    node: str
    member: Member


class PodNodes:
    """The nodes of some placed pods."""

    def __init__(self, placed: Iterable[PlacedMember] = ()) -> None:
        self.placed = tuple(placed)
        self._all = frozenset(each.node for each in self.placed)

    def without(self, uids: Collection[str]) -> frozenset[str]:
        """Return the nodes, without those that only these pods are on."""
        if not uids:
            return self._all
        return frozenset(each.node for each in self.placed if each.member.uid not in uids)


class PlacedPods(tuple[PlacedMember, ...]):  # noqa: SLOT001  it caches its properties
    """Placed pods, with what each plan looks up about them: it is computed once."""

    @cached_property
    def by_uid(self) -> Mapping[str, PlacedMember]:
        """The pods by UID."""
        return {each.member.uid: each for each in self}

    @cached_property
    def terms(self) -> TermIndex:
        """The terms of all pods."""
        return TermIndex(chain.from_iterable(terms_of(each.member) for each in self))

    def with_term(self, key: TermKey) -> PodNodes:
        """Return the nodes of the pods that have a term."""
        return self._nodes_by_term.get(key, _NO_NODES)

    def selected_by(self, key: TermKey, term: PodAffinityTerm) -> PodNodes:
        """Return the nodes of the pods that a term selects."""
        found = self._selected.get(key)
        if found is None:
            found = PodNodes(each for each in self if selects(key, term, each.member))
            if sum(len(each.placed) for each in self._selected.values()) + len(found.placed) > _MAX_SELECTED:
                self._selected.clear()
            self._selected[key] = found
        return found

    @cached_property
    def _selected(self) -> dict[TermKey, PodNodes]:
        return {}

    @cached_property
    def _nodes_by_term(self) -> Mapping[TermKey, PodNodes]:
        placed: dict[TermKey, list[PlacedMember]] = {}
        for each in self:
            for key, _ in terms_of(each.member):
                placed.setdefault(key, []).append(each)
        return {key: PodNodes(pods) for key, pods in placed.items()}


_NO_NODES = PodNodes()


class ChangedPods:
    """The placed pods whose node, labels or terms changed, as they were and as they are."""

    def __init__(self, before: Iterable[PlacedMember], after: Iterable[PlacedMember]) -> None:
        was, now = (placed_pods(each).by_uid for each in (before, after))
        pairs = ((was.get(uid), now.get(uid)) for uid in was.keys() | now.keys())
        changed = [each.member for pair in pairs if not _are_alike(*pair) for each in pair if each is not None]
        self._terms: list[Term] = list(dict(chain.from_iterable(map(terms_of, changed))).items())
        self._pods = list({(each.namespace, _labels_key(each)): each for each in changed}.values())
        self._checks_left = _MAX_CHECKS

    def may_affect(self, waiting: Iterable[Member]) -> bool:
        """Return whether a waiting pod may not share a node with a changed pod.

        True also for all later calls once ``_MAX_CHECKS`` pairs of term and pod were compared.
        """
        for pod in waiting:
            self._checks_left -= len(self._terms) + len(pod.anti_affinity) * len(self._pods)
            if self._checks_left < 0 or any(selects(key, term, pod) for key, term in self._terms):
                return True
            if any(selects(key, term, other) for key, term in terms_of(pod) for other in self._pods):
                return True
        return False


def placed_pods(placed: Iterable[PlacedMember]) -> PlacedPods:
    """Return these pods as ``PlacedPods``."""
    return placed if isinstance(placed, PlacedPods) else PlacedPods(placed)


def _are_alike(one: PlacedMember | None, other: PlacedMember | None) -> bool:
    if one is None or other is None or one.node != other.node:
        return False
    return one.member is other.member or _affinity_inputs(one.member) == _affinity_inputs(other.member)


_affinity_inputs = attrgetter("labels", "anti_affinity")


def _labels_key(pod: Member) -> tuple[tuple[str, str], ...] | None:
    return None if pod.labels is None else tuple(sorted(pod.labels.items()))
