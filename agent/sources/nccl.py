"""NCCL's topology XML: what ``NCCL_TOPO_DUMP_FILE`` writes and ``NCCL_TOPO_FILE`` reads.

    <system version="1">
      <cpu numaid="0" affinity="00ffffff,00000000,00ffffff" ...>
        <pci busid="0000:16:00.0" class="0x060400" ...>                        a PCIe switch
          <pci busid="0000:18:00.0" class="0x030200" ...>
            <gpu dev="0" sm="90" rank="0" gdr="1">
              <nvlink target="0000:07:00.0" count="5" tclass="0x068000"/>      5 links to an NVSwitch
          <pci busid="0000:19:00.0" class="0x020000" ...>
            <nic> <net name="mlx5_0" dev="0" speed="400000" .../>

Written by ``src/graph/xml.cc``, read by ``src/graph/topo.cc`` of NCCL. A dump holds the GPUs of one communicator only,
and a hand-written file may stop at the PCI devices. PCIe speeds are left out: by version they are current, maximal, or
a guess.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.kernel_list import from_mask
from agent.sources.smi.errors import ParseError
from agent.sources.xml_tree import Element, parse_xml
from gputopo.model import PcieDistance


class NvlinkEnd(Enum):
    """What is at the far end of an NVLink: NCCL's ``tclass``, a PCI class."""

    GPU = "0x03"
    NVSWITCH = "0x068000"  # also where the far end is not visible: NCCL takes it for an NVSwitch then
    CPU = "0x068001"  # IBM's NPU on POWER8 and POWER9
    UNKNOWN = ""


class NcclNvlink(msgspec.Struct, frozen=True):
    """The active NVLinks of a GPU that lead to one device."""

    end: NvlinkEnd
    lanes: int
    bus_id: str | None  # of the far end; None: not visible (virtual machines, NVLink 5)


class Place(msgspec.Struct, frozen=True):
    """Where a device hangs."""

    numa_node: int | None  # None: NCCL says -1, it did not know
    # Bus ids of the PCIe switches above it, from the root down; None: the source does not show the tree
    switches: tuple[str, ...] | None = ()


class NcclGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU."""

    dev: int | None  # NVML index; None in a file that stops at the PCI devices
    bus_id: str
    place: Place
    compute_capability: tuple[int, int] | None = None
    nvlinks: tuple[NcclNvlink, ...] | None = None  # (): NCCL saw none; None: nobody looked
    c2c_lanes: int | None = None  # links to its Grace CPU


class NcclNic(msgspec.Struct, frozen=True, kw_only=True):
    """A network device."""

    name: str | None  # "mlx5_0"; "mlx5_0+mlx5_1" where NCCL merged two; None: a PCI device and no more
    bus_id: str | None  # None: a virtual device, below no PCI device
    place: Place
    speed_mbps: int | None = None  # Mbit/s


class NcclCpu(msgspec.Struct, frozen=True):
    """A NUMA node."""

    numa_node: int | None
    cpus: str | None = None  # cpulist; None where the affinity is missing or empty


class NcclTopology(msgspec.Struct, frozen=True):
    """One machine, as NCCL sees it."""

    cpus: tuple[NcclCpu, ...]
    gpus: tuple[NcclGpu, ...]  # by dev, then by bus id
    nics: tuple[NcclNic, ...]  # in the order of the document


def parse_nccl(text: str) -> NcclTopology:
    """An NCCL topology document.

    Raises ``ParseError`` for anything else, a document without a GPU, one that holds several machines (multi-node
    NVLink), and an attribute that cannot be what NCCL writes there.
    """
    system = parse_xml(text)
    if system.tag != "system" or system.attributes.get("version") != "1":
        raise ParseError(f'line {system.line}: not the <system version="1"> of an NCCL topology file')
    hosts = {cpu.attributes["host_hash"] for cpu in system.all("cpu") if "host_hash" in cpu.attributes}
    if len(hosts) > 1:
        raise ParseError(
            f"this dump joins {len(hosts)} machines of a multi-node NVLink domain; "
            f"keep the <cpu> elements of one host_hash ({', '.join(sorted(hosts)[:8])})"
        )
    found = _Found()
    for cpu in system.all("cpu"):
        found.add_cpu(cpu)
    if not found.gpus:
        raise ParseError("no GPU in this NCCL topology: no <gpu>, and no <pci> of class 0x03, below a <cpu>")
    return NcclTopology(tuple(found.cpus), _ordered(found.gpus), tuple(found.nics))


def distance(a: Place, b: Place) -> PcieDistance | None:
    """The PCIe distance of two devices; None where NCCL did not know their NUMA node and no switch joins them.

    NCCL leaves out root ports: within a NUMA node it cannot tell NODE from PHB, and says PHB for both, as this does.
    """
    if a.switches and b.switches and a.switches[0] == b.switches[0]:
        return PcieDistance.PIX if a.switches == b.switches else PcieDistance.PXB
    if a.numa_node is None or b.numa_node is None:
        return None
    if a.switches is None and a.numa_node == b.numa_node:
        return None
    return PcieDistance.PHB if a.numa_node == b.numa_node else PcieDistance.SYS


class _Found:
    """Collects the devices on a walk through the PCI tree."""

    def __init__(self) -> None:
        self.cpus: list[NcclCpu] = []
        self.gpus: list[NcclGpu] = []
        self.nics: list[NcclNic] = []

    def add_cpu(self, cpu: Element) -> None:
        numa = _integer(cpu, "numaid", least=-1)
        place = Place(None if numa == -1 else numa)
        self.cpus.append(NcclCpu(place.numa_node, _cpulist(cpu)))
        for device in cpu.all("pci"):
            self._add_pci(device, place)
        self._add_nets(cpu, None, place)

    def _add_pci(self, device: Element, place: Place) -> None:
        bus_id = sysfs_bus_id(device.attributes.get("busid", ""))
        if bus_id is None:
            raise _wrong(device, "busid", "is no PCI bus id like '0000:07:00.0'")
        pci_class = device.attributes.get("class", "")
        gpu = device.find("gpu")
        if gpu is not None or pci_class.startswith(NvlinkEnd.GPU.value):
            self.gpus.append(_gpu(gpu, bus_id, place))
        elif device.find("nic") is not None:
            self._add_nets(device, bus_id, place)
        elif pci_class.startswith("0x02"):
            self.nics.append(NcclNic(name=None, bus_id=bus_id, place=place))
        below = Place(place.numa_node, (*(place.switches or ()), bus_id))
        for child in device.all("pci"):
            self._add_pci(child, below)

    def _add_nets(self, above: Element, bus_id: str | None, place: Place) -> None:
        nets = [net for nic in above.all("nic") for net in nic.all("net") if net.attributes.get("net") != "0"]
        for net in nets:  # net="0": the same port once more, for GPU-initiated networking only
            speed = _integer(net, "speed", least=-1) if "speed" in net.attributes else -1
            name = net.attributes.get("name")
            self.nics.append(NcclNic(name=name, bus_id=bus_id, place=place, speed_mbps=speed if speed > 0 else None))


def _gpu(gpu: Element | None, bus_id: str, place: Place) -> NcclGpu:
    """Several ranks can share a GPU: NCCL writes one <gpu> for each and counts the links of the first."""
    if gpu is None:
        return NcclGpu(dev=None, bus_id=bus_id, place=place)
    sm = _integer(gpu, "sm", least=10) if "sm" in gpu.attributes else None
    c2c = gpu.find("c2c")
    return NcclGpu(
        dev=_integer(gpu, "dev", least=0) if "dev" in gpu.attributes else None,
        bus_id=bus_id,
        place=place,
        compute_capability=None if sm is None else divmod(sm, 10),
        nvlinks=tuple(_nvlink(link) for link in gpu.all("nvlink")),
        c2c_lanes=None if c2c is None else _integer(c2c, "count", least=1),
    )


def _nvlink(link: Element) -> NcclNvlink:
    target_class = link.attributes.get("tclass", "")
    ends = (end for end in NvlinkEnd if end is not NvlinkEnd.UNKNOWN and target_class.startswith(end.value))
    bus_id = sysfs_bus_id(link.attributes.get("target", ""))
    return NcclNvlink(next(ends, NvlinkEnd.UNKNOWN), _integer(link, "count", least=1), bus_id)


def _ordered(gpus: list[NcclGpu]) -> tuple[NcclGpu, ...]:
    devs = [gpu.dev for gpu in gpus if gpu.dev is not None]
    buses = [gpu.bus_id for gpu in gpus]
    for name, values in (("dev", devs), ("busid", buses)):
        if len(set(values)) != len(values):
            raise ParseError(f"two GPUs of this NCCL topology have the same {name}: {values}")
    return tuple(sorted(gpus, key=lambda gpu: (gpu.dev is None, gpu.dev, gpu.bus_id)))


def _cpulist(cpu: Element) -> str | None:
    """The CPUs of an affinity, which is a mask in words of 32 bits, the highest first: "00ffffff,00000000,00ffffff"."""
    words = cpu.attributes.get("affinity", "0").split(",")
    if len(words) > _MAX_WORDS or not all(_WORD.fullmatch(word) for word in words):
        raise _wrong(cpu, "affinity", "is no CPU mask like '00000000,00ffffff'")
    return from_mask(int("".join(f"{int(word, 16):08x}" for word in words), 16))


def _integer(element: Element, name: str, least: int) -> int:
    """An attribute as a number, decimal or hexadecimal: NCCL reads them with ``strtol(.., 0)``."""
    text = element.attributes.get(name, "")
    if _INTEGER.fullmatch(text) is None or (value := int(text, 16 if "x" in text else 10)) < least:
        raise _wrong(element, name, f"is no number from {least} upwards")
    return value


def _wrong(element: Element, name: str, why: str) -> ParseError:
    value = element.attributes.get(name)
    return ParseError(f"line {element.line}: {name}={value and value[:80]!r} of <{element.tag}> {why}")


_INTEGER = re.compile(r"-?[0-9]{1,9}|0x[0-9a-fA-F]{1,8}")
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}")
_MAX_WORDS = 512  # 16384 CPUs
