"""What members get on a node: the ring through the gang's GPUs there, and which GPUs, where that is certain. Pure."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_core.allocation.device_plugin import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets, member_places
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import possible_rings, whole_gpu_outcome
from scheduler_core.request.device_request import WHOLE, ContainerStep, DeviceRequest, total_devices


class Bottleneck(NamedTuple):
    """The slowest ring that may come out."""

    known: bool = True
    gbps: float | None = None  # None where known: there is no ring


def bottleneck(state: NodeState, asks: list[DeviceRequest]) -> Bottleneck:
    """Of the ring through all GPUs that those members get on a node in that state."""
    gpus = sum(total_devices(ask.whole_gpu_steps) for ask in asks)
    if gpus < 2:
        return Bottleneck()
    if state.shape is None or state.free is None:
        return Bottleneck(known=False)
    # One after the other, and nothing that an init container had goes to another pod.
    program = tuple(ContainerStep(total_devices(ask.whole_gpu_steps)) for ask in asks if ask.whole_gpu_steps)
    found = possible_rings(
        state.shape, predict_sets(state.shape, state.free, program, single_numa=state.single_numa).sets
    )
    rates = [ring.gbps for ring in found if ring.gbps is not None]
    if not rates or len(rates) < len(found):
        return Bottleneck(known=False)
    return Bottleneck(gbps=min(rates))


def slowest_gbps(found: list[Bottleneck]) -> float | None:
    """Of all nodes, GB/s; None: of one it is not known, or there is no ring on any."""
    rates = [each.gbps for each in found if each.gbps is not None]
    return min(rates) if rates and all(each.known for each in found) else None


def expected_gpus(state: NodeState, ask: DeviceRequest) -> tuple[int, ...]:
    """Indices of the GPUs that the only member on a node in that state gets; () where several sets may come out."""
    found = whole_gpu_outcome(ask, state)
    if state.shape is None or found is None or found.resource != WHOLE or found.may_crash:
        return ()
    if not isinstance(found.sets, ExactSets) or len(found.sets.masks) != 1:
        return ()
    return tuple(sorted(state.shape.gpus[place].index for place in member_places(found.sets.masks[0])))
