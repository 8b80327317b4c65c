"""Counts PodDisruptionBudgets: which units may be evicted at once. Pure.

The Eviction API checks one pod at a time, so a gang could be refused after half of its pods are gone. Here a budget is
charged for all pods of a unit before the next unit is counted. A pod counts as ready, which is the strictest case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputopo.crd.reservations import PlannedEviction
from gputopo.kube.objects import ObjectMeta
from scheduler_core.cache.kube_scheduler_filters import selector_matches
from scheduler_core.request.full_pod import LabelSelector

MAX_ENTRIES = 64  # of a selector: each is compared with every pod


class BudgetSpec(msgspec.Struct, frozen=True):
    """``policy/v1`` PodDisruptionBudgetSpec: only the selector."""

    selector: LabelSelector | None = None  # None: matches no pod


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``policy/v1`` PodDisruptionBudgetStatus."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class DisruptionBudget(msgspec.Struct, frozen=True):
    """``policy/v1`` PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def blocked_units(
    evictions: Iterable[PlannedEviction],
    budgets: Sequence[DisruptionBudget],
    labels: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """Return the units that the budgets do not allow to evict, with the reason for people.

    ``labels``: of the pods that exist, by UID. A unit that is allowed is charged to the budgets before the next one.
    """
    units: dict[str, list[PlannedEviction]] = {}
    for each in evictions:
        if each.uid in labels:
            units.setdefault(each.unit, []).append(each)
    by_namespace: dict[str, list[DisruptionBudget]] = {}
    for budget in budgets:
        by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
    charged, blocked = Counter[str](), dict[str, str]()
    for unit, pods in units.items():
        needed, reason = _needed(pods, by_namespace, labels)
        reason = reason or next((why for each in needed if (why := _shortage(needed[each], charged, each))), None)
        if reason is None:
            charged.update({name: len(each) for name, each in needed.items()})
        else:
            blocked[unit] = reason
    return blocked


_Needed = dict[str, list[DisruptionBudget]]  # by NAMESPACE/NAME: the budget, once for each pod


def _needed(
    pods: Iterable[PlannedEviction],
    budgets: Mapping[str, Sequence[DisruptionBudget]],
    labels: Mapping[str, Mapping[str, str]],
) -> tuple[_Needed, str | None]:
    """Return the budgets that the eviction of these pods is charged to; or why it is never allowed."""
    needed: _Needed = {}
    for pod in pods:
        found = [each for each in budgets.get(pod.namespace, ()) if selects_pod(each, labels[pod.uid])]
        if len(found) > 1:
            names = " and ".join(sorted(each.metadata.name for each in found)[:2])
            return {}, f"pod {pod.namespace}/{pod.name} has several PodDisruptionBudgets ({names})"
        for each in found:
            needed.setdefault(f"{pod.namespace}/{each.metadata.name}", []).append(each)
    return needed, None


def selects_pod(budget: DisruptionBudget, labels: Mapping[str, str]) -> bool:
    """Return whether the budget is for a pod with these labels. A selector with too many entries counts as for all."""
    selector = budget.spec.selector
    if selector is None:
        return False
    entries = [*(selector.match_labels or ()), *(selector.match_expressions or ())]
    return len(entries) > MAX_ENTRIES or selector_matches(selector, labels)


def _shortage(needed: Sequence[DisruptionBudget], charged: Mapping[str, int], name: str) -> str | None:
    budget = needed[0]
    if budget.status.observed_generation < budget.metadata.generation:
        return f"PodDisruptionBudget {name} has changed and is not counted yet"
    left = max(0, budget.status.disruptions_allowed - charged[name])
    if len(needed) <= left:
        return None
    return f"PodDisruptionBudget {name} allows {left} more evictions of the {len(needed)} needed"
