"""Reads all facts from NVML."""

from __future__ import annotations

import ctypes
from itertools import combinations
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from agent.snapshot import LOST_ERRORS, Nvml, NvmlFabric, NvmlGpu, NvmlMigDevice, NvmlPair
from agent.sources.kernel_list import format_mask
from agent.sources.nvml.calls import NvmlCalls, NvmlLibrary
from agent.sources.nvml.counters import C2C_COUNT, read_c2c_links, read_ecc, read_platform
from agent.sources.nvml.links import read_links, read_port_states, wanted_fields
from agent.sources.nvml.structures import FabricInfoV1, FabricInfoV2, FabricInfoV3, LayoutError, check_layouts
from gputopo.model import MAX_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WORD = 64  # bits of an affinity word: unsigned long on every supported platform
_SET_WORDS = 1024 // _WORD  # 1024 NUMA nodes is the kernel's maximum (NODES_SHIFT 10); CPU ids may have gaps
_SCOPE_NODE = 0  # NVML_AFFINITY_SCOPE_NODE
_P2P_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK; a literal, because bindings 13.615.71 define its sibling as a tuple
_MOST_MIG_DEVICES = 64  # of one GPU; NVIDIA's have 7 at most
_MIG_ENABLED = 1  # NVML_DEVICE_MIG_ENABLE
_FABRIC_CALLS = (  # newest first
    ("nvmlDeviceGetGpuFabricInfoV", FabricInfoV3),
    ("nvmlDeviceGetGpuFabricInfoV", FabricInfoV2),
    ("nvmlDeviceGetGpuFabricInfo", FabricInfoV1),
)
_HOPPER = 9  # NVML_DEVICE_ARCH_HOPPER: the first with C2C links
# The errors of a driver that does not know the version of a structure.
_UNSUPPORTED_STRUCTURE = ("ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND")


def read_nvml(lib: Any, cpus: int) -> Nvml:
    """Read all facts from NVML, once; ``lib`` is the module ``pynvml``, ``cpus`` the number of CPUs of this machine.

    Errors of NVML are not raised: ``Nvml.error`` says why there are no facts, ``errors`` which ones are missing. NVML
    is always shut down, so that a driver can be unloaded and the next pass uses the new one.
    """
    try:
        check_layouts(lib)
    except LayoutError as mismatch:
        return Nvml(error=str(mismatch))
    calls = NvmlCalls(NvmlLibrary.from_module(lib))
    _, error = calls.try_call("nvmlInit_v2")
    if error is not None:
        return Nvml(error=f"nvmlInit_v2: {error}")
    try:
        return _read_all(calls, cpus)
    finally:
        # The facts are read already; a failing driver is in ``errors``.
        calls.try_call("nvmlShutdown")


def _read_all(calls: NvmlCalls, cpus: int) -> Nvml:
    driver = calls.call_text("nvmlSystemGetDriverVersion")
    cuda = calls.call("nvmlSystemGetCudaDriverVersion_v2")
    nvml = calls.call_text("nvmlSystemGetNVMLVersion")
    count = calls.call("nvmlDeviceGetCount_v2")
    if count is not None and count > MAX_GPUS:
        return Nvml(error=f"nvmlDeviceGetCount_v2: {count} GPUs; at most {MAX_GPUS} are supported; check the driver")
    gpus: list[NvmlGpu] = []
    handles: dict[int, Any] = {}
    for index in range(count or 0):
        own = NvmlCalls(calls.library)
        handle = own.call("nvmlDeviceGetHandleByIndex_v2", index)
        if handle is not None:
            handles[index] = handle
        gpus.append(NvmlGpu(index=index, errors=own.errors) if handle is None else _read_gpu(own, index, handle, cpus))
    pairs = tuple(_read_pair(calls.library, handles, a, b) for a, b in combinations(handles, 2))
    suspects = {end for pair in pairs if LOST_ERRORS.intersection(pair.errors.values()) for end in (pair.a, pair.b)}
    return Nvml(
        driver_version=driver,
        cuda_version=cuda,
        nvml_version=nvml,
        device_count=count,
        gpus=tuple(_recheck(calls, gpu, handles[gpu.index]) if gpu.index in suspects else gpu for gpu in gpus),
        pairs=pairs,
        errors=calls.errors,
    )


def _recheck(calls: NvmlCalls, gpu: NvmlGpu, handle: Any) -> NvmlGpu:
    """Return the GPU with the error that it answers now: an error of a pair does not say which of the two is lost."""
    _, error = calls.try_call("nvmlDeviceGetMemoryInfo", handle)
    return replace(gpu, errors={**gpu.errors, "nvmlDeviceGetMemoryInfo": error}) if error in LOST_ERRORS else gpu


