"""One pass over NVML."""

from __future__ import annotations

import ctypes
from itertools import combinations
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agent.snapshot import Nvml, NvmlFabric, NvmlGpu, NvmlMigDevice, NvmlPair
from agent.sources.kernel_list import from_mask
from agent.sources.nvml.calls import Calls, Library
from agent.sources.nvml.links import read_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WORD = 64  # bits of an affinity word: unsigned long on every platform with a driver
_SET_WORDS = 1024 // _WORD  # 1024 NUMA nodes is the kernel's most (NODES_SHIFT 10); CPU ids may have holes
_SCOPE_NODE = 0  # NVML_AFFINITY_SCOPE_NODE
_P2P_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK; a literal, because bindings 13.615.71 define its sibling as a tuple
_MIG_ENABLED = 1  # NVML_DEVICE_MIG_ENABLE
# Newest first. The last is v2 in every version of the bindings; v3 came with 12.575.
_FABRIC_STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfoV_t")
# Drivers refuse a structure that is younger than themselves with one of these.
_TOO_YOUNG = ("ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND")


def read_nvml(lib: Any, cpus: int) -> Nvml:
    """Ask NVML everything, once; ``lib`` is the module ``pynvml``, ``cpus`` the number of CPUs of this machine.

    Never raises for what NVML does: ``Nvml.error`` says why there is nothing, ``errors`` what is missing. NVML is
    shut down again in any case, so that a driver can be unloaded and a new one be met by the next pass.
    """
    calls = Calls(Library.of(lib))
    _, error = calls.attempt("nvmlInit_v2")
    if error is not None:
        return Nvml(error=f"nvmlInit_v2: {error}")
    try:
        return _read(calls, cpus)
    finally:
        # The answers are already in hand, and a driver that fails here has failed in ``errors`` before.
        calls.attempt("nvmlShutdown")


def _read(calls: Calls, cpus: int) -> Nvml:
    driver = calls.text("nvmlSystemGetDriverVersion")
    cuda = calls.ask("nvmlSystemGetCudaDriverVersion_v2")
    nvml = calls.text("nvmlSystemGetNVMLVersion")
    count = calls.ask("nvmlDeviceGetCount_v2")
    gpus: list[NvmlGpu] = []
    handles: dict[int, Any] = {}
    for index in range(count or 0):
        own = Calls(calls.library)
        handle = own.ask("nvmlDeviceGetHandleByIndex_v2", index)
        if handle is not None:
            handles[index] = handle
        gpus.append(NvmlGpu(index=index, errors=own.errors) if handle is None else _gpu(own, index, handle, cpus))
    return Nvml(
        driver_version=driver,
        cuda_version=cuda,
        nvml_version=nvml,
        device_count=count,
        gpus=tuple(gpus),
        pairs=tuple(_pair(calls.library, handles, a, b) for a, b in combinations(handles, 2)),
        errors=calls.errors,
    )


def _gpu(calls: Calls, index: int, handle: Any, cpus: int) -> NvmlGpu:
    words = max(_SET_WORDS, -(-cpus // _WORD))
    memory = calls.ask("nvmlDeviceGetMemoryInfo", handle)
    cpu_set = calls.ask("nvmlDeviceGetCpuAffinityWithinScope", handle, words, _SCOPE_NODE)
    node_set = calls.ask("nvmlDeviceGetMemoryAffinity", handle, _SET_WORDS, _SCOPE_NODE)
    mig_modes = calls.ask("nvmlDeviceGetMigMode", handle)
    mig_mode = None if mig_modes is None else mig_modes[0]  # [current, pending]
    nvlink_count, nvlinks = read_links(calls, handle)
    return NvmlGpu(
        index=index,
        uuid=calls.text("nvmlDeviceGetUUID", handle),
        bus_id=calls.text("nvmlDeviceGetPciInfo_v3", handle, field="busId"),
        minor=calls.ask("nvmlDeviceGetMinorNumber", handle),
        name=calls.text("nvmlDeviceGetName", handle),
        architecture=calls.ask("nvmlDeviceGetArchitecture", handle),
        compute_capability=calls.ask("nvmlDeviceGetCudaComputeCapability", handle),
        memory_bytes=None if memory is None else memory.total,
        numa_node_id=calls.ask("nvmlDeviceGetNumaNodeId", handle),
        cpu_affinity=_id_list(cpu_set),
        memory_affinity=_id_list(node_set),
        pcie_generation=calls.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=calls.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_max_generation=calls.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_max_width=calls.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        performance_state=calls.ask("nvmlDeviceGetPerformanceState", handle),
        mig_mode=mig_mode,
        mig_devices=tuple(_mig_devices(calls, handle)) if mig_mode == _MIG_ENABLED else (),
        fabric=_fabric(calls, handle),
        nvlink_count=nvlink_count,
        nvlinks=nvlinks,
        errors=calls.errors,
    )


def _mig_devices(calls: Calls, gpu: Any) -> Iterator[NvmlMigDevice]:
    """The MIG devices of a GPU. NOT_FOUND is a free slot, not the end of the list."""
    for slot in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
        handle, error = calls.attempt("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot)
        if error == "NOT_FOUND":
            continue
        if error is not None:
            yield NvmlMigDevice(slot=slot, errors={"nvmlDeviceGetMigDeviceHandleByIndex": error})
            continue
        own = Calls(calls.library)
        memory = own.ask("nvmlDeviceGetMemoryInfo", handle)
        yield NvmlMigDevice(
            slot=slot,
            uuid=own.text("nvmlDeviceGetUUID", handle),
            name=own.text("nvmlDeviceGetName", handle),
            memory_bytes=None if memory is None else memory.total,
            gpu_instance=own.ask("nvmlDeviceGetGpuInstanceId", handle),
            compute_instance=own.ask("nvmlDeviceGetComputeInstanceId", handle),
            errors=own.errors,
        )


def _fabric(calls: Calls, handle: Any) -> NvmlFabric | None:
    """The newest fabric structure that both the bindings and the driver know."""
    last: dict[str, str] = {}
    attempts = [("nvmlDeviceGetGpuFabricInfoV", name) for name in _FABRIC_STRUCTURES]
    for call, name in [*attempts, ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t")]:
        structure = getattr(calls.library.lib, name, None)
        if structure is None:
            continue
        info = structure()
        _, error = calls.attempt(call, handle, ctypes.byref(info))
        if error is None:
            return _fabric_of(info)
        last = {call: error}
        if error not in _TOO_YOUNG:
            break
    calls.errors.update(last)
    return None


def _fabric_of(info: Any) -> NvmlFabric:
    # Bindings before 12.575 declare the UUID's bytes as text: touched as a field, they end at the first zero byte.
    uuid = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16)
    return NvmlFabric(
        state=info.state,
        status=info.status,
        cluster_uuid=str(UUID(bytes=uuid)),
        clique=info.cliqueId,
        health_mask=getattr(info, "healthMask", None),  # absent in v1
        health_summary=getattr(info, "healthSummary", None),  # absent in v1 and v2
    )


def _pair(library: Library, handles: dict[int, Any], a: int, b: int) -> NvmlPair:
    calls = Calls(library)
    return NvmlPair(
        a=a,
        b=b,
        ancestor=calls.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b]),
        p2p_nvlink=calls.ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], _P2P_NVLINK),
        errors=calls.errors,
    )


def _id_list(words: Iterable[int] | None) -> str | None:
    """A bit set of 64-bit words, least significant first, as the kernel writes lists: ``0-63,128-191``."""
    return from_mask(sum(word << _WORD * place for place, word in enumerate(words or ())))
