"""Why a group of nodes cannot offer a shape, in more detail than their reason. Pure.

Nodes with an unconfirmed topology have one reason, whatever happened to their agents; and where no node has an island
of that size, it is no use to wait for one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from gputopo.model import Interconnect
from gputopo.render.report import age_words, listed
from gputopo.render.wording import counted_noun
from scheduler_core.allocation.gpu_sets import union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.staleness import Staleness, observed_at, staleness
from scheduler_core.explain.advice import ReasonAdvice
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

_RESTORED = "a running agent restores it within a heartbeat, and names the field manager in an Event of the Node"
_MOST_SILENT = 16  # nodes with the time of their last report
_WHY = {
    Staleness.UNCONFIRMED: (
        "the Node carries a topology and has no NodeGpus that confirms it: start the agent, or, if no agent is to run "
        f"there, remove the annotation {keys.TOPOLOGY.key}"
    ),
    Staleness.HASH_MISMATCH: (
        "its NodeGpus is about another topology than the Node carries: this lasts seconds, unless the agent cannot "
        "write the Node (check its log), or another client edited its NodeGpus or the annotation "
        f"{keys.TOPOLOGY.key}: {_RESTORED}"
    ),
    Staleness.CLOCK_AHEAD: (
        "clock skew: its NodeGpus was observed more than 10 minutes from now, so its age is unknown; set the clock of "
        "the node, or of the extender"
    ),
}


def staleness_notes(refused: Mapping[str, Reason], table: ClusterSnapshot, now: float, policy: Policy) -> Iterator[str]:
    """Yield why the topology of rejected nodes is not confirmed."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    silent = []
    for name in sorted(name for name, reason in refused.items() if reason is Reason.UNKNOWN_TOPOLOGY):
        error, why = table.records[name].machine.annotation_error, staleness(table.records[name], now, policy)
        if error is not None:
            groups[f"its annotation {keys.TOPOLOGY.key} cannot be read: {error}; if edited, {_RESTORED}"].append(name)
        elif why is Staleness.SILENT:
            silent.append(name)
        elif why is not None:
            groups[_WHY[why]].append(name)
    if silent:
        yield _silent_note(silent, table, now)
    for text, names in groups.items():
        yield f"{listed(names)}: {text}"


def _silent_note(names: list[str], table: ClusterSnapshot, now: float) -> str:
    """Return which agents are silent, and for how long each."""
    agents = []
    for name in names:
        gpus = table.records[name].gpus
        at = observed_at(gpus) if gpus is not None else 0.0
        agents.append(f"{name} ({age_words(now - at)})" if at > 0 else f"{name} (invalid time of its last report)")
    do = "check that its pod runs on each of these nodes, and read its log"
    what = "the agent is silent, so the topology is not confirmed (time since its last report)"
    return f"{what}: {listed(agents, _MOST_SILENT)}; {do}"


def impossible_advice(
    profile: PodProfile, reason: Reason, names: Collection[str], table: ClusterSnapshot
) -> ReasonAdvice | None:
    """Return the advice for nodes that can never fit, whichever pods end; None: at least one may fit."""
    states = [table.states[name] for name in names if name in table.states]
    if len(states) < len(names) or not states:
        return None
    if reason is Reason.TOO_FEW_GPUS:
        return _too_few_devices(profile, [dict(each.allocatable) for each in states])
    shapes = {each.shape for each in states if each.shape is not None}
    if reason is Reason.NUMA:
        rejects = any(each.kubelet.rejects for each in states) or any(each.shape is None for each in states)
        return None if rejects or len(profile.device_request.totals) > 1 else _small_numa_nodes(profile, shapes)
    if reason not in (Reason.ISLAND, Reason.INTERCONNECT) or profile.constraints.interconnect is Interconnect.NVSWITCH:
        return None
    return _small_islands(profile, reason, shapes)


def _too_few_devices(profile: PodProfile, offered: Collection[Mapping[str, int]]) -> ReasonAdvice | None:
    """Return the advice where no node has as many devices of a resource as the pod requests, free or not.

    ``offered``: the allocatable devices of each node.
    """
    for resource, needed in profile.device_request.totals:
        largest = max((each.get(resource, 0) for each in offered), default=0)
        if largest < needed:
            means = f"None of these nodes has {needed} {resource}, free or not: the largest number is {largest}."
            request = f"request {largest} or fewer per pod, or " if largest else ""
            return ReasonAdvice(means, f"Waiting for a pod to end does not help: {request}add nodes with more.")
    return None


def _small_numa_nodes(profile: PodProfile, shapes: Collection[MachineShape]) -> ReasonAdvice | None:
    """Return the advice where no NUMA node has as many GPUs as the pod requests, free or not."""
    sizes = [
        [mask.bit_count() for mask in shape.numa_gpus.values()]
        if union(shape.numa_gpus.values()) == shape.whole
        else (None if shape.summary is None else shape.summary.numa_gpus)
        for shape in shapes
    ]
    if any(not each for each in sizes):
        return None
    largest = max((size for each in sizes for size in each or ()), default=0)
    if not 0 < largest < profile.gpus:
        return None
    means = (
        f"None of these nodes has {profile.gpus} GPUs on one NUMA node, free or not: the largest number is {largest}."
    )
    do = f"Waiting does not help: request {counted_noun(largest, 'GPU')} or fewer per pod"
    return ReasonAdvice(means, f"{do}, or set {keys.POD_NUMA.key}: preferred.")


def _small_islands(profile: PodProfile, reason: Reason, shapes: Collection[MachineShape]) -> ReasonAdvice | None:
    """Return the advice where no NVLink island has as many GPUs as the pod requests, free or not."""
    needed = profile.constraints.parallel or profile.gpus
    sizes = [island.bit_count() for shape in shapes for island in shape.islands or ()]
    sizes += [size for shape in shapes if shape.summary is not None for size in shape.summary.island_sizes or ()]
    largest = max(sizes, default=0)
    if needed < 2 or largest >= needed:
        return None
    products = sorted({gpu.product for shape in shapes for gpu in shape.gpus if gpu.product is not None})
    if largest > 1:
        means = f"None of these nodes has an NVLink island of {needed} GPUs, free or not: the largest has {largest}."
        do = f"Waiting does not help: request {largest} GPUs or fewer per pod, add nodes with larger islands"
    else:
        means = f"None of these nodes has NVLink between its GPUs ({', '.join(products) or 'of unknown product'})."
        do = "Waiting does not help: add nodes with NVLink"
    key = keys.POD_ISLAND if reason is Reason.ISLAND else keys.POD_INTERCONNECT
    drop = f"set {key.key}: preferred" if reason is Reason.ISLAND else f"remove {key.key}"
    return ReasonAdvice(means, f"{do}, or {drop}.")
