"""The factors of the score of a node, each in one place. Pure.

To add a factor: add a field to ``Weights`` (its name, default weight, description and the pods that it applies to), and
a function of the same name to ``evaluation.score_hardware`` or ``evaluation.score_workload`` that returns the raw
score. The policy file, its JSON Schema, ``gputopo policy show`` and ``gputopo why`` follow.
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


class ScoreFactor(NamedTuple):
    """A factor, but for its name and default weight, which ``Weights`` holds."""

    measure: str  # in words
    applies: Callable[[PodProfile], float] = _always  # times the weight, for that pod; 0: it does not apply


class Weights(NamedTuple):
    """The weight of each factor, relative to the others."""

    bandwidth: Annotated[
        float, ScoreFactor("the weakest hop of the ring through its GPUs", _several_devices_by_island)
    ] = 4.0
    leftover: Annotated[
        float, ScoreFactor("how few fragments it leaves, by what pods usually ask for", _gpus_or_memory)
    ] = 3.0
    numa: Annotated[float, ScoreFactor("on how few NUMA nodes its GPUs are", _by_numa)] = 1.0
    nic: Annotated[float, ScoreFactor("how near the nearest NICs are")] = 1.0
    health: Annotated[float, ScoreFactor("whether its hardware and its agent are well")] = 1.0
    contiguous: Annotated[float, ScoreFactor("how close together by index its GPUs are", _several_devices)] = 0.0
    isolation: Annotated[float, ScoreFactor("whether training and inference stay apart", _isolation)] = 6.0
    siblings: Annotated[
        float, ScoreFactor("whether GPUs and driver are as for the other pods of its job", _placed_siblings)
    ] = 2.0
    packing: Annotated[
        float,
        ScoreFactor("how near the memory of its card comes to the band that policy aims for", _shared_gpu_or_memory),
    ] = 6.0
    spread: Annotated[float, ScoreFactor("how few pods of the same owner would fail with it", _spread)] = 4.0
    utilisation: Annotated[float, ScoreFactor("how much of the node is in use then")] = 0.0
    cost: Annotated[float, ScoreFactor("how little a GPU of it costs per hour")] = 0.0
    spot: Annotated[float, ScoreFactor("whether it is spot or preemptible capacity")] = 0.0
    on_demand: Annotated[float, ScoreFactor("whether it is not")] = 0.0
    generation: Annotated[float, ScoreFactor("how new its GPUs are")] = 0.0


FACTORS: dict[str, ScoreFactor] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Weights, include_extras=True).items()
}
