"""Reads PodDisruptionBudgets and the labels of the pods to evict when they are needed: no watch keeps them.

Tenants write both, so a namespace has limits, and only what matters of a page is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.rbac import DISRUPTION_BUDGETS, PODS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.budgets import (
    DisruptionBudget,
    SpentBudgets,
    blocked_units,
    is_small,
    selects_pod,
)
from scheduler_core.planner.leader.pod_reads import read_named_pods, read_pages

MAX_BUDGETS = 1_000  # of a namespace
MAX_FORBIDDEN = 10_000  # pods of one count
_Labels = Mapping[str, str]


class LabelledMetadata(msgspec.Struct, frozen=True):
    """The part of ``metadata`` that budgets select pods by."""

    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class LabelledPod(msgspec.Struct, frozen=True):
    """A pod without its annotations: those of thousands of pods may be large."""

    metadata: LabelledMetadata = LabelledMetadata()


class BudgetCount(NamedTuple):
    """The result of a count."""

    blocked: dict[str, str]  # units that may not be evicted, with the reason
    forbidden: frozenset[str] = frozenset()  # UIDs of further pods that may not be evicted, where a unit is blocked


def check_budgets(kube: Kube, action: CheckBudgets) -> BudgetCount:
    """Count the budgets for the units of an intent. Raises ``KubeError``."""
    budgets: list[DisruptionBudget] = []
    others: list[DisruptionBudget] = []
    labels: dict[str, _Labels] = {}
    uncounted: set[str] = set()
    names: dict[str, dict[str, str]] = {}
    for each in action.evictions:
        names.setdefault(each.namespace, {})[each.name] = each.uid
    for namespace, uids in names.items():
        pods: dict[str, _Labels] | None = None
        seen = 0
        for page in read_pages(kube, DISRUPTION_BUDGETS, DisruptionBudget, ListOptions(namespace)):
            seen += len(page)
            if pods is None and page:
                found = read_named_pods(kube, LabelledPod, uids, ListOptions(namespace, metadata_only=True))
                pods = {uid: each.metadata.labels or {} for uid, each in found.items()}
            if seen > MAX_BUDGETS or None in page:
                uncounted.add(namespace)
                break
            distinct = list({tuple(sorted(each.items())): each for each in (pods or {}).values()}.values())
            selecting = [each for each in page if each and any(selects_pod(each, labels) for labels in distinct)]
            budgets += selecting
            if action.finds_forbidden:
                others += [each for each in page if each and is_small(each) and each not in selecting]
        # Without a budget in the namespace, the labels do not matter.
        labels |= {uid: {} for uid in uids.values()} if pods is None else pods
    reason = f"its namespace has PodDisruptionBudgets that cannot be counted, or more than {MAX_BUDGETS}"
    blocked = blocked_units(action.evictions, budgets, labels)
    forbidden = frozenset[str]()
    if action.finds_forbidden and blocked:
        spent = SpentBudgets(action.evictions, blocked, (*budgets, *others), labels)
        namespaces = {each.namespace for each in action.evictions if each.unit in blocked} - uncounted
        forbidden = _forbidden_pods(kube, spent, sorted(namespaces))
    blocked |= {each.unit: reason for each in action.evictions if each.namespace in uncounted}
    return BudgetCount(blocked, forbidden)


def _forbidden_pods(kube: Kube, spent: SpentBudgets, namespaces: Iterable[str]) -> frozenset[str]:
    """Return the UIDs of the pods of these namespaces that the budgets forbid to evict."""
    found: set[str] = set()
    for namespace in namespaces:
        for page in read_pages(kube, PODS, LabelledPod, ListOptions(namespace, metadata_only=True)):
            pods = [each.metadata for each in page if each is not None]
            found |= {each.uid for each in pods if spent.forbid(namespace, each.uid, each.labels or {})}
            if len(found) > MAX_FORBIDDEN:
                return frozenset(found)
    return frozenset(found)
