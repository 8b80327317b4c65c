"""The filters: each returns the reason for which a node is rejected, or None. Pure.

The kubelet and its device plugin choose the GPUs. Therefore a hard constraint is checked against the worst set of GPUs
that they may choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from gputopo.labels.keys import MIG_RESOURCE_PREFIX
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.admission import predict_exact, whole_gpu_steps
from scheduler_core.allocation.device_plugin import Prediction
from scheduler_core.allocation.gpu_sets import ExactSets, member_places, some_set, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.named_shares import free_fraction, gpus_with_free_memory
from scheduler_core.allocation.occupancy import PendingAdmission, follow_admissions
from scheduler_core.allocation.shared_gpus import replicas_fit
from scheduler_core.cache.colocation import conflicts_with, refused_by
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.extensions import extension_rejection
from scheduler_core.evaluation.possible_gpus import (
    PossibleGpus,
    candidate_sets,
    mig_profile,
    possible_gpus,
    possible_memory_mib,
    whole_gpu_outcome,
)
from scheduler_core.evaluation.shape_rules import first_violation, nic
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.device_request import WHOLE, DeviceRequest
from scheduler_core.request.gpu_model import is_model
from scheduler_core.request.pod_request import PodProfile, Strength

Filter = Callable[[PodProfile, NodeState, Policy], Reason | None]


def enough_devices(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require enough free healthy devices of each resource, and a set of GPUs that the kubelet can allocate."""
    share = profile.constraints.vram_mib
    if node.honours_gpu_choice and node.shape is not None and share is not None and not profile.gpus:
        fits_on = gpus_with_free_memory(node.shape, free_fraction(node.shape, node.free, node.reserved_mib), share)
        return _missing_devices(profile.device_request, node) or (Reason.VRAM if next(fits_on, None) is None else None)
    return _missing_devices(profile.device_request, node)


