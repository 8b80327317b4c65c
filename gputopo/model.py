"""The model of a GPU machine: frozen values and their invariants.

This module reads no file, calls no driver and contains no label. Unknown is ``None``, never 0 or "". Every value checks
its invariants on construction and raises ``ModelError``, so every ``NodeTopology`` is consistent. A GPU is defined in
``gputopo.gpu``, its NVLinks and islands in ``gputopo.nvlink``; all their names are importable from this module.

    ModelError(ValueError)      a value breaks an invariant; the message quotes it
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

import msgspec

from gputopo.gpu import C2c, FabricState, Gpu, GpuFabric, Health, MigDevice, Pcie
from gputopo.identity import SameObjects
from gputopo.invariants import ModelError, require
from gputopo.nvlink import Island, Link, Nvlink, Uplink, find_islands
from gputopo.summary import Interconnect, TopologySummary

__all__ = [
    "MAX_GPUS",
    "C2c",
    "Degradation",
    "FabricState",
    "FactGroup",
    "Gpu",
    "GpuFabric",
    "Health",
    "Interconnect",
    "Island",
    "Link",
    "MigDevice",
    "ModelError",
    "Nic",
    "NodeTopology",
    "NumaNode",
    "Nvlink",
    "Pcie",
    "PcieDistance",
    "Problem",
    "ProblemKind",
    "TopologySummary",
    "Uplink",
]

MAX_GPUS = 64  # more than any machine built (DGX-2 and HGX trays hold 16); bounds every matrix below


class PcieDistance(Enum):
    """The path between two PCIe devices, nearest first: the words of the legend of ``nvidia-smi topo -m``."""

    PIX = "PIX"  # at most one PCIe bridge (NVML_TOPOLOGY_SINGLE, and NVML_TOPOLOGY_INTERNAL: one board)
    PXB = "PXB"  # several PCIe bridges, no host bridge (NVML_TOPOLOGY_MULTIPLE)
    PHB = "PHB"  # a PCIe host bridge, typically the CPU (NVML_TOPOLOGY_HOSTBRIDGE)
    NODE = "NODE"  # several host bridges of one NUMA node (NVML_TOPOLOGY_NODE)
    SYS = "SYS"  # the link between NUMA nodes; SOC before driver 384 (NVML_TOPOLOGY_SYSTEM)


class ProblemKind(Enum):
    """Why a problem is one."""

    UNKNOWN = "unknown"  # a fact could not be learned
    CONFLICT = "conflict"  # two sources disagree; the text says which was believed
    INCOMPLETE = "incomplete"  # the input was cut, damaged, or shows a part of the machine only


class FactGroup(Enum):
    """Facts that only a complete input can show."""

    GPUS = "gpus"  # which GPUs the machine has
    NVLINK = "nvlink"  # which GPUs NVLinks connect, and with how many lanes
    NUMA = "numa"  # the NUMA node of each GPU
    PRODUCTS = "products"  # product, architecture and memory of each GPU


class Problem(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """Something about the observation (not the hardware) that a reader should know."""

    what: str  # the thing, as a path: "gpus.3.numaNode", "nvlink", "topo -m line 7"
    kind: ProblemKind
    why: str


class Degradation(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A part of the hardware that is worse than it should be."""

    what: str  # "gpu3", "gpu3.nvlink", "gpu3.pcie", "gpu3.fabric", "gpu2-gpu3"
    why: str


