"""The NVLink ports of each GPU, in one type for all sources. Pure.

A port leads to a GPU that is visible here, to an NVSwitch, or elsewhere (a CPU on POWER, a GPU of this machine that is
hidden from this process). The bandwidth of a lane comes from NVML's speed field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from agent.snapshot import ABSENT_ERRORS, NvmlGpu, NvmlLink
from agent.sources.bus_id import sysfs_bus_id

# NVML's errors for a GPU without NVLink; every other error is a failed call.
_NO_NVLINK = frozenset({"NOT_SUPPORTED", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"})

# Signalling rates of NVML (MB/s, one direction) -> payload rates after line coding, as NVIDIA publishes them: 25.78
# GB/s of a V100 carry 25. Other rates are used as they are.
_PAYLOAD_MBPS = {25781: 25000, 26562: 25000, 53125: 50000}
_NVLINK_5 = 7  # nvmlDeviceGetNvLinkVersion


class GpuPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The active NVLinks of one GPU, by far end. Lanes are NVLinks."""

    gpus: Mapping[int, int] = {}  # index of a visible GPU -> lanes
    switch: int = 0  # lanes into an NVSwitch
    assumed: bool = False  # the far end of those lanes is unknown
    hidden: int = 0  # lanes to GPUs that are not visible here
    elsewhere: int = 0  # lanes to a CPU, or to a GPU in MIG mode, which has no peers
    ports: int | None = None  # ports of the product, up or down
    gbps: float | None = None  # GB/s per lane, both ways; None: unknown or different

    @property
    def active(self) -> int:
        """All lanes that are up."""
        return sum(self.gpus.values()) + self.switch + self.hidden + self.elsewhere


def ports_from_nvml(
    gpu: NvmlGpu, by_bus_id: Mapping[str, int], switches: frozenset[str], *, all_placed: bool = True
) -> GpuPorts | None:
    """Return the ports of a GPU from NVML; None where a call for the GPU or for one of its ports failed.

    ``by_bus_id`` has the index of each visible GPU, ``switches`` the bus ids of the NVSwitches in /sys. ``all_placed``:
    the bus id of every visible GPU is known, so that any other GPU is a hidden one.
    """
    error = gpu.errors.get("nvmlDeviceGetNvLinkState")
    if gpu.access_error is not None or (error is not None and error not in _NO_NVLINK):
        return None
    if any(link.active is None for link in gpu.nvlinks):
        return None  # an unread port may be up: an incomplete count would look like lanes that are down
    active = [link for link in gpu.nvlinks if link.active]
    ends = [_far_end(link, by_bus_id, switches) for link in active]
    if "hidden" in ends and not all_placed:
        return None
    if any(end == "assumed" and _far_end_unread(link) for end, link in zip(ends, active, strict=True)):
        return None  # an NVSwitch is assumed where the driver hides the far end, not where a call failed
    speeds = {link.speed_mbps for link in active}
    speed = speeds.pop() if len(speeds) == 1 else None
    return GpuPorts(
        gpus=dict(sorted(Counter(end for end in ends if isinstance(end, int)).items())),
        switch=sum(end in ("switch", "assumed") for end in ends),
        assumed="assumed" in ends,
        hidden=ends.count("hidden"),
        elsewhere=ends.count("cpu"),
        ports=gpu.nvlink_count or len(gpu.nvlinks) or None,
        gbps=None if speed is None else lane_bandwidth(speed),
    )


def lane_bandwidth(mbps: int) -> float:
    """Return GB/s of one NVLink, both ways together, from NVML's MB/s one way."""
    return 2 * _PAYLOAD_MBPS.get(mbps, mbps) / 1000


def _far_end_unread(link: NvmlLink) -> bool:
    """Return whether a call for the far end failed, or reports a GPU without its address.

    On NVLink 5 the type of a hidden far end is not reliable (NCCL does not ask for it).
    """
    calls = ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2")
    failed = {link.errors.get(call) for call in calls} - ABSENT_ERRORS - {None}
    return bool(failed) or (link.remote_type == "gpu" and (link.version or _NVLINK_5) < _NVLINK_5)


def _far_end(link: NvmlLink, by_bus_id: Mapping[str, int], switches: frozenset[str]) -> int | str:
    """Return the index of a GPU, "switch", "assumed" (counts as a switch), "hidden" or "cpu".

    The remote type has precedence over the PCI address: behind a switch the address is the switch's, and in virtual
    machines and on NVLink 5 it is all F, empty or unprintable, which NCCL also treats as an NVSwitch.
    """
    bus_id = sysfs_bus_id(link.remote_bus_id or "")
    peer = None if bus_id is None else by_bus_id.get(bus_id)
    if link.remote_type == "ibmnpu":
        return "cpu"
    if link.remote_type == "switch" or bus_id in switches:
        return "switch"
    if peer is not None:
        return peer
    if link.remote_type == "gpu" and bus_id is not None:
        return "hidden"
    return "assumed"
