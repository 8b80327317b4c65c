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
_MAX_VALUES = 256  # of a selector that is compared with pods that are not to be evicted
_MAX_COMPARED = 100_000  # selectors with the labels of such pods
_COST_OF_LABELS = 50  # of one set of labels, in comparisons: each set is kept
PodLabels = Mapping[str, str] | None  # None: too many to be kept, so each budget of the namespace is for the pod


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
    labels: Mapping[str, PodLabels],
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


class SpentBudgets:
    """Which further pods the budgets forbid to evict, beside the units that they allow. For one count.

    Pods that are not to be evicted yet are compared with them, so that the next search leaves these out: else it
    would try each pod of a budget, one after the other. Comparisons are limited: a pod beyond the limit counts as free.
    """

    def __init__(
        self,
        evictions: Iterable[PlannedEviction],
        blocked: Mapping[str, str],
        budgets: Iterable[DisruptionBudget],
        labels: Mapping[str, PodLabels],
    ) -> None:
        """``labels``: of the pods in ``evictions`` that exist, by UID."""
        allowed = [each for each in evictions if each.unit not in blocked and each.uid in labels]
        self._allowed = {each.uid for each in allowed}
        self._budgets = [(each, _is_spent(each, allowed, labels)) for each in budgets if is_small(each)]
        self._left = _MAX_COMPARED
        self._known: dict[tuple[str, tuple[tuple[str, str], ...] | None], bool] = {}

    def forbid(self, namespace: str, uid: str, labels: PodLabels) -> bool:
        """Return whether the budgets forbid the eviction of this pod: one is spent, or several are for it."""
        key = namespace, None if labels is None else tuple(sorted(labels.items()))
        if uid in self._allowed:
            return False
        if key not in self._known and self._left > 0:
            self._left -= len(self._budgets) + _COST_OF_LABELS
            own = [spent for each, spent in self._budgets if _is_for(each, namespace, labels)]
            self._known[key] = any(own) or len(own) > 1
        return self._known.get(key, False)


_Needed = dict[str, list[DisruptionBudget]]  # by NAMESPACE/NAME: the budget, once for each pod


def _needed(
    pods: Iterable[PlannedEviction],
    budgets: Mapping[str, Sequence[DisruptionBudget]],
    labels: Mapping[str, PodLabels],
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


def selects_pod(budget: DisruptionBudget, labels: PodLabels) -> bool:
    """Return whether the budget is for a pod with these labels. A selector with too many entries counts as for all."""
    selector = budget.spec.selector
    if selector is None:
        return False
    entries = [*(selector.match_labels or ()), *(selector.match_expressions or ())]
    return len(entries) > MAX_ENTRIES or selector_matches(selector, labels)


def _is_spent(budget: DisruptionBudget, allowed: Sequence[PlannedEviction], labels: Mapping[str, PodLabels]) -> bool:
    """Return whether the budget allows no eviction beside these."""
    if budget.status.observed_generation < budget.metadata.generation:
        return True
    left = budget.status.disruptions_allowed
    if 0 < left <= len(allowed):
        left -= sum(_is_for(budget, each.namespace, labels[each.uid]) for each in allowed)
    return left <= 0


def _is_for(budget: DisruptionBudget, namespace: str, labels: PodLabels) -> bool:
    return budget.metadata.namespace == namespace and selects_pod(budget, labels)


def is_small(budget: DisruptionBudget) -> bool:
    """Return whether the selector is short enough to compare it with pods that are not to be evicted."""
    selector = budget.spec.selector
    if selector is None:
        return False
    values = sum(len(each.values or ()) for each in selector.match_expressions or ())
    entries = len(selector.match_labels or ()) + len(selector.match_expressions or ())
    return entries <= MAX_ENTRIES and values <= _MAX_VALUES


def _shortage(needed: Sequence[DisruptionBudget], charged: Mapping[str, int], name: str) -> str | None:
    budget = needed[0]
    if budget.status.observed_generation < budget.metadata.generation:
        return f"PodDisruptionBudget {name} has changed and is not counted yet"
    left = max(0, budget.status.disruptions_allowed - charged[name])
    if len(needed) <= left:
        return None
    return f"PodDisruptionBudget {name} allows {left} more evictions of the {len(needed)} needed"