def model(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require that every GPU that may be allocated is of the requested model."""
    wanted = profile.constraints.model
    if wanted is None:
        return None
    found = possible_gpus(profile.device_request, node)
    if node.shape is None or not all(_is_model(node.shape, each, wanted) for each in found):
        return Reason.MODEL
    return None


def same_product(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require the product of the job's other pods, where the pod requires it and some are placed."""
    like = profile.sibling_hardware
    if profile.constraints.same_product is not Strength.REQUIRED or like is None:
        return None
    products = {
        None if node.shape is None else node.shape.gpus[place].product
        for each in possible_gpus(profile.device_request, node)
        for mask in candidate_sets(each.sets)
        for place in member_places(mask)
    }
    return None if like.product is not None and products == {like.product} else Reason.MODEL


def vram(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require that every GPU, or MIG device, that may be allocated has the requested memory."""
    needed_mib = max(profile.constraints.min_vram_mib or 0, profile.constraints.vram_mib or 0)
    if not needed_mib:
        return None
    found = possible_gpus(profile.device_request, node)
    if node.shape is None or not all(_has_memory(node.shape, each, needed_mib) for each in found):
        return Reason.VRAM
    return None


def shared_memory(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require enough unclaimed memory on every shared GPU that may be allocated."""
    replicas = 0 if node.shared_gpus is None else dict(profile.device_request.totals).get(node.shared_gpus.resource, 0)
    if (
        node.shared_gpus is None
        or not replicas
        or replicas_fit(node.shared_gpus, profile.constraints.vram_mib, replicas)
    ):
        return None
    return Reason.VRAM


def exclusive_cpus(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require numbers of exclusive CPUs that the kubelet admits; for a required shape it must be known."""
    admitted = node.kubelet.admits_cpus(profile.device_request.aligned_steps)
    refused = admitted is False or (admitted is None and profile.requires_shape)
    return Reason.ADMISSION if refused else None


def aligned_parts(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require that a Topology Manager that rejects pods admits several MIG devices or shares of one container.

    They must surely fit on one NUMA node: the devices in use may all be on any of the nodes.
    """
    if not node.kubelet.rejects or node.shape is None:
        return None
    for resource, steps in profile.device_request.steps_by_resource:
        most = max(step.devices for step in steps)
        if (resource == WHOLE and not node.sliced) or most < 2:
            continue
        used = dict(node.allocatable).get(resource, 0) - node.free_devices(resource)
        if max(_parts_by_numa(node, node.shape, resource), default=0) - used < most:
            return Reason.NUMA
    return None


def required_shape(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require island, interconnect, bandwidth and NUMA node as requested. A single device has no shape."""
    if not profile.requires_shape:
        return None
    found = whole_gpu_outcome(profile.device_request, node)
    if node.shape is None or found is None or _may_reject_by_numa(node, node.shape):
        return Reason.UNKNOWN_TOPOLOGY
    reason = first_violation(profile.constraints, node.shape, found.sets)
    if reason is not None or not found.may_crash:
        return reason
    free = node.shape.whole if node.free is None else node.free.among
    crashes = any(pair & free == pair for pair in node.shape.one_sided_links)
    return Reason.ADMISSION if crashes else _first_constraint(profile)


def free_nic(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require a NIC near each GPU that no pod holds, where the pod requires one."""
    if profile.constraints.nic is not Strength.REQUIRED or not profile.devices:
        return None
    if node.shape is None:
        return Reason.UNKNOWN_TOPOLOGY
    found = [
        nic(profile.constraints, node.shape, each.sets, node.busy_nics, node.pending_nics)
        for each in possible_gpus(profile.device_request, node)
    ]
    return next(filter(None, found), None)


def unadmitted_shapes(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require that pods which the kubelet has not admitted yet keep their shape, even if it admits this pod first.

    Without a link graph this cannot be decided; the graph was known when these pods were placed.
    """
    if not profile.gpus or not node.unadmitted_profiles:
        return None
    shape = node.shape
    if shape is not None and all(_still_holds(each, shape, found) for each, found in _forecasts(profile, shape, node)):
        return None
    return Reason.RESERVED


def isolation(profile: PodProfile, node: NodeState, _: Policy) -> Reason | None:
    """Require that training and inference are on different nodes, where a pod requires isolation."""
    required = profile.constraints.isolation is Strength.REQUIRED and conflicts_with(profile, node.colocation)
    return Reason.ISOLATION if required or refused_by(profile, node.colocation) else None


def hardware_health(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    """Reject degraded GPUs and stale nodes, where the policy refuses them."""
    if policy.stale is Handling.REFUSE and node.stale:
        return Reason.UNKNOWN_TOPOLOGY
    if policy.degraded is Handling.REFUSE and may_be_degraded(profile, node):
        return Reason.DEGRADED
    return None


FILTERS: tuple[Filter, ...] = (
    enough_devices,
    model,
    same_product,
    vram,
    shared_memory,
    exclusive_cpus,
    aligned_parts,
    required_shape,
    free_nic,
    unadmitted_shapes,
    isolation,
    hardware_health,
)


def rejection_reason(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    """Return the first reason against the node; None: it fits.

    Reservations are the reason only where the node would fit without them.
    """
    reason = _first_rejection(profile, node, policy)
    if reason is None or node.unreserved is None:
        return reason
    return _first_rejection(profile, node.unreserved, policy) or Reason.RESERVED


def _first_rejection(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    own = next((reason for each in FILTERS if (reason := each(profile, node, policy)) is not None), None)
    return extension_rejection(profile, node, policy) if own is None and policy.filters else own


def may_be_degraded(profile: PodProfile, node: NodeState) -> bool:
    """Return whether a GPU that may be allocated is degraded; without a link graph any GPU of the node may be."""
    if node.shape is None or not node.shape.degraded:
        return node.degraded and not node.described
    degraded = node.shape.degraded
    return any(
        mask & degraded for each in possible_gpus(profile.device_request, node) for mask in candidate_sets(each.sets)
    )


def _forecasts(profile: PodProfile, shape: MachineShape, node: NodeState) -> Iterator[tuple[PodProfile, Prediction]]:
    """Yield what unadmitted pods may get, in every order in which the kubelet may admit them and the new pod."""
    admissions, among = node.open_admissions, shape.whole if node.free is None else node.free.among
    outcomes = None
    if admissions is not None:
        outcomes = follow_admissions(
            shape,
            admissions._replace(pending=(*admissions.pending, PendingAdmission(profile))),
            node.kubelet,
        )
        among = admissions.among
    if outcomes is None:  # unknown, or too many orders: then every set must keep their shape
        yield from ((each, Prediction(some_set(among, each.gpus))) for each in node.unadmitted_profiles)
        return
    for free, admitted in outcomes.admissions:
        if admitted in node.unadmitted_profiles:
            steps = whole_gpu_steps(admitted.device_request, node.kubelet)
            yield admitted, predict_exact(shape, free, steps, node.kubelet)


def _still_holds(profile: PodProfile, shape: MachineShape, found: Prediction) -> bool:
    """Return whether an unadmitted pod gets the GPUs that it requires, whichever set is allocated."""
    constraints, outcome = profile.constraints, PossibleGpus(WHOLE, *found)
    if found.may_crash or first_violation(constraints, shape, found.sets) is not None:
        return False
    needed_mib = max(constraints.min_vram_mib or 0, constraints.vram_mib or 0)
    return (constraints.model is None or _is_model(shape, outcome, constraints.model)) and (
        not needed_mib or _has_memory(shape, outcome, needed_mib)
    )


def _missing_devices(device_request: DeviceRequest, node: NodeState) -> Reason | None:
    if any(node.free_devices(resource) < wanted for resource, wanted in device_request.totals):
        return Reason.TOO_FEW_GPUS
    if any(isinstance(each.sets, ExactSets) and not each.sets.masks for each in possible_gpus(device_request, node)):
        return Reason.NUMA if node.kubelet.rejects else Reason.TOO_FEW_GPUS
    return None


def _is_model(shape: MachineShape, outcome: PossibleGpus, wanted: str) -> bool:
    products = {shape.gpus[place].product for mask in candidate_sets(outcome.sets) for place in member_places(mask)}
    return all(product is not None and is_model(product, wanted) for product in products)


def _has_memory(shape: MachineShape, outcome: PossibleGpus, needed_mib: int) -> bool:
    """Return whether all GPUs have the memory. Unknown memory does not suffice."""
    unknown = (
        None
        if shape.summary is None or outcome.resource.startswith(MIG_RESOURCE_PREFIX)
        else shape.summary.min_memory_mib
    )
    sizes = (unknown if size is None else size for size in possible_memory_mib(shape, outcome))
    return all(size is not None and size >= needed_mib for size in sizes)


def _may_reject_by_numa(node: NodeState, shape: MachineShape) -> bool:
    """Return whether the kubelet may reject a pod by the NUMA nodes of its GPUs, of which labels state too little."""
    if shape.summary is None or not node.kubelet.rejects or union(shape.numa_gpus.values()) == shape.whole:
        return False
    return shape.summary.on_one_numa_node(shape.whole.bit_count()) is not True


def _first_constraint(profile: PodProfile) -> Reason:
    """Return the reason for a node whose device plugin may crash on this pod: the first hard shape constraint."""
    constraints = profile.constraints
    if constraints.island is Strength.REQUIRED or constraints.parallel is not None:
        return Reason.ISLAND
    if constraints.interconnect is not None:
        return Reason.INTERCONNECT
    if constraints.min_gbps is not None:
        return Reason.BANDWIDTH
    if constraints.max_pcie_distance is not None:
        return Reason.PCIE_DISTANCE
    return Reason.NUMA if constraints.numa is Strength.REQUIRED else Reason.NIC


def _parts_by_numa(node: NodeState, shape: MachineShape, resource: str) -> list[int]:
    """Return how many devices of a resource each NUMA node has; none where it is unknown."""
    total, profile = dict(node.allocatable).get(resource, 0), mig_profile(resource)
    is_mig, gpus = resource.startswith(MIG_RESOURCE_PREFIX), Counter[int | None]()
    for gpu, numa in zip(shape.gpus, shape.numa, strict=True):
        gpus[numa] += sum(each.profile == profile for each in gpu.mig_devices) if is_mig else gpu.usable
    if len(gpus) == 1 and (node.described or None not in gpus):
        return [total]  # without NUMA nodes the kubelet aligns nothing
    if None in gpus or not sum(gpus.values()):
        return []
    each = 1 if is_mig else total // sum(gpus.values())
    return [number * each for number in gpus.values()]
