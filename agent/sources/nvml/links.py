"""The NVLink ports of one GPU."""

from __future__ import annotations

from typing import Any

from agent.snapshot import NvmlLink
from agent.sources.nvml.calls import NvmlCalls

_LINK_COUNT = (91, 0)  # NVML_FI_DEV_NVLINK_LINK_COUNT
_COMMON_SPEED = (90, 0)  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: the only speed before driver 525
_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, scope: the link
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of nvml.h 13; older bindings have 18 and accept any number
_REMOTE_TYPES = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}  # nvmlIntNvLinkDeviceType_t


def read_links(calls: NvmlCalls, handle: Any) -> tuple[int | None, tuple[NvmlLink, ...]]:
    """Return ``(ports of the product, the ports that answered)``. A GPU without NVLink has None and no ports.

    Ports are counted by their state, not by nvmlDeviceGetNvLinkCapability, which reports ports that the GPU does not
    have. An error for the GPU is stored in ``calls``, an error for a port with the port.
    """
    states = _port_states(calls, handle)
    if not states:
        return None, ()
    up = [link for link, state in states.items() if state is True]
    fields = calls.field_values(handle, [_LINK_COUNT, _COMMON_SPEED, *((_SPEED, link) for link in up)])
    links = [
        _read_active_port(calls, handle, link, fields.get((_SPEED, link)) or fields.get(_COMMON_SPEED) or None)
        if state is True
        else NvmlLink(link=link, active=False)
        if state is False
        else NvmlLink(link=link, errors={"nvmlDeviceGetNvLinkState": state})
        for link, state in states.items()
    ]
    return fields.get(_LINK_COUNT), tuple(links)


def _port_states(calls: NvmlCalls, handle: Any) -> dict[int, bool | str]:
    """Map each port to up, down, or an error name. INVALID_ARGUMENT ends the list; NOT_SUPPORTED means no port.

    Only the first port shows that the GPU has no NVLink: some products have gaps in their numbering.
    """
    states: dict[int, bool | str] = {}
    for link in range(max(_MAX_LINKS, calls.library.lib.NVML_NVLINK_MAX_LINKS)):
        state, error = calls.try_call("nvmlDeviceGetNvLinkState", handle, link)
        if error == "INVALID_ARGUMENT":
            break
        if link == 0 and error in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "GPU_IS_LOST"):
            calls.errors["nvmlDeviceGetNvLinkState"] = error
            break
        if error != "NOT_SUPPORTED":
            states[link] = bool(state) if error is None else error
        if error == "GPU_IS_LOST":
            break
    return states


def _read_active_port(gpu: NvmlCalls, handle: Any, link: int, speed: int | None) -> NvmlLink:
    """Read a port that is up. NVML does not report the far end of a port that is down."""
    calls = NvmlCalls(gpu.library)
    remote_type = calls.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    return NvmlLink(
        link=link,
        active=True,
        version=calls.call("nvmlDeviceGetNvLinkVersion", handle, link),
        remote_type=None if remote_type is None else _REMOTE_TYPES.get(remote_type, str(remote_type)),
        remote_bus_id=calls.call_text("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, field="busId"),
        speed_mbps=speed,
        errors=calls.errors,
    )