def _read_gpu(calls: NvmlCalls, index: int, handle: Any, cpus: int) -> NvmlGpu:
    words = max(_SET_WORDS, -(-cpus // _WORD))
    memory = calls.call("nvmlDeviceGetMemoryInfo", handle)
    rates = calls.call("nvmlDeviceGetUtilizationRates", handle)  # not supported in MIG mode
    cpu_set = calls.call("nvmlDeviceGetCpuAffinityWithinScope", handle, words, _SCOPE_NODE)
    node_set = calls.call("nvmlDeviceGetMemoryAffinity", handle, _SET_WORDS, _SCOPE_NODE)
    mig_modes = calls.call("nvmlDeviceGetMigMode", handle)
    mig_mode = None if mig_modes is None else mig_modes[0]  # [current, pending]
    architecture = calls.call("nvmlDeviceGetArchitecture", handle)
    states = read_port_states(calls, handle)
    has_c2c = architecture is not None and architecture >= _HOPPER
    fields = calls.field_values(handle, [*wanted_fields(states), *([C2C_COUNT] if has_c2c else [])])
    nvlink_count, nvlinks = read_links(calls, handle, states, fields)
    return NvmlGpu(
        index=index,
        uuid=calls.call_text("nvmlDeviceGetUUID", handle),
        bus_id=calls.call_text("nvmlDeviceGetPciInfo_v3", handle, field="busId"),
        minor=calls.call("nvmlDeviceGetMinorNumber", handle),
        name=calls.call_text("nvmlDeviceGetName", handle),
        architecture=architecture,
        compute_capability=calls.call("nvmlDeviceGetCudaComputeCapability", handle),
        memory_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        busy_percent=None if rates is None else rates.gpu,
        numa_node_id=calls.call("nvmlDeviceGetNumaNodeId", handle),
        cpu_affinity=_id_list(cpu_set),
        memory_affinity=_id_list(node_set),
        pcie_generation=calls.call("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=calls.call("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_max_generation=calls.call("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_max_width=calls.call("nvmlDeviceGetMaxPcieLinkWidth", handle),
        performance_state=calls.call("nvmlDeviceGetPerformanceState", handle),
        mig_mode=mig_mode,
        mig_devices=tuple(_read_mig_devices(calls, handle)) if mig_mode == _MIG_ENABLED else (),
        fabric=_read_fabric(calls, handle),
        nvlink_count=nvlink_count,
        nvlinks=nvlinks,
        c2c_links=read_c2c_links(calls, handle, fields.values.get(C2C_COUNT)),
        remapped_rows=calls.call("nvmlDeviceGetRemappedRows", handle),
        platform=read_platform(calls, handle),
        **read_ecc(calls, handle),
        errors=calls.errors,
    )


def _read_mig_devices(calls: NvmlCalls, gpu: Any) -> Iterator[NvmlMigDevice]:
    """Yield the MIG devices of a GPU. NOT_FOUND is an empty slot, not the end of the list."""
    slots = calls.call("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0
    for slot in range(min(slots, _MOST_MIG_DEVICES)):
        handle, error = calls.try_call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot)
        if error == "NOT_FOUND":
            continue
        if error is not None:
            yield NvmlMigDevice(slot=slot, errors={"nvmlDeviceGetMigDeviceHandleByIndex": error})
            continue
        own = NvmlCalls(calls.library)
        memory = own.call("nvmlDeviceGetMemoryInfo", handle)
        yield NvmlMigDevice(
            slot=slot,
            uuid=own.call_text("nvmlDeviceGetUUID", handle),
            name=own.call_text("nvmlDeviceGetName", handle),
            memory_bytes=None if memory is None else memory.total,
            gpu_instance=own.call("nvmlDeviceGetGpuInstanceId", handle),
            compute_instance=own.call("nvmlDeviceGetComputeInstanceId", handle),
            errors=own.errors,
        )


def _read_fabric(calls: NvmlCalls, handle: Any) -> NvmlFabric | None:
    """Read the newest fabric structure that the driver supports."""
    last: dict[str, str] = {}
    for call, structure in _FABRIC_CALLS:
        info = structure()
        _, error = calls.try_call(call, handle, ctypes.byref(info))
        if error is None:
            return _to_fabric(info)
        last = {call: error}
        if error not in _UNSUPPORTED_STRUCTURE:
            break
    calls.errors.update(last)
    return None


def _to_fabric(info: Any) -> NvmlFabric:
    return NvmlFabric(
        state=info.state,
        status=info.status,
        cluster_uuid=str(UUID(bytes=bytes(info.clusterUuid))),
        clique=info.cliqueId,
        health_mask=getattr(info, "healthMask", None),  # absent in v1
        health_summary=getattr(info, "healthSummary", None),  # absent in v1 and v2
    )


def _read_pair(library: NvmlLibrary, handles: dict[int, Any], a: int, b: int) -> NvmlPair:
    calls = NvmlCalls(library)
    return NvmlPair(
        a=a,
        b=b,
        ancestor=calls.call("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b]),
        p2p_nvlink=calls.call("nvmlDeviceGetP2PStatus", handles[a], handles[b], _P2P_NVLINK),
        errors=calls.errors,
    )


def _id_list(words: Iterable[int] | None) -> str | None:
    """Format a bit set of 64-bit words, least significant first, as a kernel list: ``0-63,128-191``."""
    return format_mask(sum(word << _WORD * place for place, word in enumerate(words or ())))
