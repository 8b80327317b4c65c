"""A fake driver: the functions of ``libnvidia-ml.so.1``, from a description of a machine.

It is below NVIDIA's own bindings: ``plug(FakeDriver(...))`` returns the real ``pynvml`` module with this driver as its
C library, so structures, conversions, names and error classes are the real ones. A function that is not defined here is
not exported by the driver (FUNCTION_NOT_FOUND).
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.agent.sources.fake_nvml_health import FakeFabric, FakeHealth, HealthFunctions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

# nvmlReturn_t
SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
TIMEOUT = 10
UNKNOWN = 999


@dataclass(frozen=True)
class FakeLink:
    """One NVLink port; ``state`` may be an error code above 1 as ``error``."""

    active: bool = True
    version: int = 6
    remote_type: int | None = 2
    remote_bus_id: bytes | None = b"00000000:C1:00.0"
    speed: int = 26562
    error: int = SUCCESS  # what nvmlDeviceGetNvLinkState returns


@dataclass(frozen=True)
class FakeMig:
    """A MIG device in a slot."""

    uuid: bytes
    name: bytes
    memory: int
    gpu_instance: int
    compute_instance: int = 0
    error: int = SUCCESS  # what nvmlDeviceGetMigDeviceHandleByIndex returns


@dataclass(frozen=True)
class FakeGpu:
    """A GPU. ``fails`` maps a C function to the code that it returns for this GPU."""

    uuid: bytes = b"GPU-00000000-0000-0000-0000-000000000000"
    bus_id: bytes = b"00000000:07:00.0"
    minor: int = 0
    name: bytes = b"NVIDIA H100 80GB HBM3"
    architecture: int = 9
    capability: tuple[int, int] = (9, 0)
    memory: int = 81559 * 2**20
    memory_used: int = 0
    busy: int | None = 0  # percent; None: NOT_SUPPORTED, as in MIG mode
    numa_node_id: int | None = None
    cpus: frozenset[int] = frozenset(range(4))
    nodes: frozenset[int] = frozenset({0})
    pcie: tuple[int, int, int, int] = (1, 8, 5, 16)  # generation and width now, and at most
    performance_state: int = 8  # idle
    mig_mode: int | None = 0
    mig_slots: tuple[FakeMig | None, ...] = ()
    fabric: FakeFabric | None = None
    links: tuple[FakeLink, ...] = ()
    health: FakeHealth = field(default_factory=FakeHealth)
    fails: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Fault:
    """A function that fails for one GPU (by index) or for all, for a number of calls."""

    function: str
    code: int
    gpu: int | None = None
    times: float = float("inf")


def write(out: Any, value: Any) -> int:
    """Fill the target of ``byref``."""
    out._obj.value = value
    return SUCCESS


def point(out: Any, token: int) -> int:
    """Fill a handle, which is an opaque pointer."""
    ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p)).contents.value = token
    return SUCCESS


def or_not_supported(out: Any, value: Any) -> int:
    """Return the value, or NOT_SUPPORTED where there is none."""
    return NOT_SUPPORTED if value is None else write(out, value)


class FakeDriver(HealthFunctions):
    """The exported functions. ``calls`` counts them; ``ancestors`` and ``p2p`` are by pair of indices."""

    def __init__(
        self,
        *gpus: FakeGpu,
        init: int = SUCCESS,
        missing: frozenset[str] = frozenset(),
        driver: bytes = b"580.95.05",
        fabric_version: int = 3,
        speed_field: bool = True,
    ) -> None:
        self.gpus = gpus
        self.calls: Counter[str] = Counter()
        self.initialised = 0
        self._init = init
        self._missing = missing
        self._driver = driver
        self._fabric_version = fabric_version  # the newest nvmlGpuFabricInfoV_t that it knows
        self._speed_field = speed_field  # whether it knows NVML_FI_DEV_NVLINK_GET_SPEED
        self.events: list[tuple[int, int]] = []  # (nvmlReturn_t, XID), for one wait each; then every wait times out
        self.registered: list[int] = []  # indices of GPUs whose events somebody waits for
        self.sets = 0  # event sets that are not freed
        self.faults: list[Fault] = []
        self.ancestors: dict[tuple[int, int], int] = {}
        self.p2p: dict[tuple[int, int], int] = {}

    def __getattr__(self, name: str) -> Callable[..., int]:
        implementation = getattr(type(self), f"_{name}", None)
        if implementation is None or name in self._missing:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls[name] += 1
            return int(self._failure(name, arguments) or implementation(self, *arguments))

        return function

    def _failure(self, name: str, arguments: tuple[Any, ...]) -> int:
        index = None
        if name.startswith("nvmlDevice") and name != "nvmlDeviceGetCount_v2":
            by_index = name == "nvmlDeviceGetHandleByIndex_v2"
            index = arguments[0].value if by_index else self._index(arguments[0])
        for fault in self.faults:
            if fault.function == name and fault.gpu in (None, index) and fault.times > 0:
                fault.times -= 1
                return fault.code
        return SUCCESS if index is None else self.gpus[index].fails.get(name, SUCCESS)

    def _index(self, handle: Any) -> int:
        return (ctypes.cast(handle, ctypes.c_void_p).value or 0) // 0x1000 - 1

    def _gpu(self, handle: Any) -> FakeGpu:
        return self.gpus[self._index(handle)]

    def _mig(self, handle: Any) -> FakeMig | None:
        """The MIG device of a handle; None for the handle of a GPU."""
        slot = (ctypes.cast(handle, ctypes.c_void_p).value or 0) % 0x1000
        return self._gpu(handle).mig_slots[slot - 1] if slot else None

    def _nvmlInitWithFlags(self, _flags: Any) -> int:  # noqa: N802  the names of NVML
        self.initialised += self._init == SUCCESS
        return self._init

    def _nvmlShutdown(self) -> int:  # noqa: N802
        self.initialised -= 1
        return SUCCESS

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _size: Any) -> int:  # noqa: N802
        buffer.value = self._driver
        return SUCCESS

    def _nvmlSystemGetNVMLVersion(self, buffer: Any, _size: Any) -> int:  # noqa: N802
        buffer.value = b"13." + self._driver
        return SUCCESS

    def _nvmlSystemGetCudaDriverVersion_v2(self, out: Any) -> int:  # noqa: N802
        return write(out, 13000)

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:  # noqa: N802
        return write(out, len(self.gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:  # noqa: N802
        return point(out, 0x1000 * (index.value + 1))

    def _nvmlEventSetCreate(self, out: Any) -> int:  # noqa: N802
        self.sets += 1
        return point(out, 0xE0)

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, _events: Any) -> int:  # noqa: N802
        if kinds.value != 8:  # nvmlEventTypeXidCriticalError
            return INVALID_ARGUMENT
        self.registered.append(self._index(handle))
        return SUCCESS

    def _nvmlEventSetWait_v2(self, _events: Any, out: Any, _milliseconds: Any) -> int:  # noqa: N802
        code, xid = self.events.pop(0) if self.events else (TIMEOUT, 0)
        out._obj.eventType, out._obj.eventData = 8, xid
        return code

    def _nvmlEventSetFree(self, _events: Any) -> int:  # noqa: N802
        self.sets -= 1
        return SUCCESS

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _size: Any) -> int:  # noqa: N802
        mig = self._mig(handle)
        buffer.value = mig.uuid if mig else self._gpu(handle).uuid
        return SUCCESS

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _size: Any) -> int:  # noqa: N802
        mig = self._mig(handle)
        buffer.value = mig.name if mig else self._gpu(handle).name
        return SUCCESS

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:  # noqa: N802
        out._obj.busId = self._gpu(handle).bus_id
        return SUCCESS

    def _nvmlDeviceGetMinorNumber(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).minor)

    def _nvmlDeviceGetArchitecture(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).architecture)

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        write(major, self._gpu(handle).capability[0])
        return write(minor, self._gpu(handle).capability[1])

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
        mig = self._mig(handle)
        out._obj.total = mig.memory if mig else self._gpu(handle).memory
        out._obj.used = 0 if mig else self._gpu(handle).memory_used
        return SUCCESS

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:  # noqa: N802
        busy = self._gpu(handle).busy
        if busy is None:
            return NOT_SUPPORTED
        out._obj.gpu, out._obj.memory = busy, 0
        return SUCCESS

    def _nvmlDeviceGetNumaNodeId(self, handle: Any, out: Any) -> int:  # noqa: N802
        return or_not_supported(out, self._gpu(handle).numa_node_id)

    def _nvmlDeviceGetCpuAffinityWithinScope(self, handle: Any, size: int, out: Any, scope: Any) -> int:  # noqa: N802
        return self._bit_set(self._gpu(handle).cpus, size, out, scope)

    def _nvmlDeviceGetMemoryAffinity(self, handle: Any, size: int, out: Any, scope: Any) -> int:  # noqa: N802
        return self._bit_set(self._gpu(handle).nodes, size, out, scope)

    def _bit_set(self, ids: frozenset[int], size: int, out: Any, scope: Any) -> int:
        if scope.value != 0:
            return INVALID_ARGUMENT
        if max(ids, default=0) >= size * 64:
            return INSUFFICIENT_SIZE
        for each in ids:
            out._obj[each // 64] |= 1 << each % 64
        return SUCCESS

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).pcie[0])

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).pcie[1])

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).pcie[2])

    def _nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).pcie[3])

    def _nvmlDeviceGetPerformanceState(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).performance_state)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        or_not_supported(pending, self._gpu(handle).mig_mode)
        return or_not_supported(current, self._gpu(handle).mig_mode)

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, len(self._gpu(handle).mig_slots))

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, out: Any) -> int:  # noqa: N802
        mig = self._gpu(handle).mig_slots[slot.value]
        if mig is None:
            return NOT_FOUND
        return mig.error or point(out, 0x1000 * (self._index(handle) + 1) + slot.value + 1)

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, out: Any) -> int:  # noqa: N802
        mig = self._mig(handle)
        return or_not_supported(out, mig and mig.gpu_instance)

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, out: Any) -> int:  # noqa: N802
        mig = self._mig(handle)
        return or_not_supported(out, mig and mig.compute_instance)

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, out: Any) -> int:  # noqa: N802
        links = self._gpu(handle).links
        if not links:
            return NOT_SUPPORTED
        if link >= len(links):
            return INVALID_ARGUMENT
        return links[link].error or write(out, links[link].active)

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, link: int, out: Any) -> int:  # noqa: N802
        return write(out, self._gpu(handle).links[link].version)

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, out: Any) -> int:  # noqa: N802
        return or_not_supported(out, self._gpu(handle).links[link].remote_type)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, out: Any) -> int:  # noqa: N802
        bus_id = self._gpu(handle).links[link].remote_bus_id
        if bus_id is None:
            return NOT_SUPPORTED
        out._obj.busId = bus_id
        return SUCCESS

    def _nvmlDeviceGetTopologyCommonAncestor(self, a: Any, b: Any, out: Any) -> int:  # noqa: N802
        return or_not_supported(out, self.ancestors.get((self._index(a), self._index(b))))

    def _nvmlDeviceGetP2PStatus(self, a: Any, b: Any, capability: int, out: Any) -> int:  # noqa: N802
        return write(out, self.p2p.get((self._index(a), self._index(b)), 5)) if capability == 2 else INVALID_ARGUMENT


@cache
def _bindings() -> ModuleType:
    """A private copy of pynvml under its own name: the library is a global of the module."""
    original = importlib.util.find_spec("pynvml")
    assert original is not None
    spec = importlib.util.spec_from_file_location("pynvml_on_a_fake_driver", original.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # it looks itself up there
    spec.loader.exec_module(module)
    return module


def plug(driver: FakeDriver) -> Any:
    """``pynvml`` with this driver as its C library; one at a time."""
    module: Any = _bindings()
    module.nvmlLib = driver
    module._nvmlGetFunctionPointer_cache.clear()
    return module
