"""One GPU: its identity, PCIe link, MIG devices, multi-node fabric and health. Pure.

Every value checks its invariants on construction and raises ``ModelError``.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from gputopo.invariants import require

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Health(Enum):
    """The state of a GPU: usable or not. A slow GPU is OK here and listed in ``NodeTopology.degraded``."""

    OK = "ok"
    LOST = "lost"  # on the bus or in the driver's count, but NVML cannot talk to it


class FabricState(Enum):
    """``nvmlGpuFabricInfoV.state``: where a GPU stands with its fabric manager."""

    NOT_SUPPORTED = "not-supported"
    NOT_STARTED = "not-started"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"


class Pcie(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A GPU's PCIe link. Current values drop while the GPU is idle; only the maxima are stable.

    Source: ``nvmlDeviceGet{Curr,Max}PcieLink{Generation,Width}``; sysfs ``{current,max}_link_{speed,width}``.
    """

    generation: int | None = None
    width: int | None = None  # lanes
    max_generation: int | None = None
    max_width: int | None = None


class MigDevice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A MIG device. Source: ``nvmlDeviceGetMigDeviceHandleByIndex``."""

    profile: str | None = None  # "1g.10gb"; None: unknown (`nvidia-smi -q` does not print it)
    uuid: str | None = None
    memory_mib: int | None = None


class GpuFabric(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A GPU's membership in a multi-node NVLink fabric. Source: ``nvmlDeviceGetGpuFabricInfoV``."""

    state: FabricState
    cluster_uuid: str | None = None  # None if NVML reports zeroes: registered, but in no multi-node fabric
    clique: int | None = None
    status: str | None = None  # None is NVML_SUCCESS; else the NVML error's name
    unhealthy: tuple[str, ...] = ()  # names of the healthMask fields that report a fault, else the healthSummary

    @property
    def domain(self) -> tuple[str, int] | None:
        """Return the domain that the GPU is registered in, as cluster UUID and clique. Its health does not count."""
        complete = self.state is FabricState.COMPLETED and self.status is None
        if not complete or self.cluster_uuid is None or self.clique is None:
            return None
        return self.cluster_uuid, self.clique


class C2c(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The NVLink-C2C links between a GPU and the CPU of its superchip: Grace, Vera.

    Source: NVML_FI_DEV_C2C_*; NCCL's ``<c2c>``.
    """

    lanes: int  # links in use
    expected_lanes: int
    gbps: float | None = None  # GB/s of the links in use, in both directions

    @property
    def short(self) -> bool:
        """Return whether a link is down."""
        return self.lanes < self.expected_lanes


class Gpu(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A physical GPU. ``index`` is NVML's and may change if a GPU is lost; ``uuid`` and ``bus_id`` identify the GPU."""

    index: int
    uuid: str | None = None  # nvmlDeviceGetUUID
    bus_id: str | None = None  # sysfs spelling, lower case: "0000:07:00.0"
    minor: int | None = None  # /dev/nvidia<minor>
    product: str | None = None  # nvmlDeviceGetName, verbatim
    architecture: str | None = None  # "hopper"; GPU Feature Discovery's family names
    compute_capability: tuple[int, int] | None = None
    memory_mib: int | None = None  # total including reserved; None on GPUs that share the host's memory
    numa_node: int | None = None  # its CPU NUMA node; None if unknown or several
    numa_affinity: str | None = None  # the text as printed: "0", "0-1", "0,5-11"
    memory_numa_node: int | None = None  # Grace: the NUMA node that IS this GPU's memory
    cpu_affinity: str | None = None  # cpulist: "0-63,128-191"
    pcie: Pcie = Pcie()
    mig_enabled: bool | None = None  # None: unknown or not supported
    mig_devices: tuple[MigDevice, ...] = ()
    fabric: GpuFabric | None = None
    c2c: C2c | None = None  # None: unknown, or no superchip
    health: Health = Health.OK

    def __post_init__(self) -> None:
        require(0 <= self.index < 1000, f"GPU index {self.index} is not between 0 and 999")
        if self.bus_id is not None:
            require(_BUS_ID.fullmatch(self.bus_id) is not None, f"bus id {self.bus_id!r} is not like '0000:07:00.0'")
        for name in ("minor", "memory_mib", "numa_node", "memory_numa_node"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"GPU {self.index}: {name} {value} is negative; unknown is None")
        require(self.memory_mib != 0, f"GPU {self.index}: memory_mib 0; unknown is None")
        require(not self.mig_devices or self.mig_enabled is True, f"GPU {self.index}: MIG devices without MIG mode")

    @property
    def usable(self) -> bool:
        """Return whether a pod can use this GPU."""
        return self.health is Health.OK
