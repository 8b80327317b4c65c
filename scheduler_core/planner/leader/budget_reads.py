"""Reads PodDisruptionBudgets and the labels of the pods to evict when they are needed: no watch keeps them.

Tenants write both, so a namespace has limits, and only what matters of a page is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import TooLongError, UnavailableError
from gputopo.kube.rbac import DISRUPTION_BUDGETS, PODS
from scheduler_core.cache.full_pods import MAX_LABELS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.budgets import (
    DisruptionBudget,
    PodLabels,
    SpentBudgets,
    blocked_units,
    is_small,
    selects_pod,
)
from scheduler_core.planner.leader.pod_reads import read_named_pods, read_pages

MAX_BUDGETS, MAX_BYTES = 1_000, 2 << 20  # of a namespace: the API server reads all of them for each eviction there
MAX_FORBIDDEN = 10_000  # pods of one count
_TOO_MANY = (
    f"its namespace has PodDisruptionBudgets that cannot be counted, or more than {MAX_BUDGETS}"
    f" or {MAX_BYTES >> 20} MiB of them"
)


class LabelledMetadata(msgspec.Struct):
    """The part of ``metadata`` that budgets select pods by."""

    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = {}  # None: more than ``MAX_LABELS``, which are not kept

    def __post_init__(self) -> None:
        """Drop labels that would use too much memory."""
        if self.labels is not None and len(self.labels) > MAX_LABELS:
            self.labels = None


class LabelledPod(msgspec.Struct, frozen=True):
    """A pod without its annotations: those of thousands of pods may be large."""

    metadata: LabelledMetadata = msgspec.field(default_factory=LabelledMetadata)


class BudgetCount(NamedTuple):
    """The result of a count."""

    blocked: dict[str, str]  # units that may not be evicted, with the reason
    forbidden: frozenset[str] = frozenset()  # UIDs of further pods that may not be evicted, where a unit is blocked


def check_budgets(kube: Kube, action: CheckBudgets) -> BudgetCount:
    """Count the budgets for the units of an intent. Raises ``KubeError``."""
    budgets: list[DisruptionBudget] = []
    others: list[DisruptionBudget] = []
    labels: dict[str, PodLabels] = {}
    uncounted: dict[str, str] = {}  # namespace -> why
    names: dict[str, dict[str, str]] = {}
    for each in action.evictions:
        names.setdefault(each.namespace, {})[each.name] = each.uid
    for namespace, uids in names.items():
        try:
            found = _read_namespace(kube, namespace, uids, keeps_others=action.finds_forbidden)
        except (TooLongError, UnavailableError) as error:  # only this namespace, whose objects are large
            found = _OfNamespace(labels={}, why_not=_TOO_MANY if isinstance(error, TooLongError) else str(error))
        budgets += found.selecting
        others += found.others
        labels |= found.labels
        if found.why_not is not None:
            uncounted[namespace] = found.why_not
    blocked = blocked_units(action.evictions, budgets, labels)
    forbidden = frozenset[str]()
    if action.finds_forbidden and blocked:
        spent = SpentBudgets(action.evictions, blocked, (*budgets, *others), labels)
        namespaces = {each.namespace for each in action.evictions if each.unit in blocked} - uncounted.keys()
        forbidden = _forbidden_pods(kube, spent, sorted(namespaces))
    blocked |= {each.unit: uncounted[each.namespace] for each in action.evictions if each.namespace in uncounted}
    return BudgetCount(blocked, forbidden)


def _hashable(labels: PodLabels) -> tuple[tuple[str, str], ...] | None:
    return None if labels is None else tuple(sorted(labels.items()))


class _OfNamespace(NamedTuple):
    """The budgets of a namespace, as far as they matter for an eviction."""

    labels: Mapping[str, PodLabels]  # of the pods to evict, by UID
    selecting: Sequence[DisruptionBudget] = ()  # these pods
    others: Sequence[DisruptionBudget] = ()
    why_not: str | None = None  # they are not counted, for people


def _read_namespace(kube: Kube, namespace: str, uids: Mapping[str, str], *, keeps_others: bool) -> _OfNamespace:
    """Read the budgets of a namespace. ``uids``: of the pods to evict, by name. Raises ``KubeError``."""
    selecting: list[DisruptionBudget] = []
    others: list[DisruptionBudget] = []
    pods: dict[str, PodLabels] | None = None
    seen = 0
    query = ListOptions(namespace, most_bytes=MAX_BYTES)
    for page in read_pages(kube, DISRUPTION_BUDGETS, DisruptionBudget, query):
        seen += len(page)
        if pods is None and page:
            found = read_named_pods(kube, LabelledPod, uids, ListOptions(namespace, metadata_only=True))
            pods = {uid: each.metadata.labels for uid, each in found.items()}
        if seen > MAX_BUDGETS or None in page:
            return _OfNamespace(pods or {}, why_not=_TOO_MANY)
        distinct = list({_hashable(each): each for each in (pods or {}).values()}.values())
        own = [each for each in page if each and any(selects_pod(each, labels) for labels in distinct)]
        selecting += own
        if keeps_others:
            others += [each for each in page if each and is_small(each) and each not in own]
    # Without a budget in the namespace, the labels do not matter.
    return _OfNamespace({uid: {} for uid in uids.values()} if pods is None else pods, selecting, others)


def _forbidden_pods(kube: Kube, spent: SpentBudgets, namespaces: Iterable[str]) -> frozenset[str]:
    """Return the UIDs of the pods of these namespaces that the budgets forbid to evict."""
    found: set[str] = set()
    for namespace in namespaces:
        for page in read_pages(kube, PODS, LabelledPod, ListOptions(namespace, metadata_only=True)):
            pods = [each.metadata for each in page if each is not None]
            found |= {each.uid for each in pods if spent.forbid(namespace, each.uid, each.labels)}
            if len(found) > MAX_FORBIDDEN:
                return frozenset(found)
    return frozenset(found)
