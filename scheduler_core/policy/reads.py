"""The fields of nodes and pods that the policies of a file read, beyond those that all evaluations read. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_core.policy.extensions import installed_extensions
from scheduler_core.policy.policy import NodeReads, PodReads, Policy


def policy_reads(policies: Iterable[Policy]) -> tuple[NodeReads, PodReads]:
    """Return what any of the policies reads: all profiles share the states of nodes."""
    policies = tuple(policies)
    installed = installed_extensions()
    filters = {use.name: installed.filters.get(use.name) for policy in policies for use in policy.filters}
    factors = {name: installed.factors.get(name) for policy in policies for name, weight in policy.factors if weight}
    used = [each.reads for each in (*filters.values(), *factors.values()) if each is not None]
    undeclared, declared = None in used, [each for each in used if each is not None]
    return (
        NodeReads(any(map(_reads_load, policies)), _keys(each.node_labels for each in declared), undeclared),
        PodReads(
            _keys(each.pod_labels for each in declared), _keys(each.pod_annotations for each in declared), undeclared
        ),
    )


def _reads_load(policy: Policy) -> bool:
    return any(weights.measured_idle for weights in (policy.weights, *policy.workload_weights))


def _keys(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({key for each in lists for key in each}))
