"""What stands in the way of a shape on all the nodes of a group, beyond what their reason says. Pure.

A node whose graph nobody vouches for is refused for one reason, whatever became of its agent; and where no node has an
island of that size, waiting for one is no advice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from gputopo.model import Interconnect
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.staleness import Staleness, staleness
from scheduler_core.explain.advice import ReasonAdvice
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

_NAMED = 4
_WHY = {
    Staleness.SILENT: (
        "its agent has not confirmed the topology for too long, or not at a time that can be read: look at its log"
    ),
    Staleness.UNCONFIRMED: (
        "the Node carries a topology and has no NodeGpus, so nobody confirms it: start the agent, or, where there is "
        f"to be none, remove the annotation {keys.TOPOLOGY.key}"
    ),
    Staleness.OTHER: (
        "its NodeGpus speaks of another topology than the Node carries: it passes in seconds, unless the agent cannot "
        "write the Node, which its log says"
    ),
    Staleness.AHEAD: (
        "clock skew: its NodeGpus was observed more than 10 minutes from now, so its age cannot be told; set the clock "
        "of the node, or of the extender"
    ),
}


def staleness_notes(refused: Mapping[str, Reason], table: Snapshot, now: float, policy: Policy) -> Iterator[str]:
    """Why nobody vouches for the topology of nodes that are refused for it."""
    groups: defaultdict[Staleness, list[str]] = defaultdict(list)
    for name in sorted(name for name, reason in refused.items() if reason is Reason.UNKNOWN_TOPOLOGY):
        why = staleness(table.records[name], now, policy)
        if why is not None:
            groups[why].append(name)
    for why, names in groups.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{', '.join(names[:_NAMED])}{more}: {_WHY[why]}"


def impossible_advice(profile: PodProfile, reason: Reason, names: list[str], table: Snapshot) -> ReasonAdvice | None:
    """What to say of nodes that will not have such an island, however long one waits; None: one of them may."""
    if reason not in (Reason.ISLAND, Reason.INTERCONNECT) or profile.constraints.interconnect is Interconnect.NVSWITCH:
        return None
    needed = profile.constraints.parallel or profile.gpus
    shapes = {shape for name in names if (shape := table.states[name].shape) is not None}
    largest = max((island.bit_count() for shape in shapes for island in shape.islands or ()), default=0)
    if needed < 2 or largest >= needed:
        return None
    products = sorted({gpu.product for shape in shapes for gpu in shape.gpus if gpu.product is not None})
    if largest > 1:
        means = f"No node of these has an NVLink island of {needed} GPUs, free or not: the largest has {largest}."
        do = f"Waiting does not help: ask for {largest} GPUs or fewer a pod, add nodes with larger islands"
    else:
        means = f"No node of these has NVLink between its GPUs ({', '.join(products) or 'of unknown product'})."
        do = "Waiting does not help: add nodes with NVLink"
    key = keys.POD_ISLAND if reason is Reason.ISLAND else keys.POD_INTERCONNECT
    drop = f"say {key.key}: preferred" if reason is Reason.ISLAND else f"leave out {key.key}"
    return ReasonAdvice(means, f"{do}, or {drop}.")
