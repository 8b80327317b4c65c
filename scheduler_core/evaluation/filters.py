"""Why a node does not suit a pod. Pure: each filter decides on what it is given, and a "no" is a value.

The kubelet chooses the GPUs, not we: so whatever must hold is judged by the worst that may come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import Prediction, predict_exact
from scheduler_core.allocation.gpu_sets import ExactSets, member_places, some_set, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.named_shares import free_fraction, gpus_with_free_memory
from scheduler_core.allocation.occupancy import PendingAdmission, follow_admissions
from scheduler_core.allocation.shared_gpus import replicas_fit
from scheduler_core.cache.colocation import conflicts_with, refused_by
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import (
    PossibleGpus,
    candidate_sets,
    possible_gpus,
    possible_memory_mib,
    whole_gpu_outcome,
)
from scheduler_core.evaluation.shape_rules import first_violation
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.device_request import WHOLE, DeviceRequest
from scheduler_core.request.gpu_model import is_model
from scheduler_core.request.pod_request import PodProfile, Strength

Filter = Callable[[PodProfile, NodeState, Policy], Reason | None]


def enough_devices(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Free healthy devices of each resource, as kube-scheduler counts, and a choice that the kubelet can make."""
    share = profile.constraints.vram_mib
    if node.obeys and node.shape is not None and share is not None and not profile.gpus:
        fits_on = gpus_with_free_memory(node.shape, free_fraction(node.shape, node.free, node.promised), share)
        return _missing_devices(profile.device_request, node) or (Reason.VRAM if next(fits_on, None) is None else None)
    return _missing_devices(profile.device_request, node)