class Nic(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A network device that can reach GPUs (RDMA). Source: ``/sys/class/infiniband``, columns of ``topo -m``."""

    name: str  # "mlx5_0"
    bus_id: str | None = None
    numa_node: int | None = None
    rate_gbps: int | None = (
        None  # Gbit/s (not bytes), /sys/class/infiniband/*/ports/1/rate; None while the port is down
    )
    distances: tuple[PcieDistance | None, ...]  # to each GPU, in the order of NodeTopology.gpus


class NumaNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NUMA node of the machine. Source: ``/sys/devices/system/node/node<id>``."""

    id: int
    cpus: str | None = None  # cpulist; "" if the node has memory only (of a Grace GPU)
    memory_mib: int | None = None


class NodeTopology(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A machine.

    ``nvlink`` is None if no source reports the NVLinks; a machine without NVLink has an empty ``Nvlink``.
    ``pcie`` is a symmetric matrix in the order of ``gpus``; None on the diagonal and for unknown distances.
    """

    gpus: tuple[Gpu, ...] = ()
    nvlink: Nvlink | None = None
    pcie: tuple[tuple[PcieDistance | None, ...], ...] = ()
    nics: tuple[Nic, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    machine: str | None = None  # /sys/class/dmi/id/product_name
    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA the driver supports: "13.0"
    boot_id: str | None = None  # /proc/sys/kernel/random/boot_id at the time of the observation
    partial: bool = False  # not all GPUs of the machine are visible
    degraded: tuple[Degradation, ...] = ()
    problems: tuple[Problem, ...] = ()
    # Facts that a damaged or contradictory input leaves open (``problems`` say why): nothing that depends on them is
    # published.
    uncertain: tuple[FactGroup, ...] = ()
    summary: TopologySummary | None = None  # where labels describe the machine, and not its link graph

    def __post_init__(self) -> None:
        indices = [gpu.index for gpu in self.gpus]
        require(len(indices) <= MAX_GPUS, f"{len(indices)} GPUs; at most {MAX_GPUS} are supported")
        require(indices == sorted(set(indices)), f"GPU indices {indices} are not ascending and distinct")
        if self.nvlink is not None:
            self.nvlink.require_gpus(set(indices))
        _require_matrix(self.pcie, len(indices))
        for nic in self.nics:
            require(
                len(nic.distances) == len(indices),
                f"NIC {nic.name}: {len(nic.distances)} distances for {len(indices)} GPUs",
            )

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """Return the GPUs that a pod can use."""
        return tuple([gpu for gpu in self.gpus if gpu.health is Health.OK])

    @property
    def joinable(self) -> frozenset[int]:
        """Return the indices of the GPUs that can use NVLink: usable, and not in MIG mode."""
        return frozenset([gpu.index for gpu in self.usable if gpu.mig_enabled is not True])

    @property
    def islands(self) -> tuple[Island, ...] | None:
        """Return the islands of usable GPUs, also those of a single GPU, by first GPU; None if NVLink is unknown."""
        if self.nvlink is None:
            return None
        return _islands_of(tuple([gpu.index for gpu in self.usable]), self.joinable, SameObjects((self.nvlink,)))

    @property
    def uncertain_gpus(self) -> frozenset[int]:
        """Return the GPUs whose island may be larger than in ``islands``: an unknown pair leads out of it."""
        if self.nvlink is None or self.islands is None:
            return frozenset()
        island = {index: place for place, each in enumerate(self.islands) for index in each.gpus}
        pairs = [pair for pair in self.nvlink.unknown if pair[0] in island and pair[1] in island]
        open_ends = {island[end] for pair in pairs if island[pair[0]] != island[pair[1]] for end in pair}
        return frozenset(index for index, place in island.items() if place in open_ends)

    @property
    def fabric(self) -> GpuFabric | None:
        """Return the multi-node NVLink domain if every usable GPU is registered in the same domain, in any health."""
        domains = {None if gpu.fabric is None else gpu.fabric.domain for gpu in self.usable}
        fabrics = (gpu.fabric for gpu in self.usable)
        return next(fabrics, None) if len(domains) == 1 and None not in domains else None

    def stable_facts(self) -> NodeTopology:
        """Return the topology without the facts that change while the machine stays the same.

        A GPU's PCIe speed drops while the GPU is idle. The rate of a NIC depends on its cable and switch. Problems
        describe an observation: a source that fails once does not change the machine.
        """
        gpus = [
            msgspec.structs.replace(gpu, pcie=msgspec.structs.replace(gpu.pcie, generation=None, width=None))
            for gpu in self.gpus
        ]
        nics = [msgspec.structs.replace(nic, rate_gbps=None) for nic in self.nics]
        return msgspec.structs.replace(self, gpus=tuple(gpus), nics=tuple(nics), problems=(), uncertain=())

    def get_gpu(self, index: int) -> Gpu:
        """Return the GPU with an index. Raises ``ModelError`` with the existing indices."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        known = ", ".join(str(gpu.index) for gpu in self.gpus) or "none"
        raise ModelError(f"GPU {index} does not exist; existing: {known}")

    def distance(self, a: int, b: int) -> PcieDistance | None:
        """Return the PCIe distance between two GPU indices; None if unknown."""
        if not self.pcie:
            return None
        position = {gpu.index: place for place, gpu in enumerate(self.gpus)}
        return self.pcie[position[a]][position[b]]


def _require_matrix(matrix: tuple[tuple[PcieDistance | None, ...], ...], size: int) -> None:
    if not matrix:
        return
    square = len(matrix) == size and all(len(row) == size for row in matrix)
    require(square, f"the PCIe matrix is not {size} x {size}")
    for i, row in enumerate(matrix):
        require(row[i] is None, f"the PCIe matrix has a distance from GPU {i} to itself")
        for j in range(i):
            require(row[j] is matrix[j][i], f"the PCIe matrix differs between ({i},{j}) and ({j},{i})")


@lru_cache(maxsize=256)
def _islands_of(usable: tuple[int, ...], joinable: frozenset[int], nvlink: SameObjects) -> tuple[Island, ...]:
    return find_islands(usable, nvlink.objects[0], joinable)
