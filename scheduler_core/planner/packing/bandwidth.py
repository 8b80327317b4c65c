"""Ring bandwidth and GPUs that members get on a node, where these can be predicted. Pure."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets, member_places
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import possible_rings, whole_gpu_outcome
from scheduler_core.request.device_request import WHOLE, ContainerStep, DeviceRequest, total_devices


class Bottleneck(NamedTuple):
    """Bandwidth of the slowest ring that is possible."""

    known: bool = True
    gbps: float | None = None  # None although known: there is no ring


def bottleneck(state: NodeState, requests: list[DeviceRequest]) -> Bottleneck:
    """Return the slowest possible ring through all GPUs of these members on a node in this state."""
    gpus = sum(total_devices(request.whole_gpu_steps) for request in requests)
    if gpus < 2:
        return Bottleneck()
    if state.shape is None or state.free is None:
        return Bottleneck(known=False)
    # The kubelet admits one pod after the other; devices of a pod's init containers do not go to another pod.
    program = tuple(
        ContainerStep(total_devices(request.whole_gpu_steps)) for request in requests if request.whole_gpu_steps
    )
    found = possible_rings(state.shape, predict_sets(state.shape, state.free, program, state.kubelet).sets)
    rates = [ring.gbps for ring in found if ring.gbps is not None]
    if not rates or len(rates) < len(found):
        return Bottleneck(known=False)
    return Bottleneck(gbps=min(rates))


def slowest_gbps(found: list[Bottleneck]) -> float | None:
    """Return the slowest of all nodes, GB/s; None: it is unknown for a node, or no node has a ring."""
    rates = [each.gbps for each in found if each.gbps is not None]
    return min(rates) if rates and all(each.known for each in found) else None


def expected_gpus(state: NodeState, request: DeviceRequest) -> tuple[int, ...]:
    """Return indices of the GPUs that a single member on the node gets; (): several sets are possible."""
    found = whole_gpu_outcome(request, state)
    if state.shape is None or found is None or found.resource != WHOLE or found.may_crash:
        return ()
    if not isinstance(found.sets, ExactSets) or len(found.sets.masks) != 1:
        return ()
    return tuple(sorted(state.shape.gpus[place].index for place in member_places(found.sets.masks[0])))
