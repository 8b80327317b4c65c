"""The C structures of ``nvml.h`` that gputopo fills itself, and a check of those that the bindings fill.

nvidia-ml-py 12.560 and older declare ``nvmlGpuFabricInfo_v2_t`` 64 bytes too long, and ``nvmlGpuFabricInfo_t`` so until
12.575: the driver writes the state where the bindings read the cluster UUID, and the state reads 0 ("not supported").
So these structures are declared here, for every version of the bindings.

    LayoutError(RuntimeError)   the bindings declare a structure with another size than ``nvml.h``, or lack a function
"""

from __future__ import annotations

from ctypes import Structure, c_ubyte, c_uint, sizeof
from typing import Any

REQUIRED_BINDINGS = "12.570"  # nvidia-ml-py; pyproject.toml requires the same

# Bytes of the structures that the bindings fill, on all 64-bit platforms.
_BINDING_STRUCTURES = {
    "nvmlPciInfo_t": 68,
    "c_nvmlMemory_t": 24,
    "c_nvmlFieldValue_t": 40,
    "c_nvmlUtilization_t": 8,
}
# Without it, a registered fabric looks like none: the drivers that have fabrics answer only this function.
_FABRIC_FUNCTION = "nvmlDeviceGetGpuFabricInfoV"


class LayoutError(RuntimeError):
    """The bindings declare a structure differently from ``nvml.h``, or lack a function."""


class _Versioned(Structure):
    """A structure whose first field is its size and version, by which the driver recognizes its layout."""

    _version_ = 0

    def __init__(self) -> None:
        super().__init__(version=sizeof(type(self)) | self._version_ << 24)


class FabricInfoV1(Structure):
    """``nvmlGpuFabricInfo_t``, of drivers before 545."""

    _fields_ = (
        ("clusterUuid", c_ubyte * 16),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", c_ubyte),
    )


class FabricInfoV2(_Versioned):
    """``nvmlGpuFabricInfo_v2_t``."""

    _version_ = 2
    _fields_ = (
        ("version", c_uint),
        ("clusterUuid", c_ubyte * 16),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", c_ubyte),
        ("healthMask", c_uint),
    )


class FabricInfoV3(_Versioned):
    """``nvmlGpuFabricInfo_v3_t``."""

    _version_ = 3
    _fields_ = (*FabricInfoV2._fields_, ("healthSummary", c_ubyte))


class PlatformInfo(_Versioned):
    """``nvmlPlatformInfo_v2_t``. v1 has the same layout, with the GUID of the rack in place of the chassis serial."""

    _version_ = 2
    _fields_ = (
        ("version", c_uint),
        ("ibGuid", c_ubyte * 16),
        ("chassisSerialNumber", c_ubyte * 16),
        ("slotNumber", c_ubyte),
        ("trayIndex", c_ubyte),
        ("hostId", c_ubyte),
        ("peerType", c_ubyte),
        ("moduleId", c_ubyte),
    )


class PlatformInfoV1(PlatformInfo):
    """``nvmlPlatformInfo_v1_t``."""

    _version_ = 1


def check_layouts(lib: Any) -> None:
    """Raise ``LayoutError`` if the bindings would read other bytes than the driver writes, or no fabric."""
    if not hasattr(lib, _FABRIC_FUNCTION):
        raise LayoutError(
            f"the NVML bindings lack {_FABRIC_FUNCTION}; install nvidia-ml-py {REQUIRED_BINDINGS} or newer"
        )
    for name, expected in _BINDING_STRUCTURES.items():
        found = getattr(lib, name, None)
        size = None if found is None else sizeof(found)
        if size != expected:
            raise LayoutError(
                f"the NVML bindings {'lack' if size is None else f'declare {size} bytes for'} {name}"
                f"{'' if size is None else f', nvml.h {expected}'}; install nvidia-ml-py {REQUIRED_BINDINGS} or newer"
            )
