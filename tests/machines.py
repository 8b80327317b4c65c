"""Machines as values, for tests of everything that takes a ``NodeTopology``: one small function per shape.

They are made by hand from the vendors' block diagrams and from what such machines are known to print; they prove what a
function makes of a shape, not what a driver says (recorded machines do that). ``MACHINES`` lists them by name.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import msgspec

from gputopo.model import (
    Degradation,
    FabricState,
    Gpu,
    GpuFabric,
    Health,
    Link,
    MigDevice,
    Nic,
    NodeTopology,
    NumaNode,
    Nvlink,
    Pcie,
    PcieDistance,
    Problem,
    ProblemKind,
    Uplink,
)

# Where a device hangs in the PCIe tree: NUMA node, host bridge, switch, leaf of the switch.
Place = tuple[object, object, object, object]
_BY_SHARED_LEVELS = (PcieDistance.SYS, PcieDistance.NODE, PcieDistance.PHB, PcieDistance.PXB, PcieDistance.PIX)


def distance(a: Place, b: Place) -> PcieDistance:
    """The PCIe distance between two places: the deeper their common ancestor, the nearer."""
    shared = next((level for level, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return _BY_SHARED_LEVELS[shared]


def matrix(places: Sequence[Place]) -> tuple[tuple[PcieDistance | None, ...], ...]:
    """The PCIe distances among GPUs at those places, as ``NodeTopology.pcie`` wants them."""
    return tuple(tuple(None if i == j else distance(a, b) for j, b in enumerate(places)) for i, a in enumerate(places))


def nic(name: str, place: Place, gpus: Sequence[Place], *, rate: int | None = None) -> Nic:
    """A NIC at a place, with its distances to the GPUs at theirs."""
    node = place[0] if isinstance(place[0], int) else None
    return Nic(name=name, numa_node=node, rate_gbps=rate, distances=tuple(distance(place, gpu) for gpu in gpus))


def gpus(
    product: str,
    memory_mib: int,
    numa: Sequence[int | None],
    *,
    architecture: str,
    pcie: Pcie = Pcie(),  # noqa: B008  frozen
    first_bus: int = 0x10,
) -> tuple[Gpu, ...]:
    """One GPU per entry of ``numa``, all of one product, with made-up but distinct identities."""
    return tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{index:08x}-0000-4000-8000-{memory_mib:012x}",
            bus_id=f"0000:{first_bus + 8 * index:02x}:00.0",
            minor=index,
            product=product,
            architecture=architecture,
            memory_mib=memory_mib,
            numa_node=node,
            numa_affinity=None if node is None else str(node),
            pcie=pcie,
        )
        for index, node in enumerate(numa)
    )


def switched(
    indices: Iterable[int], lanes: int, gbps_per_lane: float | None = None, *, assumed: bool = False
) -> Nvlink:
    """Every GPU attached to one NVSwitch fabric by that many lanes."""
    rate = None if gbps_per_lane is None else lanes * gbps_per_lane
    return Nvlink(
        uplinks=tuple(
            Uplink(gpu=index, fabric=0, lanes=lanes, expected_lanes=lanes, gbps=rate, assumed=assumed)
            for index in sorted(indices)
        )
    )


def bonded(lanes_of: dict[tuple[int, int], int], gbps_per_lane: float | None = None) -> Nvlink:
    """Direct links: lanes per pair of GPU indices."""
    return Nvlink(
        links=tuple(
            Link(
                a=a,
                b=b,
                lanes=lanes,
                expected_lanes=lanes,
                gbps=None if gbps_per_lane is None else lanes * gbps_per_lane,
            )
            for (a, b), lanes in sorted(lanes_of.items())
        )
    )


def two_sockets(threads: int, memory_mib: int, ids: tuple[int, int] = (0, 1)) -> tuple[NumaNode, ...]:
    """Two NUMA nodes; CPUs numbered as Linux does on x86: cores first, then their second threads."""
    quarter = threads // 4
    return tuple(
        NumaNode(
            id=node,
            cpus=f"{i * quarter}-{(i + 1) * quarter - 1},{(i + 2) * quarter}-{(i + 3) * quarter - 1}",
            memory_mib=memory_mib,
        )
        for i, node in enumerate(ids)
    )


GEN3 = Pcie(max_generation=3, max_width=16)
GEN4 = Pcie(max_generation=4, max_width=16)
GEN5 = Pcie(max_generation=5, max_width=16)

# Lanes of the hybrid cube mesh with V100: two quads, each fully meshed, joined GPU by GPU. Six lanes per GPU.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip


def dgx1() -> NodeTopology:
    """DGX-1 with V100: hybrid cube mesh, two GPUs and one InfiniBand card per PCIe switch."""
    places: list[Place] = [(i // 4, 0, i // 2, 0) for i in range(8)]
    return NodeTopology(
        gpus=gpus("Tesla V100-SXM2-32GB", 32768, [0] * 4 + [1] * 4, architecture="volta", pcie=GEN3),
        nvlink=bonded(CUBE_MESH, 50.0),
        pcie=matrix(places),
        nics=tuple(nic(f"mlx5_{i}", (i // 2, 0, i, 0), places, rate=100) for i in range(4)),
        numa_nodes=two_sockets(80, 257_000),
        machine="DGX-1 with V100-32",
        driver_version="535.161.08",
        cuda_version="12.2",
    )


def dgx1_link_down() -> NodeTopology:
    """A DGX-1 of which GPU 0 and GPU 3 lost one of their two lanes, and GPU 5 and GPU 7 their only one."""
    healthy = dgx1()
    assert healthy.nvlink is not None
    hurt = {(0, 3): (1, 50.0), (5, 7): (0, 0.0)}
    links = tuple(
        msgspec.structs.replace(link, lanes=hurt[link.a, link.b][0], gbps=hurt[link.a, link.b][1])
        if (link.a, link.b) in hurt
        else link
        for link in healthy.nvlink.links
    )
    return msgspec.structs.replace(
        healthy,
        nvlink=Nvlink(links=links),
        degraded=(
            Degradation("gpu0-gpu3", "1 of 2 NVLinks is active"),
            Degradation("gpu5-gpu7", "0 of 1 NVLinks is active"),
        ),
    )


def dgx2() -> NodeTopology:
    """DGX-2: sixteen V100 in one NVSwitch fabric, NICs on the PCIe switches and one storage card per socket."""
    places: list[Place] = [(i // 8, 0, i // 4, i // 2) for i in range(16)]
    fast = [nic(f"mlx5_{i}", (i // 4, 0, i // 2, i), places, rate=100) for i in range(8)]
    slow = [nic(f"mlx5_{8 + i}", (i, 1, "root", "nic"), places, rate=100) for i in range(2)]
    return NodeTopology(
        gpus=gpus("Tesla V100-SXM3-32GB", 32768, [0] * 8 + [1] * 8, architecture="volta", pcie=GEN3),
        nvlink=switched(range(16), 6, 50.0),
        pcie=matrix(places),
        nics=(*fast, *slow),
        numa_nodes=two_sockets(96, 773_000),
        machine="NVIDIA DGX-2",
        driver_version="525.105.17",
        cuda_version="12.0",
    )


def dgx_a100() -> NodeTopology:
    """DGX A100: eight NUMA nodes (NPS4), GPUs on four of them, ten NICs near GPUs or near none."""
    node_of = (3, 3, 1, 1, 7, 7, 5, 5)
    places: list[Place] = [(node, 0, 0, i) for i, node in enumerate(node_of)]
    near = [
        nic(f"mlx5_{name}", (node_of[2 * (i // 2)], 0, 0, f"nic{i}"), places, rate=200)
        for i, name in enumerate((0, 1, 2, 3, 6, 7, 8, 9))
    ]
    far = [
        nic(f"mlx5_{name}", (node, 0, "root", "nic"), places, rate=200)
        for name, node in ((4, 2), (5, 2), (10, 4), (11, 4))
    ]
    return NodeTopology(
        gpus=gpus("NVIDIA A100-SXM4-40GB", 40960, node_of, architecture="ampere", pcie=GEN4),
        nvlink=switched(range(8), 12, 50.0),
        pcie=matrix(places),
        nics=tuple(sorted([*near, *far], key=lambda each: int(each.name.removeprefix("mlx5_")))),
        numa_nodes=tuple(
            NumaNode(id=i, cpus=f"{16 * i}-{16 * i + 15},{128 + 16 * i}-{128 + 16 * i + 15}", memory_mib=128_700)
            for i in range(8)
        ),
        machine="DGXA100 920-23687-2530-000",
        driver_version="550.54.15",
        cuda_version="12.4",
    )


def _hgx(product: str, memory_mib: int, architecture: str, lanes: int, gbps_per_lane: float) -> NodeTopology:
    places: list[Place] = [(i // 4, i, 0, i) for i in range(8)]
    rails = [nic(f"mlx5_{i}", (i // 4, i, 0, "nic"), places, rate=400) for i in range(8)]
    storage = [nic(f"mlx5_{8 + i}", (i, "storage", 0, "nic"), places, rate=200) for i in range(2)]
    return NodeTopology(
        gpus=gpus(product, memory_mib, [0] * 4 + [1] * 4, architecture=architecture, pcie=GEN5),
        nvlink=switched(range(8), lanes, gbps_per_lane),
        pcie=matrix(places),
        nics=(*rails, *storage),
        numa_nodes=two_sockets(224, 1_031_000),
        driver_version="580.95.05",
        cuda_version="13.0",
    )


def hgx_h100() -> NodeTopology:
    """HGX H100: eight GPUs in one fabric, a NIC beside each, two more for storage."""
    made = _hgx("NVIDIA H100 80GB HBM3", 81559, "hopper", 18, 50.0)
    return msgspec.structs.replace(made, machine="DGXH100")


def hgx_b200() -> NodeTopology:
    """HGX B200: NVLink 5, twice the speed per lane."""
    made = _hgx("NVIDIA B200", 183359, "blackwell", 18, 100.0)
    return msgspec.structs.replace(made, machine="ProLiant Compute XD680")


def b200_fallen_out() -> NodeTopology:
    """HGX B200 of which GPU 5 is on the PCIe bus but not in the NVSwitch fabric: islands of 7 and 1."""
    whole = hgx_b200()
    assert whole.nvlink is not None
    uplinks = tuple(
        msgspec.structs.replace(up, lanes=0, gbps=0.0) if up.gpu == 5 else up for up in whole.nvlink.uplinks
    )
    return msgspec.structs.replace(
        whole,
        nvlink=Nvlink(uplinks=uplinks),
        degraded=(Degradation("gpu5.fabric", "no NVLink is active while its 7 siblings have 18"),),
    )


def h100_weak_uplink() -> NodeTopology:
    """HGX H100 of which GPU 3 has 17 of its 18 NVLinks and a PCIe link at half its width."""
    whole = hgx_h100()
    assert whole.nvlink is not None
    uplinks = tuple(
        msgspec.structs.replace(up, lanes=17, gbps=850.0) if up.gpu == 3 else up for up in whole.nvlink.uplinks
    )
    return msgspec.structs.replace(
        whole,
        nvlink=Nvlink(uplinks=uplinks),
        degraded=(
            Degradation("gpu3.nvlink", "17 of 18 NVLinks are active"),
            Degradation("gpu3.pcie", "8 of 16 PCIe lanes under load"),
        ),
    )


def h100_lost_gpu() -> NodeTopology:
    """HGX H100 of which NVML cannot talk to GPU 2."""
    whole = hgx_h100()
    assert whole.nvlink is not None
    lost = Gpu(index=2, bus_id=whole.gpus[2].bus_id, numa_node=0, numa_affinity="0", health=Health.LOST)
    return msgspec.structs.replace(
        whole,
        gpus=(*whole.gpus[:2], lost, *whole.gpus[3:]),
        nvlink=Nvlink(uplinks=tuple(up for up in whole.nvlink.uplinks if up.gpu != 2)),
        degraded=(Degradation("gpu2", "GPU is lost"),),
    )


def h100_partial() -> NodeTopology:
    """A container that was given four of the eight GPUs."""
    whole = hgx_h100()
    assert whole.nvlink is not None
    return msgspec.structs.replace(
        whole,
        gpus=whole.gpus[:4],
        nvlink=Nvlink(uplinks=whole.nvlink.uplinks[:4]),
        pcie=tuple(row[:4] for row in whole.pcie[:4]),
        nics=tuple(msgspec.structs.replace(each, distances=each.distances[:4]) for each in whole.nics),
        partial=True,
        problems=(Problem("gpus", ProblemKind.INCOMPLETE, "4 of the machine's 8 GPUs are visible here"),),
    )


def a100_mesh() -> NodeTopology:
    """HGX A100 with four GPUs: every pair joined by four NVLinks, one NIC per GPU."""
    places: list[Place] = [(i // 2, i, 0, i) for i in range(4)]
    return NodeTopology(
        gpus=gpus("NVIDIA A100-SXM4-80GB", 81920, [0, 0, 1, 1], architecture="ampere", pcie=GEN4),
        nvlink=bonded(dict.fromkeys(combinations(range(4), 2), 4), 50.0),
        pcie=matrix(places),
        nics=tuple(nic(f"mlx5_{i}", (i // 2, i, 0, "nic"), places, rate=200) for i in range(4)),
        numa_nodes=two_sockets(128, 515_000),
        machine="PowerEdge XE8545",
        driver_version="535.104.05",
        cuda_version="12.2",
    )


def a100_bridged() -> NodeTopology:
    """Four A100 PCIe in two bridged pairs, each within one NUMA node."""
    places: list[Place] = [(i // 2, i, 0, i) for i in range(4)]
    return NodeTopology(
        gpus=gpus("NVIDIA A100 80GB PCIe", 81920, [0, 0, 1, 1], architecture="ampere", pcie=GEN4),
        nvlink=bonded({(0, 1): 12, (2, 3): 12}, 50.0),
        pcie=matrix(places),
        numa_nodes=two_sockets(128, 515_000),
        machine="PowerEdge R750xa",
        driver_version="535.104.05",
        cuda_version="12.2",
    )


def a100_bridged_across() -> NodeTopology:
    """Four A100 PCIe in two bridged pairs, each crossing the NUMA nodes."""
    made = a100_bridged()
    return msgspec.structs.replace(made, nvlink=bonded({(0, 2): 12, (1, 3): 12}, 50.0))


def v100_ring() -> NodeTopology:
    """Four V100 in a ring 0-1-3-2: no link on the diagonals."""
    places: list[Place] = [(i // 2, i, 0, i) for i in range(4)]
    return NodeTopology(
        gpus=gpus("Tesla V100-SXM2-16GB", 16384, [0, 0, 1, 1], architecture="volta", pcie=GEN3),
        nvlink=bonded({(0, 1): 2, (1, 3): 2, (2, 3): 2, (0, 2): 2}, 50.0),
        pcie=matrix(places),
        nics=(nic("mlx5_0", (0, 0, 0, "nic"), places, rate=100),),
        numa_nodes=two_sockets(48, 192_000),
        driver_version="418.67",
        cuda_version="10.1",
    )


def a6000_pair_and_one() -> NodeTopology:
    """Three RTX A6000 in a workstation: one bridge, one card without."""
    places: list[Place] = [(0, i, 0, i) for i in range(3)]
    return NodeTopology(
        gpus=gpus("NVIDIA RTX A6000", 49140, [0, 0, 0], architecture="ampere", pcie=GEN4),
        nvlink=bonded({(0, 1): 4}, 28.125),
        pcie=matrix(places),
        numa_nodes=(NumaNode(id=0, cpus="0-63", memory_mib=257_000),),
        machine="WRX80 Creator",
        driver_version="550.120",
        cuda_version="12.4",
    )


def rtx4090() -> NodeTopology:
    """Eight GeForce cards: no NVLink at all, PCIe between host bridges, one NIC."""
    places: list[Place] = [(i // 4, i, 0, i) for i in range(8)]
    return NodeTopology(
        gpus=gpus("NVIDIA GeForce RTX 4090", 24564, [0] * 4 + [1] * 4, architecture="ada-lovelace", pcie=GEN4),
        nvlink=Nvlink(),
        pcie=matrix(places),
        nics=(nic("mlx5_0", (0, 3, "root", "nic"), places, rate=100),),
        numa_nodes=two_sockets(128, 515_000),
        machine="ESC8000A-E12",
        driver_version="565.57.01",
        cuda_version="12.7",
    )


def a40x10() -> NodeTopology:
    """Ten A40 behind four PCIe switches, without bridges."""
    switch_of = (0, 0, 0, 1, 1, 2, 2, 2, 3, 3)
    places: list[Place] = [(i // 5, 0, switch_of[i], i) for i in range(10)]
    return NodeTopology(
        gpus=gpus("NVIDIA A40", 46068, [0] * 5 + [1] * 5, architecture="ampere", pcie=GEN4),
        nvlink=Nvlink(),
        pcie=matrix(places),
        nics=(nic("mlx5_0", (1, 0, 3, "nic"), places, rate=100),),
        numa_nodes=two_sockets(128, 515_000),
        machine="AS -4125GS-TNRT",
        driver_version="550.127.05",
        cuda_version="12.4",
    )


_CLUSTER = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"


def gb200_tray() -> NodeTopology:
    """One compute tray of a GB200 NVL72: four GPUs, two Grace CPUs, a fabric that spans the rack."""
    places: list[Place] = [(i // 2, i, "c2c", i) for i in range(4)]
    fabric = GpuFabric(state=FabricState.COMPLETED, cluster_uuid=_CLUSTER, clique=32766)
    plain = gpus("NVIDIA GB200", 189471, [0, 0, 1, 1], architecture="blackwell", pcie=GEN5)
    grace = tuple(msgspec.structs.replace(gpu, memory_numa_node=2 + 8 * gpu.index, fabric=fabric) for gpu in plain)
    memory_only = tuple(NumaNode(id=node, cpus="") for node in range(2, 34))
    return NodeTopology(
        gpus=grace,
        nvlink=switched(range(4), 18, 100.0),
        pcie=matrix(places),
        nics=tuple(nic(f"mlx5_{i}", (i // 2, f"nic{i}", 0, 0), places, rate=400) for i in range(4)),
        numa_nodes=(
            NumaNode(id=0, cpus="0-71", memory_mib=490_000),
            NumaNode(id=1, cpus="72-143", memory_mib=490_000),
            *memory_only,
        ),
        machine="GB200 NVL",
        driver_version="580.95.05",
        cuda_version="13.0",
    )


def gh200() -> NodeTopology:
    """A single GH200: one GPU, whose memory is a NUMA node too."""
    plain = gpus("NVIDIA GH200 480GB", 97871, [0], architecture="hopper", pcie=GEN5)
    return NodeTopology(
        gpus=tuple(msgspec.structs.replace(gpu, memory_numa_node=1) for gpu in plain),
        nvlink=Nvlink(),
        pcie=((None,),),
        nics=(nic("mlx5_0", (0, 1, 0, 0), [(0, 0, 0, 0)], rate=400),),
        numa_nodes=(NumaNode(id=0, cpus="0-71", memory_mib=490_000), NumaNode(id=1, cpus="")),
        machine="Quanta S74G",
        driver_version="570.86.15",
        cuda_version="12.8",
    )


def ac922() -> NodeTopology:
    """IBM AC922: NUMA nodes 0 and 8, two V100 bonded per socket, GPU memory as NUMA nodes 252 to 255."""
    places: list[Place] = [(8 * (i // 2), i, 0, i) for i in range(4)]
    plain = gpus("Tesla V100-SXM2-16GB", 16160, [0, 0, 8, 8], architecture="volta", pcie=GEN3)
    homes = ((0, 0), (0, 1), (8, 0), (8, 1), (8, 2), (8, 3))
    return NodeTopology(
        gpus=tuple(msgspec.structs.replace(gpu, memory_numa_node=255 - gpu.index) for gpu in plain),
        nvlink=bonded({(0, 1): 3, (2, 3): 3}, 50.0),
        pcie=matrix(places),
        nics=tuple(
            nic(f"mlx5_{i}", (node, f"nic{port}", 0, 0), places, rate=100) for i, (node, port) in enumerate(homes)
        ),
        numa_nodes=(
            NumaNode(id=0, cpus="0-63", memory_mib=257_000),
            NumaNode(id=8, cpus="64-127", memory_mib=257_000),
            *(NumaNode(id=node, cpus="") for node in range(252, 256)),
        ),
        machine="8335-GTH",
        driver_version="440.64.00",
        cuda_version="10.2",
    )


def mixed() -> NodeTopology:
    """Four cards of three products on one desktop CPU; two of them bridged."""
    places: list[Place] = [(0, 0, i, i) for i in range(4)]
    plain = gpus("NVIDIA GeForce RTX 3090", 24576, [0] * 4, architecture="ampere", pcie=GEN4)
    odd = (
        msgspec.structs.replace(plain[2], product="NVIDIA RTX A6000", memory_mib=49140),
        msgspec.structs.replace(
            plain[3],
            product="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            memory_mib=97887,
            architecture="blackwell",
            pcie=GEN5,
        ),
    )
    return NodeTopology(
        gpus=(*plain[:2], *odd),
        nvlink=bonded({(0, 1): 4}, 28.125),
        pcie=matrix(places),
        numa_nodes=(NumaNode(id=0, cpus="0-31", memory_mib=128_000),),
        machine="MS-7E07",
        driver_version="570.133.04",
        cuda_version="12.8",
    )


def a100_mig() -> NodeTopology:
    """DGX A100 of which GPU 0 is cut in seven, GPU 1 in three unequal parts, GPU 2 in none although MIG is on."""
    whole = dgx_a100()
    cuts: tuple[tuple[MigDevice, ...], ...] = (
        tuple(MigDevice(profile="1g.5gb", memory_mib=4864) for _ in range(7)),
        (
            MigDevice(profile="3g.20gb", memory_mib=19968),
            MigDevice(profile="2g.10gb", memory_mib=9856),
            MigDevice(profile="1g.5gb", memory_mib=4864),
        ),
        (),
    )
    mig = tuple(
        msgspec.structs.replace(gpu, mig_enabled=True, mig_devices=cut)
        for gpu, cut in zip(whole.gpus, cuts, strict=False)
    )
    rest = tuple(msgspec.structs.replace(gpu, mig_enabled=False) for gpu in whole.gpus[3:])
    return msgspec.structs.replace(whole, gpus=(*mig, *rest))


def cloud_vm() -> NodeTopology:
    """An 8-GPU virtual machine that hides its NVSwitches and its NUMA nodes."""
    places: list[Place] = [(None, 0, i, i) for i in range(8)]
    return NodeTopology(
        gpus=gpus("NVIDIA H100 80GB HBM3", 81559, [None] * 8, architecture="hopper"),
        nvlink=switched(range(8), 18, assumed=True),
        pcie=matrix(places),
        driver_version="550.90.07",
        cuda_version="12.4",
        problems=tuple(Problem(f"gpus.{i}.numaNode", ProblemKind.UNKNOWN, "the kernel says -1") for i in range(8)),
    )


def nvlink_unknown() -> NodeTopology:
    """A machine of which only PCIe is known: nobody could say what NVLinks there are."""
    made = hgx_h100()
    return msgspec.structs.replace(
        made,
        nvlink=None,
        problems=(Problem("nvlink", ProblemKind.UNKNOWN, "no source could tell which NVLinks are active"),),
    )


def wsl() -> NodeTopology:
    """A laptop's GPU under WSL: hardly anything is known."""
    return NodeTopology(
        gpus=(Gpu(index=0, product="NVIDIA GeForce RTX 4070 Laptop GPU", memory_mib=8188),),
        driver_version="566.36",
        cuda_version="12.7",
        problems=(Problem("nvlink", ProblemKind.UNKNOWN, "WSL does not tell"),),
    )


def no_gpu() -> NodeTopology:
    """A machine without any GPU."""
    return NodeTopology(numa_nodes=two_sockets(64, 257_000), machine="PowerEdge R650")


def nothing_known() -> NodeTopology:
    """The empty topology."""
    return NodeTopology()


MACHINES: dict[str, Callable[[], NodeTopology]] = {
    made.__name__: made
    for made in (
        dgx1, dgx1_link_down, dgx2, dgx_a100, hgx_h100, hgx_b200, b200_fallen_out, h100_weak_uplink, h100_lost_gpu,
        h100_partial, a100_mesh, a100_bridged, a100_bridged_across, v100_ring, a6000_pair_and_one, rtx4090, a40x10,
        gb200_tray, gh200, ac922, mixed, a100_mig, cloud_vm, nvlink_unknown, wsl, no_gpu, nothing_known,
    )
}  # fmt: skip
