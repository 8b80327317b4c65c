"""Reads PodDisruptionBudgets and the labels of the pods to evict when they are needed: no watch keeps them."""

from __future__ import annotations

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import NotFoundError
from gputopo.kube.objects import PartialObject
from gputopo.kube.rbac import DISRUPTION_BUDGETS, PODS
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.budgets import DisruptionBudget, blocked_units

_FEW = 16  # so many pods of a namespace are read one by one


def check_budgets(kube: Kube, action: CheckBudgets) -> dict[str, str]:
    """Return the reason for each unit that may not be evicted. Raises ``KubeError``."""
    budgets: list[DisruptionBudget] = []
    labels: dict[str, dict[str, str]] = {}
    names: dict[str, dict[str, str]] = {}
    for each in action.evictions:
        names.setdefault(each.namespace, {})[each.name] = each.uid
    for namespace, uids in names.items():
        found = kube.list_objects(DISRUPTION_BUDGETS, DisruptionBudget, ListOptions(namespace))
        budgets += found
        # Without a budget in the namespace, the labels do not matter.
        labels |= _read_labels(kube, namespace, uids) if found else {uid: {} for uid in uids.values()}
    return blocked_units(action.evictions, budgets, labels)


def _read_labels(kube: Kube, namespace: str, uids: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the labels of the pods that exist, by UID. ``uids``: by name."""
    options = ListOptions(namespace, metadata_only=True)
    if len(uids) > _FEW:
        found = [each.metadata for each in kube.list_objects(PODS, PartialObject, options)]
    else:
        found = []
        for name in uids:
            try:
                found.append(kube.get(PODS, name, PartialObject, options).metadata)
            except NotFoundError:
                continue
    return {each.uid: each.labels for each in found if uids.get(each.name) == each.uid}
