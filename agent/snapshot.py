"""What the sources said, verbatim: the recording format, the fixture format and the bug-report attachment.

A snapshot holds no conclusions. ``gputopo record`` writes one, ``--from`` replays one, and both go through the same
``discover``. One definition has two readers: msgspec decodes in microseconds (start-up of the command line), pydantic
validates what others send us and names every fault at once. Absent means "this source was not asked or has no such
thing"; a call that failed is in ``errors`` under the name of the call.

    SnapshotError(ValueError)   the document is not a snapshot; the message says where and what was expected

Annotations are evaluated here (no ``from __future__``): as text, msgspec would compile each before its first decoding.
"""

from typing import Annotated, Any

import msgspec

FORMAT = "gputopo.io/snapshot/v1"
HANDLE = "nvmlDeviceGetHandleByIndex_v2"  # the call without which no other can be made about a GPU


class SnapshotError(ValueError):
    """The document is not a snapshot."""


class _Lines:
    """How pydantic describes a ``Text`` in the JSON Schema; ``agent.recording.io`` joins and splits the lines."""

    @staticmethod
    def __get_pydantic_json_schema__(_core: Any, _handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


Text = Annotated[str, _Lines()]  # the JSON form may be a list of its lines, so that a diff shows the line that changed


class _Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a snapshot."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Any) -> Any:
        """How pydantic validates a part: as an object with the fields of the Struct."""
        from pydantic_core import core_schema  # noqa: PLC0415  only pydantic calls this

        fields = {
            field.name: core_schema.typed_dict_field(handler.generate_schema(field.type), required=field.required)
            for field in msgspec.structs.fields(cls)
        }
        return core_schema.typed_dict_schema(fields)


class NvmlLink(_Said, frozen=True):
    """One NVLink port of a GPU, as NVML tells it."""

    link: int  # 0 .. NVML_NVLINK_MAX_LINKS - 1
    active: bool | None = None  # nvmlDeviceGetNvLinkState
    version: int | None = None  # nvmlDeviceGetNvLinkVersion: an enum, not a generation
    remote_type: str | None = None  # nvmlDeviceGetNvLinkRemoteDeviceType: "gpu" "ibmnpu" "switch" "unknown"
    remote_bus_id: str | None = None  # nvmlDeviceGetNvLinkRemotePciInfo_v2, as given (may be all F, empty, or odd)
    speed_mbps: int | None = None  # field NVLINK_GET_SPEED (164), else NVLINK_SPEED_MBPS_COMMON (90): MB/s, one way
    errors: dict[str, str] = {}  # NVML call -> error name


class NvmlMigDevice(_Said, frozen=True):
    """A MIG device of a GPU."""

    slot: int
    uuid: str | None = None
    name: str | None = None  # nvmlDeviceGetName: "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    errors: dict[str, str] = {}


class NvmlFabric(_Said, frozen=True):
    """``nvmlDeviceGetGpuFabricInfoV``."""

    state: int  # NVML_GPU_FABRIC_STATE_*
    status: int = 0  # an nvmlReturn_t
    cluster_uuid: str | None = None
    clique: int | None = None
    health_mask: int | None = None
    health_summary: int | None = None


class NvmlGpu(_Said, frozen=True):
    """One GPU, as NVML tells it. ``errors`` of a lost GPU holds the failing ``HANDLE``."""

    index: int
    uuid: str | None = None
    bus_id: str | None = None  # as given: "00000000:07:00.0"
    minor: int | None = None
    name: str | None = None
    architecture: int | None = None  # NVML_DEVICE_ARCH_*
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None  # nvmlDeviceGetMemoryInfo.total
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
    errors: dict[str, str] = {}  # NVML call -> error name

    @property
    def refused(self) -> str | None:
        """Why NVML gives no handle of the GPU, and so tells nothing of it; None: it gives one."""
        return self.errors.get(HANDLE)


class NvmlPair(_Said, frozen=True):
    """What NVML says of two GPUs, by index, ``a < b``."""

    a: int
    b: int
    ancestor: int | None = None  # nvmlDeviceGetTopologyCommonAncestor: NVML_TOPOLOGY_*
    p2p_nvlink: int | None = None  # nvmlDeviceGetP2PStatus(.., NVLINK): NVML_P2P_STATUS_*
    errors: dict[str, str] = {}


class Nvml(_Said, frozen=True):
    """The NVML source. ``error`` names the call that ended it, and then the rest is empty."""

    error: str | None = None  # "nvmlInit_v2: LIBRARY_NOT_FOUND"
    driver_version: str | None = None
    cuda_version: int | None = None  # nvmlSystemGetCudaDriverVersion_v2: 13000
    nvml_version: str | None = None
    device_count: int | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    pairs: tuple[NvmlPair, ...] = ()
    errors: dict[str, str] = {}

    @property
    def awake(self) -> frozenset[int]:
        """GPUs at P0, the highest performance state, whose PCIe link is as fast as it gets."""
        return frozenset(gpu.index for gpu in self.gpus if gpu.performance_state == 0)


class Output(_Said, frozen=True):
    """What a command printed."""

    stdout: Text
    exit_code: int = 0
    stderr: Text = ""


class Sysfs(_Said, frozen=True):
    """Parts of /sys as text: keys are paths below /sys."""

    files: dict[str, Text] = {}  # "bus/pci/devices/0000:07:00.0/numa_node" -> "0\n"
    links: dict[str, str] = {}  # symlink -> its target, resolved, below /sys


class Host(_Said, frozen=True):
    """The machine around the GPUs."""

    name: str | None = None  # host name; None once scrubbed
    kernel: str | None = None
    boot_id: str | None = None  # /proc/sys/kernel/random/boot_id
    cpus: int | None = None  # logical CPUs (psutil)
    memory_bytes: int | None = None
    virtualization: str | None = None  # "wsl", "kvm", ... where a source tells; None: not known
    visible_devices: str | None = None  # NVIDIA_VISIBLE_DEVICES of the recording process


class Snapshot(_Said, frozen=True):
    """One machine at one moment. A source that was not asked is None."""

    format: str = FORMAT
    recorder: str | None = None  # "gputopo 0.1.0"
    scrubbed: tuple[str, ...] = ()  # what was taken out: "hostname", "serial", "uuid"
    host: Host | None = None
    nvml: Nvml | None = None
    smi: dict[str, Output] | None = None  # arguments of nvidia-smi -> output: "topo -m"
    sysfs: Sysfs | None = None
    errors: dict[str, str] = {}  # source that ended in a surprise -> what happened
    nccl: Text | None = None  # text of an NCCL topology XML file (NCCL_TOPO_DUMP_FILE)
    lstopo: Text | None = None  # text of an hwloc topology XML file (`lstopo machine.xml`)
