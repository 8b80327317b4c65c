"""The functions of the fake driver about fabric, error counters, ECC, C2C links and the place in the rack.

Structures are written at the offsets of ``nvml.h``, whatever the caller believes the structure to be: bindings with a
wrong declaration read what a real driver would make them read.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any
from uuid import UUID

SUCCESS = 0
NOT_SUPPORTED = 3
ARGUMENT_VERSION_MISMATCH = 25
UINT, ULONG_LONG = 1, 3  # nvmlValueType_t
NO_CLUSTER = UUID(int=0)
FIELD_VALUE = "nvmlDeviceGetFieldValues#value"  # the error of a value, in FakeGpu.fails and Fault.function


@dataclass(frozen=True)
class FakeFabric:
    """``nvmlGpuFabricInfoV_t``."""

    state: int = 3
    status: int = SUCCESS
    cluster: UUID = NO_CLUSTER
    clique: int = 0
    health_mask: int = 0
    health_summary: int = 0


@dataclass(frozen=True)
class FakeHealth:
    """Error counters and the like; None: the GPU does not have them."""

    ecc: tuple[int, int, int] | None = None  # mode, corrected and uncorrected errors
    remapped: tuple[int, int, int, int] | None = None
    platform: tuple[bytes, int, int, int, int] | None = None  # serial number, slot, tray, host, module
    platform_version: int = 2
    c2c: tuple[int, ...] | None = None  # status of each link
    counters: Mapping[int, int] = field(default_factory=dict)  # field -> value, the same for every NVLink port
    old_counters: tuple[int, ...] = ()  # nvmlDeviceGetNvLinkErrorCounter


def write_bytes(out: Any, data: bytes) -> int:
    """Write a structure as the driver does."""
    ctypes.memmove(ctypes.addressof(out._obj), data, min(len(data), ctypes.sizeof(out._obj)))
    return SUCCESS


class HealthFunctions:
    """A part of ``FakeDriver``."""

    _fabric_version: int
    _speed_field: bool

    def _gpu(self, handle: Any) -> Any:
        raise NotImplementedError

    def _failure(self, name: str, arguments: tuple[Any, ...]) -> int:
        raise NotImplementedError

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> int:  # noqa: N802
        asked = out._obj.version
        known = {2: 0x02000024, 3: 0x03000028}
        if asked >> 24 > self._fabric_version or known.get(asked >> 24) != asked:
            return ARGUMENT_VERSION_MISMATCH
        fabric = self._gpu(handle).fabric
        if fabric is None:
            return NOT_SUPPORTED
        head = (asked, fabric.cluster.bytes, fabric.status, fabric.clique, fabric.state, fabric.health_mask)
        data = struct.pack("<I16sIIB3xI", *head)
        return write_bytes(out, data + (struct.pack("<B3x", fabric.health_summary) if asked >> 24 == 3 else b""))

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
        fabric = self._gpu(handle).fabric
        if fabric is None:
            return NOT_SUPPORTED
        return write_bytes(
            out, struct.pack("<16sIIB3x", fabric.cluster.bytes, fabric.status, fabric.clique, fabric.state)
        )

    def _nvmlDeviceGetPlatformInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
        health = self._gpu(handle).health
        if health.platform is None:
            return NOT_SUPPORTED
        if out._obj.version != health.platform_version << 24 | 44:
            return ARGUMENT_VERSION_MISMATCH
        serial, *places = health.platform
        return write_bytes(out, struct.pack("<I16s16sBBBBB", out._obj.version, b"", serial, *places[:3], 0, places[3]))

    def _nvmlDeviceGetEccMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        ecc = self._gpu(handle).health.ecc
        if ecc is None:
            return NOT_SUPPORTED
        current._obj.value = pending._obj.value = ecc[0]
        return SUCCESS

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> int:  # noqa: N802
        ecc = self._gpu(handle).health.ecc
        if ecc is None or counter.value != 0:
            return NOT_SUPPORTED
        out._obj.value = ecc[1 + kind.value]
        return SUCCESS

    def _nvmlDeviceGetRemappedRows(self, handle: Any, *outs: Any) -> int:  # noqa: N802
        remapped = self._gpu(handle).health.remapped
        if remapped is None:
            return NOT_SUPPORTED
        for out, value in zip(outs, remapped, strict=True):
            out._obj.value = value
        return SUCCESS

    def _nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, _link: int, counter: int, out: Any) -> int:  # noqa: N802
        old = self._gpu(handle).health.old_counters
        if counter >= len(old):
            return NOT_SUPPORTED
        out._obj.value = old[counter]
        return SUCCESS

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, out: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        for value, _ in zip(out._obj, repeat(None, count.value), strict=True):
            found = self._field(gpu, value.fieldId, value.scopeId)
            error = self._failure(FIELD_VALUE, (handle,)) or (NOT_SUPPORTED if found is None else SUCCESS)
            value.nvmlReturn, value.valueType = error, ULONG_LONG if value.fieldId == 90 else UINT
            if value.fieldId == 90:
                value.value.ullVal = found or 0
            else:
                value.value.uiVal = 0xFFFFFFFF if found is None or error else found
        return SUCCESS

    def _field(self, gpu: Any, field_id: int, scope: int) -> int | None:
        if field_id == 91:
            return len(gpu.links) or None
        if field_id == 90:
            return max((link.speed for link in gpu.links), default=None)
        if field_id == 164 and self._speed_field:
            return int(gpu.links[scope].speed)
        if field_id in (170, 171, 172) and gpu.health.c2c is not None:
            return {170: len(gpu.health.c2c), 171: int(gpu.health.c2c[scope]), 172: 44712}[field_id]
        value: int | None = gpu.health.counters.get(field_id)
        return value
