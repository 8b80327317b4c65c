"""The score factors of a node, each in one place. Pure.

To add a score factor: add a field to ``Weights`` (its name, default weight, description and the pods that it applies
to), and a function of the same name to ``evaluation.score_hardware`` or ``evaluation.score_workload`` that returns the
raw score. The policy file, its JSON Schema, ``gputopo policy show`` and ``gputopo why`` follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple, get_type_hints

from scheduler_core.request.device_request import SHARED
from scheduler_core.request.pod_request import PodProfile, Strength

_ISLAND = {None: 1.0, Strength.PREFERRED: 2.0, Strength.REQUIRED: 2.0, Strength.IGNORE: 0.0}
_NUMA = {None: 1.0, Strength.PREFERRED: 3.0, Strength.REQUIRED: 3.0, Strength.IGNORE: 0.0}


def _always(_: PodProfile) -> float:
    return 1.0


def _several_devices(pod: PodProfile) -> float:
    return pod.devices > 1


def _several_devices_by_island(pod: PodProfile) -> float:
    return _ISLAND[pod.constraints.island] if pod.devices > 1 else 0.0


def _by_numa(pod: PodProfile) -> float:
    return _NUMA[pod.constraints.numa]


def _by_nic(pod: PodProfile) -> float:
    return _NUMA[pod.constraints.nic]


def _gpus_or_memory(pod: PodProfile) -> float:
    return bool(pod.gpus or pod.constraints.vram_mib)


def _shared_gpu_or_memory(pod: PodProfile) -> float:
    return pod.constraints.vram_mib is not None or SHARED in dict(pod.device_request.totals)


def _isolation(pod: PodProfile) -> float:
    return pod.is_isolation_sensitive


def _placed_siblings(pod: PodProfile) -> float:
    return pod.sibling_hardware is not None


def _spread(pod: PodProfile) -> float:
    return pod.wants_spread


def _near_siblings(pod: PodProfile) -> float:
    return pod.near_siblings


def _has_peers(pod: PodProfile) -> float:
    return pod.has_peers


class ScoreFactor(NamedTuple):
    """A factor without its name and default weight, which ``Weights`` holds."""

    measure: str  # what the raw score measures, for `gputopo why`
    applies: Callable[[PodProfile], float] = _always  # multiplies the weight for a pod; 0: the factor does not apply


class Weights(NamedTuple):
    """The weight of each factor, relative to the others."""

    bandwidth: Annotated[float, ScoreFactor("the ring bandwidth of the pod's GPUs", _several_devices_by_island)] = 4.0
    leftover: Annotated[
        float, ScoreFactor("how few of the free GPUs it leaves as fragments, by the mix of the policy", _gpus_or_memory)
    ] = 3.0
    numa: Annotated[float, ScoreFactor("how few NUMA nodes the pod's GPUs are on", _by_numa)] = 1.0
    nic: Annotated[float, ScoreFactor("how near the nearest NICs are to the pod's GPUs", _by_nic)] = 1.0
    health: Annotated[float, ScoreFactor("whether the hardware is healthy, and the topology confirmed")] = 1.0
    contiguous: Annotated[
        float, ScoreFactor("how close together the indices of the pod's GPUs are", _several_devices)
    ] = 0.0
    isolation: Annotated[float, ScoreFactor("whether training and inference are on different nodes", _isolation)] = 6.0
    siblings: Annotated[
        float, ScoreFactor("whether GPU product and driver match the other pods of the job", _placed_siblings)
    ] = 2.0
    packing: Annotated[
        float,
        ScoreFactor("how near the fill level of the card's memory is to the band of the policy", _shared_gpu_or_memory),
    ] = 6.0
    spread: Annotated[float, ScoreFactor("how few pods of the same owner are on the node", _spread)] = 4.0
    utilisation: Annotated[float, ScoreFactor("the share of the node's devices in use with this pod")] = 0.0
    cost: Annotated[float, ScoreFactor("how low the cost per GPU and hour is")] = 0.0
    spot: Annotated[float, ScoreFactor("whether the node is spot or preemptible capacity")] = 0.0
    on_demand: Annotated[float, ScoreFactor("whether the node is neither spot nor preemptible capacity")] = 0.0
    generation: Annotated[float, ScoreFactor("how new the GPU family of the node is")] = 0.0
    # New factors are added at the end: decision logs have the weights by position.
    measured_idle: Annotated[
        float, ScoreFactor("how little the node's GPUs are in use, as measured in the last minutes")
    ] = 0.0
    memory: Annotated[float, ScoreFactor("how much memory the node's GPUs have")] = 0.0
    # Low, so that a pair of GPUs with two NVLinks on another node is better than a pair without beside a sibling.
    proximity: Annotated[
        float,
        ScoreFactor("whether other pods of the job are on the node, in its clique or in its rack", _near_siblings),
    ] = 0.4
    network: Annotated[
        float, ScoreFactor("the bandwidth of the NICs near the pod's GPUs to other nodes", _has_peers)
    ] = 2.0


FACTORS: dict[str, ScoreFactor] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Weights, include_extras=True).items()
}
