"""Example constraints for gputopo: licences that only some racks have, and cooling zones with different reserves."""

from __future__ import annotations

from gputopo.labels.reasons import Reason
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.extensions import declare_reads
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

RACK_LICENCES = "example.com/rack-licences"  # node label: the licences of its rack, separated by "."
LICENCE = "example.com/licence"  # pod annotation: the licence that it needs
COOLING_RESERVE = "example.com/cooling-reserve"  # node label: percent of the cooling of its zone that is not in use


@declare_reads(node_labels=(RACK_LICENCES,), pod_annotations=(LICENCE,))
def rack_licence(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """The rack of the node must have the licence that the pod needs."""
    needed = profile.annotation(LICENCE)
    if needed is None or needed in (node.label(RACK_LICENCES) or "").split("."):
        return None
    return Reason.EXTENSION


@declare_reads(node_labels=(COOLING_RESERVE,))
def cooling(_: PodProfile, node: NodeState, __: Policy) -> float:
    """The part of the cooling of the node's zone that is not in use."""
    reserve = node.label(COOLING_RESERVE) or ""
    return min(100, int(reserve)) / 100 if reserve.isascii() and reserve.isdigit() else 0.0
