"""Error counters of NVLink ports, memory errors, C2C links and the place in the rack.

A link that will fail shows itself in its counters days before. Counters that a GPU or driver does not have are absent.
"""

from __future__ import annotations

import ctypes
from typing import Any

from agent.snapshot import ABSENT_ERRORS, NvmlC2cLink, NvmlPlatform
from agent.sources.nvml.calls import NvmlCalls
from agent.sources.nvml.structures import PlatformInfo, PlatformInfoV1

# Counter -> its field (NVML_FI_DEV_NVLINK_*), by port. Fields 161 to 163 end with NVLink 4; the others begin with 5.
LINK_COUNTERS = {
    "replay": 161,  # ERROR_DL_REPLAY: packets sent again
    "recovery": 162,  # ERROR_DL_RECOVERY: the link was trained again
    "crc": 163,  # ERROR_DL_CRC
    "receive": 208,  # COUNT_RCV_ERRORS
    "recovered": 213,  # COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS
    "recovery_failed": 214,  # COUNT_LINK_RECOVERY_FAILED_EVENTS
    "effective": 219,  # COUNT_EFFECTIVE_ERRORS: errors after forward error correction
}
# Counter -> nvmlNvLinkErrorCounter_t, for drivers that do not have the fields.
_OLD_COUNTERS = {"replay": 0, "recovery": 1, "crc": 2}
_NEWEST_OLD_VERSION = 6  # nvmlDeviceGetNvLinkVersion of NVLink 4
_C2C_COUNT, _C2C_STATUS, _C2C_SPEED = 170, 171, 172  # NVML_FI_DEV_C2C_*
C2C_COUNT = (_C2C_COUNT, 0)
_MOST_C2C_LINKS = 64  # a count from a driver must not become a request of any size
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_PLATFORM_STRUCTURES = (PlatformInfo, PlatformInfoV1)


def link_counters(
    calls: NvmlCalls, handle: Any, link: int, version: int | None, fields: dict[tuple[int, int], int]
) -> dict[str, int]:
    """Return the counters of one port that is up. ``calls`` are the port's."""
    counters = {name: fields[field, link] for name, field in LINK_COUNTERS.items() if (field, link) in fields}
    if not counters and version is not None and version <= _NEWEST_OLD_VERSION:
        for name, number in _OLD_COUNTERS.items():
            value, error = calls.try_call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
            if error is None:
                counters[name] = value
            elif error not in ABSENT_ERRORS:
                calls.errors["nvmlDeviceGetNvLinkErrorCounter"] = error
    return counters


def read_ecc(calls: NvmlCalls, handle: Any) -> dict[str, int | None]:
    """Return ECC mode and errors, as fields of ``NvmlGpu``. A GPU without ECC has none."""
    modes = calls.call("nvmlDeviceGetEccMode", handle)  # [current, pending]
    if modes is None or not modes[0]:
        return {"ecc_mode": None if modes is None else modes[0]}
    return {
        "ecc_mode": modes[0],
        "ecc_corrected": calls.call("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
        "ecc_uncorrected": calls.call("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
    }


def read_c2c_links(calls: NvmlCalls, handle: Any, count: int | None) -> tuple[NvmlC2cLink, ...]:
    """Return the C2C links of a GPU that reports their number."""
    links = range(min(count or 0, _MOST_C2C_LINKS))
    wanted = [(field, link) for link in links for field in (_C2C_STATUS, _C2C_SPEED)]
    values = calls.field_values(handle, wanted).values if wanted else {}
    return tuple(
        NvmlC2cLink(
            link=link,
            active=None if (status := values.get((_C2C_STATUS, link))) is None else status == 1,
            speed_mbps=values.get((_C2C_SPEED, link)) or None,
        )
        for link in links
    )


def read_platform(calls: NvmlCalls, handle: Any) -> NvmlPlatform | None:
    """Return the place in the rack, by the newest structure that the driver knows."""
    error: str | None = None
    for structure in _PLATFORM_STRUCTURES:
        info = structure()
        _, error = calls.try_call("nvmlDeviceGetPlatformInfo", handle, ctypes.byref(info))
        if error is None:
            return NvmlPlatform(
                chassis=_identity(bytes(info.chassisSerialNumber), text=structure is PlatformInfo),
                slot=info.slotNumber,
                tray=info.trayIndex,
                host=info.hostId,
                module=info.moduleId,
            )
        if error not in ABSENT_ERRORS:
            break
    calls.errors["nvmlDeviceGetPlatformInfo"] = error or ""
    return None


def _identity(value: bytes, *, text: bool) -> str | None:
    """Return the serial number (text) or GUID (bytes) of a chassis; None where it is empty or unreadable."""
    if not value.strip(b"\0 "):
        return None
    if not text:
        return value.hex()
    printable = value.split(b"\0")[0]
    return printable.decode("ascii") if printable.isascii() and printable.decode("ascii").isprintable() else None
