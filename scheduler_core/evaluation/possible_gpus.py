"""The GPUs that a pod may be allocated on a node, and the properties of all possible sets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gputopo.labels.keys import MIG_RESOURCE_PREFIX
from gputopo.recent_results import recent_results
from gputopo.rings import Ring
from scheduler_core.allocation.admission import predict_in_steps, predict_sets
from scheduler_core.allocation.device_plugin import Prediction
from scheduler_core.allocation.gpu_sets import (
    ExactSets,
    Sets,
    exact_sets,
    member_places,
    single_bits,
    some_set,
    subsets,
    union,
)
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState
from scheduler_core.request.device_request import WHOLE, ContainerSteps, DeviceRequest, total_devices

_MAX_RING_STEPS = 1 << 15  # 20 ms where the links are irregular: 128 sets of 8 GPUs. 8 GPUs never exceed it


class PossibleGpus(NamedTuple):
    """The GPUs that may be allocated for one resource of a pod."""

    resource: str
    sets: Sets  # of GPUs; no set at all: the kubelet would reject the pod
    may_crash: bool = False  # the device plugin's crash is one of the possible outcomes


def possible_gpus(device_request: DeviceRequest, node: NodeState) -> tuple[PossibleGpus, ...]:
    """Return the possible GPUs for each requested resource; none where the node's GPUs are not known."""
    return _possible_gpus(device_request.steps_by_resource, device_request.aligned_steps, node)


def predict_whole_gpus_in_steps(device_request: DeviceRequest, node: NodeState) -> Iterator[None]:
    """Predict the whole GPUs that may be allocated, in steps: then ``possible_gpus`` does not take long."""
    shape, free, kubelet = node.shape, node.free, node.kubelet
    for resource, steps in device_request.steps_by_resource:
        if resource == WHOLE and shape is not None and free is not None:
            yield from predict_in_steps(shape, free, kubelet.steps_of(steps, device_request.aligned_steps), kubelet)


def whole_gpu_outcome(device_request: DeviceRequest, node: NodeState) -> PossibleGpus | None:
    """Return the GPUs that work together in the pod; None where they are not known, and for MIG devices."""
    found = possible_gpus(device_request, node)
    return found[0] if len(found) == 1 and not found[0].resource.startswith(MIG_RESOURCE_PREFIX) else None


def candidate_sets(sets: Sets) -> Iterable[int]:
    """Return the sets; where they are too many to list, the set of all their members, which is worse than any."""
    return sets.masks if isinstance(sets, ExactSets) else (sets.among,)


@recent_results(1 << 14)
def possible_memory_mib(shape: MachineShape, outcome: PossibleGpus) -> frozenset[int | None]:
    """Return the memory sizes of the GPUs, or of the MIG devices, that may be allocated."""
    gpus = [shape.gpus[place] for place in member_places(outcome.sets.among)]
    if not outcome.resource.startswith(MIG_RESOURCE_PREFIX):
        return frozenset(gpu.memory_mib for gpu in gpus)
    profile = mig_profile(outcome.resource)
    devices = [[each.memory_mib for each in gpu.mig_devices if each.profile == profile] or [None] for gpu in gpus]
    return frozenset(size for sizes in devices for size in sizes)


def possible_rings(shape: MachineShape, sets: Sets) -> list[Ring]:
    """Return the rings through the possible sets; single GPUs have none.

    Where the sets are too many to list or to search, return the hops between all their members: every ring consists of
    these. The worst of them is the worst ring, unless the links of the machine are irregular.
    """
    masks = sets.masks if isinstance(sets, ExactSets) and _can_search_rings(sets) else subsets(sets.among, 2)
    return [ring for ring in map(shape.ring, masks) if ring is not None]


def _can_search_rings(sets: ExactSets) -> bool:
    """Return whether the search of a ring through each set is short: at worst it visits all subsets of a set."""
    return len(sets.masks) < 2 or sum(1 << mask.bit_count() for mask in sets.masks) <= _MAX_RING_STEPS


@recent_results(1 << 14)
def _possible_gpus(
    steps_by_resource: tuple[tuple[str, ContainerSteps], ...], aligned_steps: ContainerSteps, node: NodeState
) -> tuple[PossibleGpus, ...]:
    """Return the possible GPUs. Pods that differ only in CPU share the cache entry."""
    shape = node.shape
    if shape is None:
        return ()
    return tuple(
        PossibleGpus(resource, *_predict(shape, node, resource, steps, aligned_steps))
        for resource, steps in steps_by_resource
    )


def _predict(
    shape: MachineShape, node: NodeState, resource: str, steps: ContainerSteps, aligned_steps: ContainerSteps
) -> Prediction:
    wanted = total_devices(steps)
    if resource.startswith(MIG_RESOURCE_PREFIX):
        return Prediction(exact_sets(set(single_bits(_mig_gpus(shape, resource)))))
    if resource == WHOLE and node.free is not None:
        return predict_sets(shape, node.free, node.kubelet.steps_of(steps, aligned_steps), node.kubelet)
    # Shares of GPUs: the device plugin spreads them, and may place several on one GPU.
    among = shape.whole or shape.partitioned
    return Prediction(some_set(among, min(wanted, among.bit_count())))


def mig_profile(resource: str) -> str:
    """Return the MIG profile, as ``1g.5gb``, also of ``nvidia.com/mig-1g.5gb.shared``."""
    return resource.removeprefix(MIG_RESOURCE_PREFIX).removesuffix(".shared")


def _mig_gpus(shape: MachineShape, resource: str) -> int:
    """Return the GPUs with MIG devices of the profile; where the devices are not known, all GPUs that may have some."""
    profile = mig_profile(resource)
    found = union(
        1 << place
        for place in member_places(shape.partitioned)
        if any(each.profile == profile for each in shape.gpus[place].mig_devices)
    )
    return found or shape.partitioned or shape.whole
