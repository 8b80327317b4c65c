"""Multi-node NVLink membership and its health, from ``nvmlDeviceGetGpuFabricInfoV``. Pure."""

from __future__ import annotations

from agent.snapshot import NvmlFabric
from gputopo.model import FabricState, GpuFabric

_STATES = (
    FabricState.NOT_SUPPORTED,
    FabricState.NOT_STARTED,
    FabricState.IN_PROGRESS,
    FabricState.COMPLETED,
)
# nvmlReturn_t: the values that end a registration
_STATUSES = {
    3: "NOT_SUPPORTED",
    10: "TIMEOUT",
    23: "INSUFFICIENT_RESOURCES",
    27: "NOT_READY",
    29: "INVALID_STATE",
    999: "UNKNOWN",
}
_ZERO_UUID = "00000000-0000-0000-0000-000000000000"
_FAULT = 1  # NVML_GPU_FABRIC_HEALTH_MASK_*_TRUE; 0 is not supported, 2 is false
# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_* of the two-bit fields where "true" is a fault, in the words of nvidia-smi -q
_FAULTS = (
    (0, "bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "access timeout recovery"),
)
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK = 8, 0xF
_SUMMARIES = {2: "unhealthy", 3: "limited capacity"}  # NVML_GPU_FABRIC_HEALTH_SUMMARY_*; 1 is healthy
# NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*: 0 not supported, 1 none
_CONFIGURATIONS = {
    2: "incorrect system guid",
    3: "incorrect chassis serial",
    4: "no partition",
    5: "insufficient nvlinks",
    6: "incompatible gpu firmware",
    7: "invalid location",
    8: "gpu state invalid",
}


def gpu_fabric(info: NvmlFabric | None) -> GpuFabric | None:
    """Return the membership of a GPU; None where the GPU has no fabric (older than Hopper).

    An all-zero cluster UUID is normal on a machine whose NVSwitches connect only its own GPUs.
    """
    if info is None or not 0 < info.state < len(_STATES):
        return None
    multi_node = info.cluster_uuid not in (None, _ZERO_UUID)
    return GpuFabric(
        state=_STATES[info.state],
        cluster_uuid=info.cluster_uuid if multi_node else None,
        clique=info.clique if multi_node else None,
        status=None if info.status == 0 else _STATUSES.get(info.status, f"NVML error {info.status}"),
        unhealthy=_unhealthy(info.health_mask or 0, info.health_summary),
    )


def _unhealthy(mask: int, summary: int | None) -> tuple[str, ...]:
    """Return the faults in the mask; the summary where the mask does not say why it is not healthy."""
    found = [name for shift, name in _FAULTS if mask >> shift & 0b11 == _FAULT]
    configuration = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    if configuration > 1:
        found.append(f"incorrect configuration: {_CONFIGURATIONS.get(configuration, configuration)}")
    if not found and summary in _SUMMARIES:
        found.append(_SUMMARIES[summary])
    return tuple(found)
