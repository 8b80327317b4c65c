"""The snapshot: unchanged output of all sources. The format of recordings, fixtures and bug-report attachments.

A snapshot holds no conclusions. ``gputopo record`` writes one, ``--from`` reads one, and both use the same
``discover``. msgspec decodes a snapshot in microseconds (start-up of the command line); pydantic validates a faulty one
and lists every fault. An absent field means that the source was not read or does not have the fact; a failed call is in
``errors`` under its name.

    SnapshotError(ValueError)   the document is not a snapshot; the message has the place and the expected value

Annotations are evaluated here (no ``from __future__``): msgspec would compile text annotations before its first
decoding.
"""

from typing import Annotated, Any

import msgspec

FORMAT = "gputopo.io/snapshot/v1"
HANDLE = "nvmlDeviceGetHandleByIndex_v2"  # every other call about a GPU needs its result
LOST_ERRORS = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})  # NVML cannot use the GPU, whichever call says so
# A call that fails so has no result on this GPU or driver; every other error is a failure.
ABSENT_ERRORS = frozenset(
    {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"}
)
_IDENTITY_CALLS = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName")


class SnapshotError(ValueError):
    """The document is not a snapshot."""


class _TextSchema:
    """The JSON Schema of a ``Text``; ``agent.recording.io`` joins and splits the lines."""

    @staticmethod
    def __get_pydantic_json_schema__(_core: Any, _handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


Text = Annotated[
    str, _TextSchema()
]  # the JSON form may be a list of its lines, so that a diff shows the line that changed


class _SnapshotPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a snapshot."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Any) -> Any:
        """Let pydantic validate a part as an object with the fields of the Struct."""
        from pydantic_core import core_schema  # noqa: PLC0415  only pydantic calls this

        fields = {
            field.name: core_schema.typed_dict_field(handler.generate_schema(field.type), required=field.required)
            for field in msgspec.structs.fields(cls)
        }
        return core_schema.typed_dict_schema(fields)


class NvmlLink(_SnapshotPart, frozen=True):
    """One NVLink port of a GPU, from NVML."""

    link: int  # 0 .. NVML_NVLINK_MAX_LINKS - 1
    active: bool | None = None  # nvmlDeviceGetNvLinkState
    version: int | None = None  # nvmlDeviceGetNvLinkVersion: an enum, not a generation
    remote_type: str | None = None  # nvmlDeviceGetNvLinkRemoteDeviceType: "gpu" "ibmnpu" "switch" "unknown"
    remote_bus_id: str | None = None  # nvmlDeviceGetNvLinkRemotePciInfo_v2, as given (may be all F, empty, or odd)
    speed_mbps: int | None = None  # field NVLINK_GET_SPEED (164), else NVLINK_SPEED_MBPS_COMMON (90): MB/s, one way
    # Errors since the driver was loaded, by the name of the counter in agent.sources.nvml.counters; unread ones are
    # absent. Up to NVLink 4: "replay" "recovery" "crc"; from NVLink 5: "receive" "effective" "recovered"
    # "recovery_failed".
    counters: dict[str, int] = {}
    errors: dict[str, str] = {}  # NVML call, or "field <id>" of nvmlDeviceGetFieldValues -> error name


class NvmlC2cLink(_SnapshotPart, frozen=True):
    """One C2C link of a Grace superchip, between CPU and GPU."""

    link: int
    active: bool | None = None  # field C2C_LINK_GET_STATUS (171)
    speed_mbps: int | None = None  # field C2C_LINK_GET_MAX_BW (172): MB/s


class NvmlMigDevice(_SnapshotPart, frozen=True):
    """A MIG device of a GPU."""

    slot: int
    uuid: str | None = None
    name: str | None = None  # nvmlDeviceGetName: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    errors: dict[str, str] = {}


class NvmlFabric(_SnapshotPart, frozen=True):
    """``nvmlDeviceGetGpuFabricInfoV``."""

    state: int  # NVML_GPU_FABRIC_STATE_*
    status: int = 0  # an nvmlReturn_t
    cluster_uuid: str | None = None
    clique: int | None = None
    health_mask: int | None = None
    health_summary: int | None = None


class NvmlPlatform(_SnapshotPart, frozen=True):
    """The place of a GPU in a rack: ``nvmlDeviceGetPlatformInfo``."""

    chassis: str | None = None  # serial number of the chassis (v1 of the structure: GUID of the rack); scrubbed
    slot: int | None = None  # slot in the rack, switch trays included
    tray: int | None = None  # compute tray in the chassis
    host: int | None = None  # node in the tray
    module: int | None = None  # GPU in the node


class NvmlGpu(_SnapshotPart, frozen=True):
    """One GPU, from NVML."""

    index: int
    uuid: str | None = None
    bus_id: str | None = None  # as given: "00000000:07:00.0"
    minor: int | None = None
    name: str | None = None
    architecture: int | None = None  # NVML_DEVICE_ARCH_*
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None  # nvmlDeviceGetMemoryInfo.total
    memory_used_bytes: int | None = None  # nvmlDeviceGetMemoryInfo.used: what the driver reserves is included
    busy_percent: int | None = None  # nvmlDeviceGetUtilizationRates.gpu: time with a kernel, in the last second or less
    numa_node_id: int | None = None  # nvmlDeviceGetNumaNodeId: the GPU's own memory node (Grace)
    cpu_affinity: str | None = None  # nvmlDeviceGetCpuAffinityWithinScope(NODE) as a cpulist
    memory_affinity: str | None = None  # nvmlDeviceGetMemoryAffinity(NODE) as a list of NUMA nodes
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    performance_state: int | None = None  # nvmlDeviceGetPerformanceState: 0 is the highest, 15 the lowest
    mig_mode: int | None = None  # current mode; 1 is enabled
    mig_devices: tuple[NvmlMigDevice, ...] = ()
    fabric: NvmlFabric | None = None
    nvlink_count: int | None = None  # field NVML_FI_DEV_NVLINK_LINK_COUNT (91): ports of the product, up or down
    nvlinks: tuple[NvmlLink, ...] = ()  # every port that answered
    c2c_links: tuple[NvmlC2cLink, ...] = ()
    ecc_mode: int | None = None  # nvmlDeviceGetEccMode, current mode; 1 is enabled
    ecc_corrected: int | None = None  # nvmlDeviceGetTotalEccErrors, since the driver was loaded
    ecc_uncorrected: int | None = None
    # nvmlDeviceGetRemappedRows: rows remapped after correctable and uncorrectable errors, 1 if a remapping waits for a
    # reset of the GPU, 1 if a remapping has failed
    remapped_rows: tuple[int, int, int, int] | None = None
    platform: NvmlPlatform | None = None
    errors: dict[str, str] = {}  # NVML call, or "field <id>" of nvmlDeviceGetFieldValues -> error name

    @property
    def handle_error(self) -> str | None:
        """The error of the call for the GPU's handle, without which NVML reports nothing else; None: it succeeded."""
        return self.errors.get(HANDLE)

    @property
    def part_errors(self) -> tuple[dict[str, str], ...]:
        """The errors of the calls for NVLink ports and MIG devices."""
        return (*(link.errors for link in self.nvlinks), *(device.errors for device in self.mig_devices))

    @property
    def identity(self) -> str:
        """The key of the GPU across passes: an index may change when a GPU is lost."""
        return self.uuid or self.bus_id or str(self.index)

    @property
    def access_error(self) -> str | None:
        """The error which shows that NVML cannot use the GPU; None: the GPU answers.

        A GPU can be lost after its handle was obtained: then any call may report it. A GPU of which neither UUID, PCI
        address nor name can be read does not answer either, whatever the error is.
        """
        if self.handle_error is not None:
            return self.handle_error
        for errors in (self.errors, *self.part_errors):
            if lost := LOST_ERRORS.intersection(errors.values()):
                return min(lost)
        return self.errors[_IDENTITY_CALLS[0]] if self.errors.keys() >= set(_IDENTITY_CALLS) else None


class NvmlPair(_SnapshotPart, frozen=True):
    """The facts of two GPUs from NVML, by index, ``a < b``."""

    a: int
    b: int
    ancestor: int | None = None  # nvmlDeviceGetTopologyCommonAncestor: NVML_TOPOLOGY_*
    p2p_nvlink: int | None = None  # nvmlDeviceGetP2PStatus(.., NVLINK): NVML_P2P_STATUS_*
    errors: dict[str, str] = {}


class Nvml(_SnapshotPart, frozen=True):
    """The NVML source. ``error`` names the failed call that ended it; then all other fields are empty."""

    error: str | None = None  # "nvmlInit_v2: LIBRARY_NOT_FOUND"
    driver_version: str | None = None
    cuda_version: int | None = None  # nvmlSystemGetCudaDriverVersion_v2: 13000
    nvml_version: str | None = None
    device_count: int | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    pairs: tuple[NvmlPair, ...] = ()
    errors: dict[str, str] = {}

    @property
    def gpus_at_p0(self) -> frozenset[int]:
        """GPUs in P0, the highest performance state, where the PCIe link runs at full speed."""
        return frozenset(gpu.index for gpu in self.gpus if gpu.performance_state == 0)


class Output(_SnapshotPart, frozen=True):
    """The output of a command."""

    stdout: Text
    exit_code: int = 0
    stderr: Text = ""


class Sysfs(_SnapshotPart, frozen=True):
    """Parts of /sys as text: keys are paths below /sys."""

    files: dict[str, Text] = {}  # "bus/pci/devices/0000:07:00.0/numa_node" -> "0\n"
    links: dict[str, str] = {}  # symlink -> its target, resolved, below /sys


class Host(_SnapshotPart, frozen=True):
    """The host: kernel, CPUs, memory, virtualization."""

    name: str | None = None  # host name; None once scrubbed
    kernel: str | None = None
    boot_id: str | None = None  # /proc/sys/kernel/random/boot_id
    cpus: int | None = None  # logical CPUs (psutil)
    memory_bytes: int | None = None
    virtualization: str | None = None  # "wsl", "kvm", ...; None: unknown
    visible_devices: str | None = None  # NVIDIA_VISIBLE_DEVICES of the recording process


class Snapshot(_SnapshotPart, frozen=True):
    """One machine at one moment. A source that was not read is None."""

    format: str = FORMAT
    recorder: str | None = None  # "gputopo 0.1.0"
    scrubbed: tuple[str, ...] = ()  # what was removed: "hostname", "serial", "uuid"
    host: Host | None = None
    nvml: Nvml | None = None
    smi: dict[str, Output] | None = None  # arguments of nvidia-smi -> output: "topo -m"
    sysfs: Sysfs | None = None
    errors: dict[str, str] = {}  # source that raised an exception -> the exception
    nccl: Text | None = None  # text of an NCCL topology XML file (NCCL_TOPO_DUMP_FILE)
    lstopo: Text | None = None  # text of an hwloc topology XML file (`lstopo machine.xml`)
