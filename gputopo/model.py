"""The model of a GPU machine: frozen values and their invariants.

This module reads no file, calls no driver and contains no label. Unknown is ``None``, never 0 or "". Every value checks
its invariants on construction and raises ``ModelError``, so every ``NodeTopology`` is consistent.

    ModelError(ValueError)      a value breaks an invariant; the message quotes it
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from gputopo.summary import Interconnect as Interconnect  # noqa: PLC0414  a name of the model
from gputopo.summary import TopologySummary as TopologySummary  # noqa: PLC0414

MAX_GPUS = 64  # more than any machine built (DGX-2 and HGX trays hold 16); bounds every matrix below
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class ModelError(ValueError):
    """A value breaks an invariant of the model."""


class PcieDistance(Enum):
    """What lies between two PCIe devices, nearest first: the words of the legend of ``nvidia-smi topo -m``."""

    PIX = "PIX"  # at most one PCIe bridge (NVML_TOPOLOGY_SINGLE, and NVML_TOPOLOGY_INTERNAL: one board)
    PXB = "PXB"  # several PCIe bridges, no host bridge (NVML_TOPOLOGY_MULTIPLE)
    PHB = "PHB"  # a PCIe host bridge, typically the CPU (NVML_TOPOLOGY_HOSTBRIDGE)
    NODE = "NODE"  # several host bridges of one NUMA node (NVML_TOPOLOGY_NODE)
    SYS = "SYS"  # the link between NUMA nodes; SOC before driver 384 (NVML_TOPOLOGY_SYSTEM)


class Health(Enum):
    """Whether a GPU can be used at all. A slow GPU is OK here and listed in ``NodeTopology.degraded``."""

    OK = "ok"
    LOST = "lost"  # on the bus or in the driver's count, but NVML cannot talk to it


class FabricState(Enum):
    """``nvmlGpuFabricInfoV.state``: where a GPU stands with its fabric manager."""

    NOT_SUPPORTED = "not-supported"
    NOT_STARTED = "not-started"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"


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


class Pcie(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU's PCIe link. Current values drop while the GPU is idle; only the maxima are stable.

    Source: ``nvmlDeviceGet{Curr,Max}PcieLink{Generation,Width}``; sysfs ``{current,max}_link_{speed,width}``.
    """

    generation: int | None = None
    width: int | None = None  # lanes
    max_generation: int | None = None
    max_width: int | None = None


class MigDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A MIG device. Source: ``nvmlDeviceGetMigDeviceHandleByIndex``."""

    profile: str | None = None  # "1g.10gb"; None: unknown (`nvidia-smi -q` does not print it)
    uuid: str | None = None
    memory_mib: int | None = None


class GpuFabric(msgspec.Struct, frozen=True, omit_defaults=True):
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


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    health: Health = Health.OK

    def __post_init__(self) -> None:
        _check(0 <= self.index < 1000, f"GPU index {self.index} is not between 0 and 999")
        if self.bus_id is not None:
            _check(_BUS_ID.fullmatch(self.bus_id) is not None, f"bus id {self.bus_id!r} is not like '0000:07:00.0'")
        for name in ("minor", "memory_mib", "numa_node", "memory_numa_node"):
            value = getattr(self, name)
            _check(value is None or value >= 0, f"GPU {self.index}: {name} {value} is negative; unknown is None")
        _check(self.memory_mib != 0, f"GPU {self.index}: memory_mib 0; unknown is None")
        _check(not self.mig_devices or self.mig_enabled is True, f"GPU {self.index}: MIG devices without MIG mode")

    @property
    def usable(self) -> bool:
        """Return whether a pod can use this GPU."""
        return self.health is Health.OK


class _Bond(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """NVLinks with the same two ends."""

    lanes: int  # active on both sides
    expected_lanes: int | None = None  # of a healthy edge; None: unknown
    gbps: float | None = None  # GB/s, both directions together, of the active lanes

    @property
    def short(self) -> bool:
        """Return whether lanes are missing."""
        return self.expected_lanes is not None and self.lanes < self.expected_lanes


class Link(_Bond, frozen=True, kw_only=True, omit_defaults=True):
    """The active NVLinks that join two GPUs directly, bonded into one edge, ``a < b``."""

    a: int  # GPU index
    b: int  # GPU index
    one_sided: bool = False  # one end reports it as active, the other reports no link at all: NVIDIA's plugin crashes

    def __post_init__(self) -> None:
        _check(self.a < self.b, f"link {self.a}-{self.b}: ends must differ, smaller first")
        _check_lanes(self, f"link {self.a}-{self.b}")
        _check(not (self.one_sided and self.lanes), f"link {self.a}-{self.b}: one-sided, but {self.lanes} lanes")


class Uplink(_Bond, frozen=True, kw_only=True, omit_defaults=True):
    """The active NVLinks from a GPU into an NVSwitch fabric, bonded into one edge."""

    gpu: int  # GPU index
    fabric: int  # 0, 1, ...: GPUs of one fabric reach each other at full bandwidth
    assumed: bool = False  # the far end has an unknown type (virtual machines, NVLink 5): assumed to be an NVSwitch

    def __post_init__(self) -> None:
        _check_lanes(self, f"uplink of GPU {self.gpu}")


class Nvlink(msgspec.Struct, frozen=True, omit_defaults=True):
    """The graph of active NVLinks. An edge with 0 lanes is a link that is down, but should be up."""

    links: tuple[Link, ...] = ()
    uplinks: tuple[Uplink, ...] = ()
    unknown: tuple[tuple[int, int], ...] = ()  # pairs a < b for which no source reports whether NVLinks connect them


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Island(msgspec.Struct, frozen=True, omit_defaults=True):
    """A connected component of the graph of active NVLinks, or a GPU that has none."""

    gpus: tuple[int, ...]  # GPU indices, ascending
    interconnect: Interconnect
    gbps: float | None  # NVLink GB/s per GPU, both directions, of its slowest GPU; None: unknown or no NVLink

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)


class NodeTopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
        _check(len(indices) <= MAX_GPUS, f"{len(indices)} GPUs; at most {MAX_GPUS} are supported")
        _check(indices == sorted(set(indices)), f"GPU indices {indices} are not ascending and distinct")
        _check_nvlink(self.nvlink, set(indices))
        _check_matrix(self.pcie, len(indices))
        for nic in self.nics:
            _check(
                len(nic.distances) == len(indices),
                f"NIC {nic.name}: {len(nic.distances)} distances for {len(indices)} GPUs",
            )

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """Return the GPUs that a pod can use."""
        return tuple(gpu for gpu in self.gpus if gpu.usable)

    @property
    def joinable(self) -> frozenset[int]:
        """Return the indices of the GPUs that can use NVLink: usable, and not in MIG mode."""
        return frozenset(gpu.index for gpu in self.usable if gpu.mig_enabled is not True)

    @property
    def islands(self) -> tuple[Island, ...] | None:
        """Return the islands of usable GPUs, also those of a single GPU, by first GPU; None if NVLink is unknown."""
        return None if self.nvlink is None else _islands(self.usable, self.nvlink, self.joinable)

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


def _islands(usable: tuple[Gpu, ...], nvlink: Nvlink, joinable: frozenset[int]) -> tuple[Island, ...]:
    """Find the islands by union-find over active edges. A GPU that cannot use NVLink is an island of its own."""
    root = {gpu.index: gpu.index for gpu in usable}

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    uplinks = [up for up in nvlink.uplinks if up.lanes and up.gpu in joinable]
    first: dict[int, int] = {}
    for up in uplinks:
        root[find(up.gpu)] = find(first.setdefault(up.fabric, up.gpu))
    links = [link for link in nvlink.links if link.lanes and link.a in joinable and link.b in joinable]
    for link in links:
        root[find(link.b)] = find(link.a)

    members: dict[int, list[int]] = {}
    for index in sorted(root):
        members.setdefault(find(index), []).append(index)
    return tuple(_island(tuple(gpus), links, uplinks) for gpus in sorted(members.values()))


def _island(gpus: tuple[int, ...], links: list[Link], uplinks: list[Uplink]) -> Island:
    if len(gpus) == 1:
        return Island(gpus, Interconnect.NONE, None)
    edges: dict[int, list[float | None]] = {index: [] for index in gpus}
    for link in links:
        for end in (link.a, link.b):
            if end in edges:
                edges[end].append(link.gbps)
    fabrics = {up.gpu: up.fabric for up in uplinks if up.gpu in edges}
    for up in uplinks:
        if up.gpu in edges:
            edges[up.gpu].append(up.gbps)
    direct = any(link.a in edges for link in links)
    # Where direct links take part, not every pair of GPUs has a path through an NVSwitch, nor the rate of its sum.
    switched = len(fabrics) == len(gpus) and len(set(fabrics.values())) == 1 and not direct
    rates = [None if None in each else sum(rate for rate in each if rate is not None) for each in edges.values()]
    slowest = None if None in rates else min(rate for rate in rates if rate is not None)
    return Island(gpus, Interconnect.NVSWITCH if switched else Interconnect.NVLINK, slowest)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ModelError(message)


def _check_lanes(edge: Link | Uplink, name: str) -> None:
    _check(edge.lanes >= 0, f"{name}: {edge.lanes} lanes")
    _check(edge.expected_lanes is None or edge.expected_lanes >= edge.lanes, f"{name}: more lanes than expected")
    _check(edge.lanes > 0 or edge.expected_lanes is not None, f"{name}: no lanes and none expected is no link")
    _check(edge.gbps is None or edge.gbps >= 0, f"{name}: {edge.gbps} GB/s")


def _check_nvlink(nvlink: Nvlink | None, indices: set[int]) -> None:
    if nvlink is None:
        return
    pairs = [(link.a, link.b) for link in nvlink.links]
    _check(pairs == sorted(set(pairs)), "links are not ascending and distinct")
    ups = [up.gpu for up in nvlink.uplinks]
    _check(ups == sorted(set(ups)), "uplinks are not ascending and distinct: a GPU has one per fabric, and one fabric")
    _check(list(nvlink.unknown) == sorted(set(nvlink.unknown)), "unknown pairs are not ascending and distinct")
    _check(all(a < b for a, b in nvlink.unknown), "an unknown pair has its smaller GPU first")
    missing = ({end for pair in (*pairs, *nvlink.unknown) for end in pair} | set(ups)) - indices
    _check(not missing, f"NVLinks name GPUs that do not exist: {sorted(missing)}")


def _check_matrix(matrix: tuple[tuple[PcieDistance | None, ...], ...], size: int) -> None:
    if not matrix:
        return
    square = len(matrix) == size and all(len(row) == size for row in matrix)
    _check(square, f"the PCIe matrix is not {size} x {size}")
    for i, row in enumerate(matrix):
        _check(row[i] is None, f"the PCIe matrix has a distance from GPU {i} to itself")
        for j in range(i):
            _check(row[j] is matrix[j][i], f"the PCIe matrix differs between ({i},{j}) and ({j},{i})")
