"""The NVLink ports of one GPU."""

from __future__ import annotations

from typing import Any

from agent.snapshot import ABSENT_ERRORS, LOST_ERRORS, NvmlLink
from agent.sources.nvml.calls import FieldValues, NvmlCalls
from agent.sources.nvml.counters import LINK_COUNTERS, link_counters

_LINK_COUNT = (91, 0)  # NVML_FI_DEV_NVLINK_LINK_COUNT
_COMMON_SPEED = (90, 0)  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: the only speed before driver 525
_SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED, scope: the link
_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS of nvml.h 13; older bindings have 18 and accept any number
_REMOTE_TYPES = {0: "gpu", 1: "ibmnpu", 2: "switch", 255: "unknown"}  # nvmlIntNvLinkDeviceType_t
_STATE = "nvmlDeviceGetNvLinkState"

PortStates = dict[int, bool | str]  # port -> up, down, or an error name


def read_port_states(calls: NvmlCalls, handle: Any) -> PortStates:
    """Return the state of every port; no port and an error in ``calls`` for a GPU without NVLink.

    Ports are counted by their state, not by nvmlDeviceGetNvLinkCapability, which reports ports that the GPU does not
    have. INVALID_ARGUMENT ends the list, and NOT_SUPPORTED is a gap: some products have gaps in their numbering. A
    single such answer may be a failure, so it counts only if the next port agrees.
    """
    answers: PortStates = {}
    for link in range(max(_MAX_LINKS, calls.library.lib.NVML_NVLINK_MAX_LINKS)):
        state, error = calls.try_call(_STATE, handle, link)
        answers[link] = bool(state) if error is None else error
        before = answers.get(link - 1)
        no_nvlink = link == 1 and {before, error} <= ABSENT_ERRORS
        if error in LOST_ERRORS or no_nvlink or before == error == "INVALID_ARGUMENT":
            break
    first = str(answers[0])
    while answers and answers[max(answers)] == "INVALID_ARGUMENT":
        del answers[max(answers)]
    states = {link: state for link, state in answers.items() if state != "NOT_SUPPORTED"}
    if answers.get(0) in LOST_ERRORS or not set(states.values()) - ABSENT_ERRORS:
        calls.errors[_STATE] = first
        return {}
    return states


def wanted_fields(states: PortStates) -> list[tuple[int, int]]:
    """Return the fields to read for the ports: number, speed and error counters."""
    up = [link for link, state in states.items() if state is True]
    per_port = [(field, link) for link in up for field in (_SPEED, *LINK_COUNTERS.values())]
    return [_LINK_COUNT, _COMMON_SPEED, *per_port] if states else []


def read_links(
    calls: NvmlCalls, handle: Any, states: PortStates, fields: FieldValues
) -> tuple[int | None, tuple[NvmlLink, ...]]:
    """Return ``(ports of the product, the ports that answered)``; an error for a port is stored with the port."""
    count_error = fields.errors.get(_LINK_COUNT)
    if count_error is not None and count_error not in ABSENT_ERRORS:
        calls.errors[f"field {_LINK_COUNT[0]}"] = count_error
    links = [
        _read_active_port(calls, handle, link, fields)
        if state is True
        else NvmlLink(link=link, active=False)
        if state is False
        else NvmlLink(link=link, errors={_STATE: state})
        for link, state in states.items()
    ]
    return fields.values.get(_LINK_COUNT), tuple(links)


def _read_active_port(gpu: NvmlCalls, handle: Any, link: int, fields: FieldValues) -> NvmlLink:
    """Read a port that is up. NVML does not report the far end of a port that is down."""
    calls = NvmlCalls(gpu.library)
    remote_type = calls.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    version = calls.call("nvmlDeviceGetNvLinkVersion", handle, link)
    speed = fields.values.get((_SPEED, link)) or fields.values.get(_COMMON_SPEED) or None
    bus_id = calls.call_text("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, field="busId")
    unread = {
        f"field {field}": error
        for field in (_SPEED, *LINK_COUNTERS.values())
        if (error := fields.errors.get((field, link))) is not None and error not in ABSENT_ERRORS
    }
    return NvmlLink(
        link=link,
        active=True,
        version=version,
        remote_type=None if remote_type is None else _REMOTE_TYPES.get(remote_type, str(remote_type)),
        remote_bus_id=bus_id,
        speed_mbps=speed,
        counters=link_counters(calls, handle, link, version, fields.values),
        errors={**calls.errors, **unread},
    )
