"""The raw scores of a node's hardware, each between 0 and 1: a function for each factor. Pure.

Each is the score of the worst set of GPUs that the device plugin may choose. An unknown score is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputopo.model import Interconnect, PcieDistance
from gputopo.paths import PathKind
from gputopo.recent_results import recent_results
from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.filters import may_be_degraded
from scheduler_core.evaluation.possible_gpus import candidate_sets, possible_gpus, possible_rings, whole_gpu_outcome
from scheduler_core.evaluation.score_fragmentation import fragmentation_score
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.pod_request import PodProfile

_REMEMBERED = 1 << 14
_HALF_AT_MIB = 80 * 1024.0
_HALF_AT_GBPS = 300.0
_HALF_AT_NETWORK_GBPS = 100.0
_PCIE = {distance: 0.1 - 0.02 * place for place, distance in enumerate(PcieDistance)}
_HINT = {Interconnect.NVSWITCH: 0.2, Interconnect.NVLINK: 0.15}


def bandwidth(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return g / (g + 300) of the ring with g GB/s: 900 is 0.75, 600 is 0.67, 300 is 0.5, 50 is 0.14.

    Over PCIe by distance instead: PIX 0.10, PXB 0.08, PHB 0.06, NODE 0.04, SYS 0.02. Where the labels name only the
    kind of interconnect: 0.2 for NVSwitch, 0.15 for NVLink.
    """
    found = whole_gpu_outcome(profile.device_request, node)
    if node.shape is None or found is None:
        return _HINT.get(node.interconnect, 0.0) if node.interconnect else 0.0
    return _slowest(node.shape, found.sets, node.interconnect)


def leftover(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return 1 / (1 + e^(-2 gain)), in steps; the gain is the number of free GPUs that cease to be fragments."""
    found = whole_gpu_outcome(profile.device_request, node)
    return fragmentation_score(profile, node, policy.demand_mix, None if found is None else found.sets)


def numa(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return 1 / (number of NUMA nodes of the GPUs).

    With ``preferNumaZero``, where only labels describe the node: 1 on NUMA node 0, 0 on another node.
    """
    if node.shape is None:
        return 0.0
    prefer_zero = policy.prefer_numa_zero and not node.described and profile.constraints.numa is None
    return min(
        (_least_local(node.shape, each.sets, prefer_zero) for each in possible_gpus(profile.device_request, node)),
        default=0.0,
    )


def nic(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return the mean nearness of each GPU's nearest NIC: PIX 1.0, PXB 0.8, PHB 0.6, NODE 0.4, SYS 0.2, none 0."""
    if node.shape is None:
        return 0.0
    return min(
        (_farthest_from_nics(node.shape, each.sets) for each in possible_gpus(profile.device_request, node)),
        default=0.0,
    )


def network(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return g / (g + 100) for g GB/s of each GPU over the NICs near it: 200 is 0.67, 100 is 0.5, 25 is 0.2."""
    found = whole_gpu_outcome(profile.device_request, node)
    if node.network_gbps is None or found is None:
        return 0.0
    return min(
        (_network_share(node.network_gbps, found.sets, mask) for mask in candidate_sets(found.sets)), default=0.0
    )


def memory(_: PodProfile, node: NodeState, __: Policy) -> float:
    """Return m / (m + 80 GiB) for the memory m of the node's smallest usable GPU; 0 if unknown."""
    sizes = [gpu.memory_mib for gpu in (() if node.shape is None else node.shape.gpus) if gpu.usable]
    known = [size for size in sizes if size is not None]
    return min(known) / (min(known) + _HALF_AT_MIB) if known and len(known) == len(sizes) else 0.0


def health(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return 0 if a GPU may be degraded, the node is stale, or the device plugin may crash over the pod; else 1."""
    if policy.stale is not Handling.IGNORE and node.stale:
        return 0.0
    if policy.degraded is not Handling.IGNORE and may_be_degraded(profile, node):
        return 0.0
    return 0.0 if any(each.may_crash for each in possible_gpus(profile.device_request, node)) else 1.0


def _of_ring(ring: Ring, hint: Interconnect | None) -> float:
    if ring.kind is PathKind.PCIE:
        return 0.0 if ring.distance is None else _PCIE[ring.distance]
    if ring.kind is PathKind.UNKNOWN or ring.gbps is None:
        return _HINT.get(hint, 0.0) if hint else 0.0
    return ring.gbps / (ring.gbps + _HALF_AT_GBPS)


# Many nodes have the same shape and the same free GPUs, and many pods request the same number of GPUs. So the worst
# score of the possible sets is cached. Without a possible set it is 0.


@recent_results(_REMEMBERED)
def _slowest(shape: MachineShape, sets: Sets, hint: Interconnect | None) -> float:
    return min((_of_ring(ring, hint) for ring in possible_rings(shape, sets)), default=0.0)


@recent_results(_REMEMBERED)
def _least_local(shape: MachineShape, sets: Sets, prefer_zero: bool) -> float:
    return min((_locality(shape, mask, prefer_zero=prefer_zero) for mask in candidate_sets(sets)), default=0.0)


@recent_results(_REMEMBERED)
def _farthest_from_nics(shape: MachineShape, sets: Sets) -> float:
    near = shape.nic_nearness
    if near is None:
        return 0.0
    means = (_worst_mean([near[place] for place in member_places(mask)], sets, mask) for mask in candidate_sets(sets))
    return min(means, default=0.0)


def _locality(shape: MachineShape, mask: int, *, prefer_zero: bool) -> float:
    count = shape.count_numa_nodes(mask)
    if count is None:
        return 0.0
    if prefer_zero and count == 1:
        return 1.0 if shape.on_numa(0, mask) == mask else 0.0
    return 1 / count


def _network_share(rates: Sequence[float], sets: Sets, mask: int) -> float:
    gbps = _worst_mean([rates[place] for place in member_places(mask)], sets, mask)
    return gbps / (gbps + _HALF_AT_NETWORK_GBPS)


def _worst_mean(near: list[float], sets: Sets, mask: int) -> float:
    """Return the mean over one known set, or over the worst set of this size."""
    size = mask.bit_count() if isinstance(sets, ExactSets) else sets.size
    return sum(sorted(near)[:size]) / size
