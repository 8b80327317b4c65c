"""The NVLink ports of one GPU."""

from __future__ import annotations

from typing import Any

from agent.snapshot import NvmlLink
from agent.sources.nvml.calls import Calls

_LINK_COUNT = (91, 0)  # NVML_FI_DEV_NVLINK_LINK_COUNT
_COMMON_SPEED = (90, 0)  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: the only speed before driver 525
_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, scope: the link
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of nvml.h 13; bindings before it say 18 and pass on any number
_REMOTE_TYPES = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}  # nvmlIntNvLinkDeviceType_t


def read_links(calls: Calls, handle: Any) -> tuple[int | None, tuple[NvmlLink, ...]]:
    """``(ports of the product, the ports that answered)``. A GPU without NVLink has None and no ports.

    Ports are counted by their state, never by nvmlDeviceGetNvLinkCapability, which affirms ports that the GPU does
    not have. What failed for the GPU as a whole is noted in ``calls``, what failed for a port stays with the port.
    """
    states = _walk(calls, handle)
    if not states:
        return None, ()
    up = [link for link, state in states.items() if state is True]
    fields = calls.fields(handle, [_LINK_COUNT, _COMMON_SPEED, *((_SPEED, link) for link in up)])
    links = [
        _read_active(calls, handle, link, fields.get((_SPEED, link)) or fields.get(_COMMON_SPEED) or None)
        if state is True
        else NvmlLink(link=link, active=False)
        if state is False
        else NvmlLink(link=link, errors={"nvmlDeviceGetNvLinkState": state})
        for link, state in states.items()
    ]
    return fields.get(_LINK_COUNT), tuple(links)


def _walk(calls: Calls, handle: Any) -> dict[int, bool | str]:
    """Port -> up or down, or the error's name. INVALID_ARGUMENT is the end; NOT_SUPPORTED is no port at all.

    Only the first port tells that there is no NVLink: some products have holes among their ports.
    """
    states: dict[int, bool | str] = {}
    for link in range(max(_MAX_LINKS, calls.library.lib.NVML_NVLINK_MAX_LINKS)):
        state, error = calls.attempt("nvmlDeviceGetNvLinkState", handle, link)
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


def _read_active(gpu: Calls, handle: Any, link: int, speed: int | None) -> NvmlLink:
    """A port that is up. Of one that is down NVML does not tell the far end."""
    calls = Calls(gpu.library)
    remote_type = calls.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    return NvmlLink(
        link=link,
        active=True,
        version=calls.ask("nvmlDeviceGetNvLinkVersion", handle, link),
        remote_type=None if remote_type is None else _REMOTE_TYPES.get(remote_type, str(remote_type)),
        remote_bus_id=calls.text("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, field="busId"),
        speed_mbps=speed,
        errors=calls.errors,
    )
