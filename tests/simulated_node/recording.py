"""A simulated machine as the agent's sources would record it: NVML's facts and the files of sysfs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from agent.snapshot import Host, Nvml, NvmlGpu, NvmlLink, NvmlPair, Snapshot, Sysfs
from gputopo.model import Gpu, NodeTopology, Nvlink, PcieDistance

# nvmlGpuTopologyLevel_t
ANCESTORS = {
    PcieDistance.PIX: 10,
    PcieDistance.PXB: 20,
    PcieDistance.PHB: 30,
    PcieDistance.NODE: 40,
    PcieDistance.SYS: 50,
}
P2P_OK, P2P_NOT_SUPPORTED = 0, 5  # nvmlGpuP2PStatus_t
GET_HANDLE = "nvmlDeviceGetHandleByIndex_v2"
GPU_IS_LOST = "GPU_IS_LOST"
MIB = 2**20


def snapshot(topology: NodeTopology, host: str) -> Snapshot:
    """Return the snapshot that a recording on the machine would produce now."""
    usable = topology.usable
    nvml = Nvml(
        driver_version=topology.driver_version,
        cuda_version=_cuda_number(topology.cuda_version),
        device_count=len(topology.gpus),
        gpus=tuple(_gpu(topology, gpu) for gpu in topology.gpus),
        pairs=tuple(_pair(topology, a.index, b.index) for a, b in combinations(usable, 2)),
    )
    return Snapshot(
        recorder="simulated",
        host=Host(name=host, boot_id=topology.boot_id),
        nvml=nvml,
        sysfs=_sysfs(topology),
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file whole: a reader sees the one before or this one, never a part."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def _gpu(topology: NodeTopology, gpu: Gpu) -> NvmlGpu:
    if not gpu.usable:
        return NvmlGpu(index=gpu.index, errors={GET_HANDLE: GPU_IS_LOST})
    return NvmlGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        bus_id=None if gpu.bus_id is None else _nvml_bus_id(gpu.bus_id),
        minor=gpu.minor,
        name=gpu.product,
        compute_capability=gpu.compute_capability,
        memory_bytes=None if gpu.memory_mib is None else gpu.memory_mib * MIB,
        cpu_affinity=gpu.cpu_affinity,
        memory_affinity=gpu.numa_affinity,
        pcie_generation=gpu.pcie.generation,
        pcie_width=gpu.pcie.width,
        pcie_max_generation=gpu.pcie.max_generation,
        pcie_max_width=gpu.pcie.max_width,
        mig_mode=None if gpu.mig_enabled is None else int(gpu.mig_enabled),
        nvlinks=tuple(_ports(topology, gpu)),
    )


def _ports(topology: NodeTopology, gpu: Gpu) -> Iterator[NvmlLink]:
    """The ports of a GPU: those of its links by the peer's index, or those into the fabric; dead ones are inactive."""
    if topology.nvlink is None:
        return
    number = 0
    for link in topology.nvlink.links:
        if gpu.index in {link.a, link.b}:
            peer = topology.get_gpu(link.a + link.b - gpu.index)
            bus_id = None if peer.bus_id is None else _nvml_bus_id(peer.bus_id)
            for port in range(link.expected_lanes or link.lanes):
                yield _port(number, link.gbps, link.lanes, port, ("gpu", bus_id))
                number += 1
    for uplink in topology.nvlink.uplinks:
        if uplink.gpu == gpu.index:
            for port in range(uplink.expected_lanes or uplink.lanes):
                switch = f"00000000:{0xC0 + uplink.fabric:02X}:00.0"
                yield _port(number, uplink.gbps, uplink.lanes, port, ("switch", switch))
                number += 1


def _port(number: int, gbps: float | None, lanes: int, port: int, remote: tuple[str, str | None]) -> NvmlLink:
    """Port ``port`` of a bundle of which the first ``lanes`` work."""
    if port >= lanes:
        return NvmlLink(link=number, active=False)
    speed = None if gbps is None else round(gbps / lanes / 2 * 1000)  # NVML: MB/s, one direction
    kind, bus_id = remote
    return NvmlLink(link=number, active=True, remote_type=kind, remote_bus_id=bus_id, speed_mbps=speed)


def _pair(topology: NodeTopology, a: int, b: int) -> NvmlPair:
    distance = topology.distance(a, b)
    ancestor = None if distance is None else ANCESTORS[distance]
    joined = topology.nvlink is not None and _joined(topology.nvlink, a, b)
    return NvmlPair(a=a, b=b, ancestor=ancestor, p2p_nvlink=P2P_OK if joined else P2P_NOT_SUPPORTED)


def _joined(nvlink: Nvlink, a: int, b: int) -> bool:
    """Return whether two GPUs reach each other over NVLink: by a direct link, or through one fabric."""
    fabrics = [[up.fabric for up in nvlink.uplinks if up.gpu == gpu and up.lanes] for gpu in (a, b)]
    return any((link.a, link.b) == (a, b) and link.lanes for link in nvlink.links) or (
        fabrics[0] != [] and fabrics[0] == fabrics[1]
    )


def _sysfs(topology: NodeTopology) -> Sysfs:
    files = {}
    for gpu in topology.gpus:
        device = f"bus/pci/devices/{gpu.bus_id}"
        files[f"{device}/numa_node"] = f"{-1 if gpu.numa_node is None else gpu.numa_node}\n"
        if gpu.cpu_affinity is not None:
            files[f"{device}/local_cpulist"] = f"{gpu.cpu_affinity}\n"
    for node in topology.numa_nodes:
        files[f"devices/system/node/node{node.id}/cpulist"] = f"{node.cpus or ''}\n"
    links = {}
    for place, nic in enumerate(topology.nics):  # each on the PCIe switch of the GPU of its number
        for bus_id in (nic.bus_id, topology.gpus[place].bus_id):
            links[f"bus/pci/devices/{bus_id}"] = f"devices/pci0000:{place // 2:02x}/0000:{place // 2:02x}:01.0/{bus_id}"
        card = f"bus/pci/devices/{topology.gpus[place].bus_id}"
        files |= {f"{card}/class": "0x030200\n", f"{card}/vendor": "0x10de\n"}
        files[f"bus/pci/devices/{nic.bus_id}/numa_node"] = f"{-1 if nic.numa_node is None else nic.numa_node}\n"
        files[f"class/infiniband/{nic.name}/ports/1/state"] = "1: DOWN\n" if nic.rate_gbps is None else "4: ACTIVE\n"
        files[f"class/infiniband/{nic.name}/ports/1/rate"] = f"{nic.rate_gbps or 10} Gb/sec (4X NDR)\n"
        links[f"class/infiniband/{nic.name}/device"] = f"devices/{nic.bus_id}"
    return Sysfs(files=files, links=links)


def _nvml_bus_id(bus_id: str) -> str:
    """NVML writes eight digits for the domain, in capitals: "0000:0a:00.0" is "00000000:0A:00.0"."""
    domain, rest = bus_id.split(":", 1)
    return f"{domain:0>8}:{rest}".upper()


def _cuda_number(version: str | None) -> int | None:
    """The version that NVML writes as a number: "13.0" is 13000."""
    if version is None:
        return None
    major, minor = version.split(".")
    return int(major) * 1000 + int(minor) * 10
