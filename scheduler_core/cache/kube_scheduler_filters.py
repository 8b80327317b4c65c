"""Predict kube-scheduler's own rejections of nodes: cordons, taints, node selectors, node affinity. Pure.

Used by explanations and by the planner. The extender does not need it: kube-scheduler has filtered before it calls the
extender. Rules that depend on other pods (CPU, memory, ports, pod affinity, spread) and on volumes are not checked.

Source: the plugins NodeUnschedulable, TaintToleration and NodeAffinity of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hashlib import blake2b

import msgspec

from gputopo.kube.taints import CORDON, NODE_REMOVAL_TAINTS, Taint, unusable_reasons
from scheduler_core.cache.node import Node
from scheduler_core.request.full_pod import FullPodSpec, LabelSelector, Toleration
from scheduler_core.request.pod import Affinity, RequiredTerm, RequiredTerms, Requirement, required_nodes

VOLUMES_REASON = "a volume of the pod cannot be used there: the node affinity of the volume, or its storage class"
NODE_REMOVAL_REASON = "an autoscaler is about to delete the node"


class FullNodeSpec(msgspec.Struct, frozen=True):
    """The ``spec`` of a Node."""

    taints: tuple[Taint, ...] | None = None
    unschedulable: bool = False


class FullNode(Node, frozen=True):
    """A Node with the fields that kube-scheduler's own filters use."""

    spec: FullNodeSpec = FullNodeSpec()

    @property
    def unusable(self) -> tuple[str, ...]:
        """Return why the node takes no new pods; empty: it takes pods."""
        return unusable_reasons(self.spec.taints or (), unschedulable=self.spec.unschedulable)


class SchedulingRules(msgspec.Struct, frozen=True, dict=True):
    """The rules of a pod about its nodes."""

    spec: FullPodSpec  # nodeSelector, required node affinity and tolerations only
    unchecked: tuple[str, ...] = ()  # rules of the pod that ``rejection`` does not check
    volumes: tuple[RequiredTerms, ...] = ()  # node affinity of its volumes: all must match

    @cached_property
    def key(self) -> bytes:
        """A hash, equal for equal rules, because comparing long rules is slow."""
        return blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=16).digest()


def rejection(pod: FullPodSpec, node: FullNode) -> str | None:
    """Return why kube-scheduler would reject the node, whatever its GPUs; None: no rule is known to reject it."""
    taints = [*(node.spec.taints or ())]
    if node.spec.unschedulable:
        taints.insert(0, Taint(CORDON, "", "NoSchedule"))
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(_tolerates(each, taint) for each in pod.tolerations or ()):
            return "the node is cordoned" if taint.key == CORDON else f"the taint {taint} of the node is not tolerated"
    labels = node.metadata.labels or {}
    for key, value in (pod.node_selector or {}).items():
        if labels.get(key) != value:
            return f"the node has no label {key}={value}, as nodeSelector requires"
    return None if _affinity_matches(pod.affinity, node) else "the pod's node affinity does not match the node"


def is_leaving(node: FullNode) -> bool:
    """Return whether an autoscaler is about to delete the node."""
    return any(each.key in NODE_REMOVAL_TAINTS for each in node.spec.taints or ())


def volume_rejection(volumes: Iterable[RequiredTerms], node: FullNode) -> str | None:
    """Return why kube-scheduler would reject the node because of the pod's volumes; None: no volume rejects it.

    Source: the plugin VolumeBinding of kube-scheduler.
    """
    matches = all(any(_matches(term, node) for term in each.node_selector_terms or ()) for each in volumes)
    return None if matches else VOLUMES_REASON


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key != "" and toleration.value == taint.value)


def _affinity_matches(affinity: Affinity | None, node: FullNode) -> bool:
    required = required_nodes(affinity)
    return required is None or any(_matches(term, node) for term in required.node_selector_terms or ())


def _matches(term: RequiredTerm, node: FullNode) -> bool:
    """Return whether the term matches the node. An empty term matches nothing."""
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    labels = node.metadata.labels or {}
    name = {"metadata.name": node.metadata.name}
    every = [_holds(each, labels) for each in expressions] + [_holds(each, name) for each in fields]
    return bool(every) and all(every)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    found = _OPERATORS.get(requirement.operator)
    return found is not None and found(labels.get(requirement.key), requirement)


def selector_matches(selector: LabelSelector, labels: Mapping[str, str] | None) -> bool:
    """Return whether the selector matches these labels. None: too many to be kept, so any selector may match."""
    if labels is None:
        return True
    equal = all(labels.get(key) == value for key, value in (selector.match_labels or {}).items())
    return equal and all(_holds(each, labels) for each in selector.match_expressions or ())


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _compares(has: str | None, requirement: Requirement, sign: int) -> bool:
    one, other = _number(has), _number(next(iter(requirement.values or ()), None))
    return one is not None and other is not None and sign * one > sign * other


_OPERATORS: dict[str, Callable[[str | None, Requirement], bool]] = {
    "In": lambda has, requirement: has in requirement.value_set,
    "NotIn": lambda has, requirement: has not in requirement.value_set,
    "Exists": lambda has, _: has is not None,
    "DoesNotExist": lambda has, _: has is None,
    "Gt": lambda has, requirement: _compares(has, requirement, 1),
    "Lt": lambda has, requirement: _compares(has, requirement, -1),
}
