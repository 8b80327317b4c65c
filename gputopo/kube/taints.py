"""Taints of nodes: whether a node takes new pods at all, or belongs to a pool of nodes. Pure.

Used by the table of nodes, by the cluster page and by the planner, so that all agree on the state of a node.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

CORDON = "node.kubernetes.io/unschedulable"
# Taints of nodes that the cluster autoscaler, or Karpenter, is about to delete. Pods that tolerate all taints do not
# keep such a node: it is emptied, whatever runs there.
NODE_REMOVAL_TAINTS = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption")
# Taints that Kubernetes and its cloud providers set on nodes that cannot be used; other taints reserve pools of nodes.
_UNUSABLE_PREFIXES = ("node.kubernetes.io/", "node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
CORDONED = "cordoned"
_UNUSABLE_WORDS = {
    CORDON: CORDONED,
    "node.kubernetes.io/not-ready": "not ready",
    "node.kubernetes.io/unreachable": "unreachable",
    "node-role.kubernetes.io/control-plane": "control plane",
    **dict.fromkeys(NODE_REMOVAL_TAINTS, "about to be removed"),
}
_DRAINING = (CORDON, *NODE_REMOVAL_TAINTS)  # the node is about to be emptied, not kept for other pods
_DRAINING_WORDS = frozenset(_UNUSABLE_WORDS[key] for key in _DRAINING)
_MOST_REASONS = 8  # of one node; the other reasons are counted


class Taint(msgspec.Struct, frozen=True):
    """A taint of a Node."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


def is_pool_taint(key: str) -> bool:
    """Return whether administrators reserve a pool of nodes by this taint."""
    return not key.startswith(_UNUSABLE_PREFIXES) and key not in NODE_REMOVAL_TAINTS


def unusable_reasons(taints: Iterable[Taint], *, unschedulable: bool) -> tuple[str, ...]:
    """Return why a node takes no new pods, whatever pools they tolerate, as ``cordoned``; empty: it takes pods."""
    found = [each.key for each in taints if each.effect != "PreferNoSchedule" and not is_pool_taint(each.key)]
    # Reasons to drain come first: ``is_draining`` must find them in the list.
    keys = sorted([CORDON] * unschedulable + found, key=lambda key: key not in _DRAINING)
    reasons = tuple(dict.fromkeys(_UNUSABLE_WORDS.get(key, f"taint {key}") for key in keys))
    more = len(reasons) - _MOST_REASONS
    return (*reasons[:_MOST_REASONS], f"{more} more taints") if more > 0 else reasons


def is_draining(reasons: Iterable[str]) -> bool:
    """Return whether a node is drained: cordoned, or about to be removed. ``reasons``: of ``unusable_reasons``.

    A node that only has other taints, as one of the control plane or one that is not ready, is not drained.
    """
    return any(each in _DRAINING_WORDS for each in reasons)
