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
a guess; the width is read. NCCL's socket transport (``src/transport/net_socket.cc``) also lists bridges, tunnels and
interfaces of containers, which are left out. ``name`` and ``speed`` of a ``<pci>`` are attributes of
``gputopo show -o nccl-xml``, which NCCL ignores.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.errors import ParseError
from agent.sources.kernel_list import format_mask
from agent.sources.xml_tree import Element, parse_xml
from gputopo.model import FactGroup, PcieDistance, Problem, ProblemKind


class NvlinkEnd(Enum):
    """The far end of an NVLink: NCCL's ``tclass``, a PCI class."""

    GPU = "0x03"
    NVSWITCH = "0x068000"  # also where the far end is not visible, as in NCCL
    CPU = "0x068001"  # IBM's NPU on POWER8 and POWER9
    UNKNOWN = ""  # no tclass, or another one


class NcclNvlink(msgspec.Struct, frozen=True):
    """The active NVLinks from a GPU to one device."""

    end: NvlinkEnd
    lanes: int
    bus_id: str | None  # of the far end; None: not visible (virtual machines, NVLink 5)


class PciLocation(msgspec.Struct, frozen=True):
    """The position of a device in the PCI tree."""

    numa_node: int | None  # None: unknown, NCCL writes -1
    # bus ids of the PCIe switches above it, from the root down; None: the source does not have the tree
    switches: tuple[str, ...] | None = ()


class NcclGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU."""

    dev: int | None  # NVML index; None in a file that stops at the PCI devices
    bus_id: str
    location: PciLocation
    compute_capability: tuple[int, int] | None = None
    nvlinks: tuple[NcclNvlink, ...] | None = None  # (): none; None: not in the file
    c2c_lanes: int | None = None  # links to the CPU of its superchip
    c2c_mbps: int | None = None  # MB/s of each, in one direction
    pcie_width: int | None = None  # lanes


class NcclNic(msgspec.Struct, frozen=True, kw_only=True):
    """A network device."""

    name: str | None  # "mlx5_0"; "mlx5_0+mlx5_1" where NCCL merged two; None: only a PCI device
    bus_id: str | None  # None: a virtual device without PCI device
    location: PciLocation
    speed_mbps: int | None = None  # Mbit/s


class NcclCpu(msgspec.Struct, frozen=True):
    """A NUMA node."""

    numa_node: int | None
    cpus: str | None = None  # cpulist; None where the affinity is missing or empty


class NcclTopology(msgspec.Struct, frozen=True):
    """One machine, from NCCL."""

    cpus: tuple[NcclCpu, ...]
    gpus: tuple[NcclGpu, ...]  # by dev, then by bus id
    nics: tuple[NcclNic, ...]  # in the order of the document
    problems: tuple[Problem, ...] = ()  # what is missing or contradictory
    uncertain: tuple[FactGroup, ...] = ()  # facts that depend on it, and are in the values above


def parse_nccl(text: str) -> NcclTopology:
    """Parse an NCCL topology document.

    Raises ``ParseError`` for any other text, a document without GPU, a document with several machines (multi-node
    NVLink), an element in the wrong place, and an attribute with a value that NCCL does not write.
    """
    system = parse_xml(text)
    if system.tag != "system" or system.attributes.get("version") != "1":
        raise ParseError(f'line {system.line}: not a <system version="1"> of an NCCL topology file')
    _check_nesting(system)
    hosts = {cpu.attributes["host_hash"] for cpu in system.all("cpu") if "host_hash" in cpu.attributes}
    if len(hosts) > 1:
        raise ParseError(
            f"this dump has {len(hosts)} machines of a multi-node NVLink domain; "
            f"keep only the <cpu> elements of one host_hash ({', '.join(sorted(hosts)[:8])})"
        )
    found = _NcclDevices()
    for cpu in system.all("cpu"):
        found.add_cpu(cpu)
    if not found.gpus:
        raise ParseError("no GPU in this NCCL topology: no <gpu>, and no <pci> of class 0x03, below a <cpu>")
    _check_cpus(found.cpus)
    return trusted_nvlinks(NcclTopology(tuple(found.cpus), _sort_gpus(found.gpus), tuple(found.nics)))


def nccl_distance(a: PciLocation, b: PciLocation) -> PcieDistance | None:
    """Return the PCIe distance of two devices; None where their NUMA node is unknown and they share no switch.

    NCCL leaves out root ports: within a NUMA node it cannot tell NODE from PHB and uses PHB for both, and so does this.
    """
    if a.switches and b.switches and a.switches[0] == b.switches[0]:
        return PcieDistance.PIX if a.switches == b.switches else PcieDistance.PXB
    if a.numa_node is None or b.numa_node is None:
        return None
    if a.switches is None and a.numa_node == b.numa_node:
        return None
    return PcieDistance.PHB if a.numa_node == b.numa_node else PcieDistance.SYS


class _NcclDevices:
    """The devices found in the PCI tree."""

    def __init__(self) -> None:
        self.cpus: list[NcclCpu] = []
        self.gpus: list[NcclGpu] = []
        self.nics: list[NcclNic] = []

    def add_cpu(self, cpu: Element) -> None:
        numa = _integer(cpu, "numaid", least=-1)
        location = PciLocation(None if numa == -1 else numa)
        self.cpus.append(NcclCpu(location.numa_node, _cpulist(cpu)))
        for device in cpu.all("pci"):
            self._add_pci(device, location)
        self._add_nets(cpu, None, location)  # location: of NICs that NCCL merged; others here are virtual

    def _add_pci(self, device: Element, location: PciLocation) -> None:
        bus_id = sysfs_bus_id(device.attributes.get("busid", ""))
        if bus_id is None:
            raise _attribute_error(device, "busid", "is not a PCI bus id like '0000:07:00.0'")
        pci_class = device.attributes.get("class", "")
        gpu = device.find("gpu")
        if pci_class and not _CLASS.fullmatch(pci_class):
            raise _attribute_error(device, "class", "is not a PCI class like '0x030200'")
        if not pci_class and not device.children:
            raise _attribute_error(device, "class", "leaves open whether the device is a GPU or a NIC")
        if gpu is not None and pci_class and not pci_class.startswith(NvlinkEnd.GPU.value):
            raise _attribute_error(device, "class", "is not a GPU's (0x03...), but the device has a <gpu>")
        if gpu is not None or pci_class.startswith(NvlinkEnd.GPU.value):
            self.gpus.append(_gpu(gpu, device, bus_id, location))
        elif device.find("nic") is not None:
            self._add_nets(device, bus_id, location)
        elif pci_class.startswith("0x02"):
            name, speed = device.attributes.get("name"), _speed(device)
            self.nics.append(NcclNic(name=name, bus_id=bus_id, location=location, speed_mbps=speed))
        below = PciLocation(location.numa_node, (*(location.switches or ()), bus_id))
        for child in device.all("pci"):
            self._add_pci(child, below)

    def _add_nets(self, above: Element, bus_id: str | None, location: PciLocation) -> None:
        nets = [net for nic in above.all("nic") for net in nic.all("net") if net.attributes.get("net") != "0"]
        for net in nets:  # net="0": a duplicate of the port for GPU-initiated networking
            speed = _speed(net)
            name = net.attributes.get("name")
            if _VIRTUAL_INTERFACE.match(name or ""):
                continue
            merged = bus_id is None and name is not None and "+" in name
            self.nics.append(
                NcclNic(
                    name=name,
                    bus_id=bus_id,
                    location=location if bus_id is not None or merged else PciLocation(None),
                    speed_mbps=speed,
                )
            )


def _speed(device: Element) -> int | None:
    """Return the speed of a network device in Mbit/s; None if NCCL does not know it."""
    speed = _integer(device, "speed", least=-1) if "speed" in device.attributes else -1
    return speed if speed > 0 else None


def _check_nesting(system: Element) -> None:
    """Raise ``ParseError`` for an element that is not below the element that NCCL writes it into."""
    pending = [system]
    while pending:
        above = pending.pop()
        for child in above.children:
            if above.tag not in _ABOVE.get(child.tag, (above.tag,)):
                raise ParseError(
                    f"line {child.line}: <{child.tag[:40]}> in <{above.tag[:40]}>: lines of this NCCL topology were "
                    "lost or moved"
                )
            pending.append(child)


def _check_cpus(cpus: list[NcclCpu]) -> None:
    """Raise ``ParseError`` where two <cpu> are the same NUMA node."""
    nodes = [cpu.numa_node for cpu in cpus if cpu.numa_node is not None]
    twice = [node for node in nodes if nodes.count(node) > 1]
    if twice:
        raise ParseError(f'two <cpu> of this NCCL topology have numaid="{twice[0]}": the file was damaged or edited')


def _gpu(gpu: Element | None, device: Element, bus_id: str, location: PciLocation) -> NcclGpu:
    """A GPU. NCCL writes one <gpu> for each rank that shares it and counts the links of the first."""
    lanes = device.attributes.get("link_width", "")
    width = int(lanes) if _LANES.fullmatch(lanes) else None
    if len({each.attributes.get("dev") for each in device.all("gpu")}) > 1:
        raise ParseError(f"line {device.line}: two <gpu> with different dev in one <pci>: lines were lost or moved")
    if gpu is None:
        return NcclGpu(dev=None, bus_id=bus_id, location=location, pcie_width=width)
    sm = _integer(gpu, "sm", least=10) if "sm" in gpu.attributes else None
    c2c = gpu.find("c2c")
    return NcclGpu(
        dev=_integer(gpu, "dev", least=0) if "dev" in gpu.attributes else None,
        bus_id=bus_id,
        location=location,
        compute_capability=None if sm is None else divmod(sm, 10),
        nvlinks=tuple(_nvlink(link) for link in gpu.all("nvlink")),
        c2c_lanes=None if c2c is None else _integer(c2c, "count", least=1),
        c2c_mbps=_integer(c2c, "bw", least=1) if c2c is not None and "bw" in c2c.attributes else None,
        pcie_width=width,
    )


def _nvlink(link: Element) -> NcclNvlink:
    target_class = link.attributes.get("tclass", "")
    ends = (end for end in NvlinkEnd if end is not NvlinkEnd.UNKNOWN and target_class.startswith(end.value))
    bus_id = sysfs_bus_id(link.attributes.get("target", ""))
    return NcclNvlink(next(ends, NvlinkEnd.UNKNOWN), _integer(link, "count", least=1), bus_id)


def _sort_gpus(gpus: list[NcclGpu]) -> tuple[NcclGpu, ...]:
    devs = [gpu.dev for gpu in gpus if gpu.dev is not None]
    buses = [gpu.bus_id for gpu in gpus]
    for name, values in (("dev", devs), ("busid", buses)):
        if len(set(values)) != len(values):
            raise ParseError(f"two GPUs of this NCCL topology have the same {name}: {values}")
    return tuple(sorted(gpus, key=lambda gpu: (gpu.dev is None, gpu.dev, gpu.bus_id)))


def trusted_nvlinks(topology: NcclTopology) -> NcclTopology:
    """Return the topology without NVLinks that contradict each other, with a problem for each contradiction.

    Links of one GPU to itself cannot be. Both ends of a link between GPUs are in a dump, with the same count. A dump
    has one <nvlink> per far end, and as many links to NVSwitches for each GPU of a kind; else they are uncertain.
    """
    distrusted = _contradictory_nvlinks(topology.gpus)
    problems = [
        Problem(f"nccl {bus_id}", ProblemKind.CONFLICT, f"its NVLinks {why}: they are not used")
        for bus_id, why in distrusted.items()
    ]
    kept = tuple(
        msgspec.structs.replace(gpu, nvlinks=None) if gpu.bus_id in distrusted else gpu for gpu in topology.gpus
    )
    to_switch: dict[tuple[int, int] | None, set[int]] = {}
    for gpu in kept:
        if lanes := sum(link.lanes for link in gpu.nvlinks or () if link.end is NvlinkEnd.NVSWITCH):
            to_switch.setdefault(gpu.compute_capability, set()).add(lanes)
    uneven = [f"{min(lanes)} and {max(lanes)}" for lanes in to_switch.values() if len(lanes) > 1]
    problems += [
        Problem(
            "nvlink", ProblemKind.CONFLICT, f"GPUs of a kind have {lanes} NVLinks to NVSwitches: degraded or damaged"
        )
        for lanes in uneven
    ]
    return msgspec.structs.replace(
        topology,
        gpus=kept,
        problems=(*topology.problems, *problems),
        uncertain=(*topology.uncertain, *([FactGroup.NVLINK] if problems else [])),
    )


def _contradictory_nvlinks(gpus: tuple[NcclGpu, ...]) -> dict[str, str]:
    """Return why the NVLinks of a GPU cannot be, by bus id."""
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    lanes: dict[tuple[str, str], int] = {}
    found: dict[str, str] = {}
    for gpu in gpus:
        ends = [(link.end, link.bus_id) for link in gpu.nvlinks or ()]
        if len(set(ends)) < len(ends):
            found[gpu.bus_id] = "lead to the same device twice"
        if (NvlinkEnd.GPU, None) in ends:
            found[gpu.bus_id] = "lead to a GPU without an address"
        for link in gpu.nvlinks or ():
            if link.bus_id in by_bus_id:
                lanes[gpu.bus_id, link.bus_id] = link.lanes
    for (here, there), count in lanes.items():
        if here == there:
            found[here] = "lead to the GPU itself"
        elif by_bus_id[there].nvlinks is not None and lanes.get((there, here), 0) != count:
            why = f"number {count} from {here} to {there}, and {lanes.get((there, here), 0)} back"
            found.setdefault(here, why)
            found.setdefault(there, why)
    switched = {
        gpu.compute_capability
        for gpu in gpus
        if any(link.end is NvlinkEnd.NVSWITCH or link.bus_id is None for link in gpu.nvlinks or ())
    }
    for gpu in gpus:
        if gpu.nvlinks == () and gpu.compute_capability in switched:
            found.setdefault(gpu.bus_id, "are missing, though GPUs of its kind are on an NVSwitch")
    return found


def _cpulist(cpu: Element) -> str | None:
    """The CPUs of an affinity mask in words of 32 bits, highest word first: "00ffffff,00000000,00ffffff"."""
    words = cpu.attributes.get("affinity", "0").split(",")
    if len(words) > _MAX_WORDS or not all(_WORD.fullmatch(word) for word in words):
        raise _attribute_error(cpu, "affinity", "is not a CPU mask like '00000000,00ffffff'")
    return format_mask(int("".join(f"{int(word, 16):08x}" for word in words), 16))


def _integer(element: Element, name: str, least: int) -> int:
    """Return an attribute as a number, decimal or hexadecimal: NCCL parses it with ``strtol(.., 0)``."""
    text = element.attributes.get(name, "")
    if _INTEGER.fullmatch(text) is None or (value := int(text, 16 if "x" in text else 10)) < least:
        raise _attribute_error(element, name, f"is not a number of at least {least}")
    return value


def _attribute_error(element: Element, name: str, why: str) -> ParseError:
    value = element.attributes.get(name)
    return ParseError(f"line {element.line}: {name}={value and value[:80]!r} of <{element.tag}> {why}")


_INTEGER = re.compile(r"-?[0-9]{1,9}|0x[0-9a-fA-F]{1,8}")
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}")
_CLASS = re.compile(r"0x[0-9a-fA-F]{2,8}")
_LANES = re.compile(r"[1-9][0-9]?")
# Kernel names of bridges, VLANs, tunnels and the container ends of network plugins. A bond or team is physical ports.
_VIRTUAL_INTERFACE = re.compile(
    r"(?:lo|br-.*|br[0-9]+|docker.*|veth.*|virbr.*|vnet.*|tap.*|tun.*|cali.*|cilium.*|lxc.*|cni.*|flannel.*|kube-.*"
    r"|nodelocaldns|vxlan.*|genev.*|ovs-.*|dummy.*|podman.*|wg[0-9]+|weave.*|antrea-.*|tailscale.*|vlan[0-9]+|.*\.[0-9]+)$"
)
_ABOVE = {  # tag -> the tags that it may be directly below
    "cpu": ("system",),
    "pci": ("cpu", "pci"),
    "gpu": ("pci",),
    "nic": ("cpu", "pci"),
    "net": ("nic",),
    "nvlink": ("gpu",),
    "c2c": ("gpu",),
}
_MAX_WORDS = 512  # 16384 CPUs