def model(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Every GPU that may come is of the model asked for."""
    wanted = profile.constraints.model
    if wanted is None:
        return None
    found = possible_gpus(profile.device_request, node)
    if node.shape is None or not all(_is_model(node.shape, each, wanted) for each in found):
        return Reason.MODEL
    return None


def vram(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Every GPU, or MIG device, that may come has the memory asked for."""
    needed = max(profile.constraints.min_vram_mib or 0, profile.constraints.vram_mib or 0)
    if not needed:
        return None
    found = possible_gpus(profile.device_request, node)
    if node.shape is None or not all(_has_memory(node.shape, each, needed) for each in found):
        return Reason.VRAM
    return None


def shared_memory(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Of GPUs that pods share: enough memory that nobody has claimed, on every one that may come."""
    replicas = 0 if node.ledger is None else dict(profile.device_request.totals).get(node.ledger.resource, 0)
    if node.ledger is None or not replicas or replicas_fit(node.ledger, profile.constraints.vram_mib, replicas):
        return None
    return Reason.VRAM


def shape(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Island, interconnect, bandwidth and NUMA node, where required. One device has no shape."""
    if not profile.requires_shape:
        return None
    found = whole_gpu_outcome(profile.device_request, node)
    if node.shape is None or found is None:
        return Reason.UNKNOWN_TOPOLOGY
    reason = first_violation(profile.constraints, node.shape, found.sets)
    return _first_constraint(profile) if reason is None and found.may_crash else reason


def admission_promises(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """What was promised to pods that the kubelet has not admitted yet holds, even if it admits this one first.

    Without a graph nobody can vouch for that: it was there when they were let in.
    """
    if not profile.gpus or not node.waiting:
        return None
    shape = node.shape
    if shape is not None and all(_still_holds(each, shape, found) for each, found in _forecasts(profile, shape, node)):
        return None
    return Reason.RESERVED


def isolation(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Training and inference apart, where one of them requires it."""
    required = profile.constraints.isolation is Strength.REQUIRED and conflicts_with(profile, node.company)
    return Reason.ISOLATION if required or refused_by(profile, node.company) else None


def hardware_health(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    """No degraded GPU may come, and none of a node that is not heard of any more, where policy says so."""
    if policy.stale is Handling.REFUSE and node.stale:
        return Reason.UNKNOWN_TOPOLOGY
    if policy.degraded is Handling.REFUSE and may_be_degraded(profile, node):
        return Reason.DEGRADED
    return None


FILTERS: tuple[Filter, ...] = (
    enough_devices,
    model,
    vram,
    shared_memory,
    shape,
    admission_promises,
    isolation,
    hardware_health,
)


def rejection_reason(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    """The first reason against the node; None: it suits. What planners keep there is one where no other is."""
    reason = _first_rejection(profile, node, policy)
    if reason is None or node.open is None:
        return reason
    return _first_rejection(profile, node.open, policy) or Reason.RESERVED


def _first_rejection(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    return next((reason for each in FILTERS if (reason := each(profile, node, policy)) is not None), None)


def may_be_degraded(profile: PodProfile, node: NodeState) -> bool:
    """Whether one of the GPUs that may come is worse than it should be; without a graph any may be."""
    if node.shape is None or not node.shape.degraded:
        return node.degraded and not node.described
    degraded = node.shape.degraded
    return any(
        mask & degraded for each in possible_gpus(profile.device_request, node) for mask in candidate_sets(each.sets)
    )


def _forecasts(profile: PodProfile, shape: MachineShape, node: NodeState) -> Iterator[tuple[PodProfile, Prediction]]:
    """What those may get who wait on the node, in every order in which the kubelet may admit them and the new pod."""
    open_, among = node.unsettled, shape.whole if node.free is None else node.free.among
    course = None
    if open_ is not None:
        course = follow_admissions(
            shape, open_._replace(pending=(*open_.pending, PendingAdmission(profile))), single_numa=node.single_numa
        )
        among = open_.start | union(open_.releases)
    if course is None:  # nobody can tell, or too much to follow: no set at all may break a promise
        yield from ((each, Prediction(some_set(among, each.gpus))) for each in node.waiting)
        return
    for free, admitted in course.admissions:
        if admitted in node.waiting:
            yield admitted, predict_exact(shape, free, admitted.device_request.whole_gpu_steps, node.single_numa)


def _still_holds(promised: PodProfile, shape: MachineShape, found: Prediction) -> bool:
    """Whether a pod with a required shape has all that it asks of its GPUs, whichever of them it gets."""
    wishes, outcome = promised.constraints, PossibleGpus(WHOLE, *found)
    if found.may_crash or first_violation(wishes, shape, found.sets) is not None:
        return False
    needed = max(wishes.min_vram_mib or 0, wishes.vram_mib or 0)
    return (wishes.model is None or _is_model(shape, outcome, wishes.model)) and (
        not needed or _has_memory(shape, outcome, needed)
    )


def _missing_devices(ask: DeviceRequest, node: NodeState) -> Reason | None:
    if any(node.free_devices(resource) < wanted for resource, wanted in ask.totals):
        return Reason.TOO_FEW_GPUS
    if any(isinstance(each.sets, ExactSets) and not each.sets.masks for each in possible_gpus(ask, node)):
        return Reason.NUMA if node.single_numa else Reason.TOO_FEW_GPUS
    return None


def _is_model(shape: MachineShape, outcome: PossibleGpus, wanted: str) -> bool:
    products = {shape.gpus[place].product for mask in candidate_sets(outcome.sets) for place in member_places(mask)}
    return all(product is not None and is_model(product, wanted) for product in products)


def _has_memory(shape: MachineShape, outcome: PossibleGpus, needed: int) -> bool:
    """Unknown is not enough."""
    return all(size is not None and size >= needed for size in possible_memory_mib(shape, outcome))


def _first_constraint(profile: PodProfile) -> Reason:
    """Why a node is refused whose device plugin may crash over this pod: no set at all comes of that."""
    wishes = profile.constraints
    if wishes.island is Strength.REQUIRED or wishes.parallel is not None:
        return Reason.ISLAND
    if wishes.interconnect is not None:
        return Reason.INTERCONNECT
    return Reason.NUMA if wishes.min_gbps is None else Reason.BANDWIDTH
