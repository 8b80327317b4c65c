"""The raw scores of a pod's workload type and of cost, each between 0 and 1: a function for each factor. Pure.

An unknown score is 0.
"""

from __future__ import annotations

from scheduler_core.allocation.gpu_sets import lowest_bit, member_places
from scheduler_core.allocation.shared_gpus import fill_levels, fill_score
from scheduler_core.cache.colocation import Proximity, conflicts_with
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import (
    candidate_sets,
    possible_gpus,
    possible_memory_mib,
    whole_gpu_outcome,
)
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

ALONE, DISTURBED = 0.9, 0.1
_PROXIMITY = {None: 0.0, Proximity.NODE: 1.0, Proximity.CLIQUE: 0.7, Proximity.RACK: 0.4}


def contiguous(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return n / (highest index - lowest index + 1) for n GPUs."""
    found = whole_gpu_outcome(profile.device_request, node)
    if node.shape is None or found is None:
        return 0.0
    size = profile.devices
    return min(
        (min(1.0, size / (mask.bit_length() - lowest_bit(mask))) for mask in candidate_sets(found.sets)), default=0.0
    )


def isolation(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return 0.9 on a node without the other of training and inference, 0.1 beside it."""
    return DISTURBED if conflicts_with(profile, node.colocation) else ALONE


def siblings(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return 1 for the product and driver of the other pods of the job, 0.5 for the same product only, else 0."""
    like = profile.sibling_hardware
    if like is None or like.product is None or node.shape is None:
        return 0.0
    gpus = [
        node.shape.gpus[place]
        for each in possible_gpus(profile.device_request, node)
        for mask in candidate_sets(each.sets)
        for place in member_places(mask)
    ]
    if any(gpu.product != like.product for gpu in gpus):
        return 0.0
    return 1.0 if like.driver is not None and node.driver == like.driver else 0.5


def proximity(_: PodProfile, node: NodeState, __: Policy) -> float:
    """Return 1 on a node with other pods of the job, 0.7 in the clique of such a node, 0.4 in its rack, else 0."""
    return _PROXIMITY[node.proximity]


def packing(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return how near the fill level s of the GPU comes to the band.

    Below the band 0.1 + 0.9 s / low, in it 1, above it 0.1 (1 - s) / (1 - high). Of the worst GPU that may be chosen;
    of whole GPUs and MIG devices s is the pod's share of one.
    """
    share, asked = profile.constraints.vram_mib, dict(profile.device_request.totals)
    if node.shared_gpus is not None and node.shared_gpus.resource in asked:
        full = fill_levels(node.shared_gpus, share)
    elif share is None or node.shape is None:
        return 0.0
    else:
        sizes = {
            size
            for each in possible_gpus(profile.device_request, node)
            for size in possible_memory_mib(node.shape, each)
        }
        full = [min(1.0, share / size) if size else 1.0 for size in sizes]
    return min((fill_score(each, policy.fill_bands) for each in full), default=0.0)


def spread(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return 1 / (1 + n) for n pods of the same owner; if all are on other islands 1 / (1 + n / 2)."""
    if node.owner_pods is None:
        return 1.0
    shape, masks = (
        node.shape,
        [mask for each in possible_gpus(profile.device_request, node) for mask in candidate_sets(each.sets)],
    )
    islands = (shape.islands if shape is not None else None) or (-1,)
    shares_island = any(
        island & mask and island & node.owner_pods.gpus for island in islands for mask in masks or (-1,)
    )
    return 1 / (1 + node.owner_pods.pods) if shares_island else 1 / (1 + node.owner_pods.pods / 2)


def utilisation(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Return the share of the node's devices that is in use once the pod is there."""
    offered = dict(node.allocatable)
    shares = [
        1 - (node.free_devices(resource) - wanted) / offered[resource]
        for resource, wanted in profile.device_request.totals
        if offered.get(resource)
    ]
    return max(0.0, min(1.0, min(shares, default=0.0)))


def measured_idle(_: PodProfile, node: NodeState, __: Policy) -> float:
    """Return 1 - b for the mean busy share b of the node's GPUs in the last minutes, in steps of 0.1."""
    return 0.0 if node.extras is None or node.extras.busy_percent is None else 1 - node.extras.busy_percent / 100


def cost(_: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return half_cost / (half_cost + c) for a cost of c per GPU and hour: free is 1, half_cost is 0.5."""
    return 0.0 if node.cost.per_gpu_hour is None else policy.half_cost / (policy.half_cost + node.cost.per_gpu_hour)


def spot(_: PodProfile, node: NodeState, __: Policy) -> float:
    """Return 1 on capacity that its cloud may take away at any time, else 0."""
    return 1.0 if node.cost.spot else 0.0


def on_demand(_: PodProfile, node: NodeState, __: Policy) -> float:
    """Return the opposite of ``spot``."""
    return 0.0 if node.cost.spot else 1.0


def generation(_: PodProfile, node: NodeState, policy: Policy) -> float:
    """Return p / (n - 1) for the family of its oldest GPU, at place p (from 0, oldest first) of n families.

    Where policy names a family at place e that is good enough: 1 from there on, (p + 1) / (e + 1) before it.
    """
    place = node.cost.generation
    if place is None:
        return 0.0
    enough = policy.enough_generation
    return place / (len(GPU_FAMILIES) - 1) if enough is None else min(1.0, (place + 1) / (enough + 1))
