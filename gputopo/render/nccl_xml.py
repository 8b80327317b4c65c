"""A topology as NCCL's topology XML, for ``NCCL_TOPO_FILE``: useful if a virtual machine hides the real topology.

NCCL reads the file, detects this process's GPU and its NICs, and adds what is missing in the file (src/graph/xml.cc).
So unknown facts are left out: the CPU's ``arch``, ``vendor``, ``familyid`` and ``modelid``; ``rank`` and ``gdr`` of
a GPU; the ``<nic>`` below a network device (a file that names one keeps NCCL from completing the CPU above it; its
name and speed are attributes of the ``<pci>`` that NCCL ignores). NICs and GPUs are found by bus id: a NIC without one
is left out, a GPU without one makes the whole file useless.

Three things are conventions rather than facts. A PCIe switch gets a made-up bus id (``ffff:ff:01.0``, as in the files
that cloud providers ship) and the widest link found below it. An NVSwitch is ``fffffff:ffff:ff``, which is what NCCL
itself calls one that it cannot see, and it knows one per machine. A GPU without ``<gpu>`` has unknown NVLinks.

NCCL's own parser is not an XML parser: it knows no declaration, no entities, no tabs. What is written here needs none.

    NcclXmlError(RenderError)   NCCL could not use the file; the message contains the missing facts
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from gputopo.model import Pcie
from gputopo.render import RenderError
from gputopo.render.places import numa_places, same_bridge

if TYPE_CHECKING:
    from gputopo.model import C2c, Gpu, Nic, NodeTopology, Nvlink
    from gputopo.render.places import DeviceGroup, NumaPlace

_GPU_CLASS = "0x03"  # NCCL: any display controller
_NIC_CLASS = "0x02"
_BRIDGE_CLASS = "0x060400"
_NVSWITCH_CLASS = "0x068000"
_HIDDEN_NVSWITCH = "fffffff:ffff:ff"
# NCCL's speeds by PCIe generation (kvDictPciGen in src/graph/topo.cc).
_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_MAX_RATE_GBPS = 900_000  # readers take nine digits of Mbit/s
_MAX_CPUS = 896  # 28 words of a mask fit into the 254 characters that NCCL keeps of a value

Line = tuple[int, str]  # depth, text


class NcclXmlError(RenderError):
    """NCCL could not use a file made from this topology."""


def render_nccl_xml(topology: NodeTopology) -> str:
    """Return the file. Raises ``NcclXmlError``: no usable GPU, no bus ids, or several NVSwitch fabrics."""
    _check(topology)
    numas: dict[int, list[NumaPlace]] = {}
    for place in numa_places(topology):
        one_node = place.numa is not None and re.fullmatch(r"[0-9]{1,6}", place.numa)
        numas.setdefault(int(place.numa or "") if one_node else -1, []).append(place)  # -1: unknown to NCCL
    bridges = _Bridges()
    lines: list[Line] = [(0, '<system version="1">')]
    for numa, some in numas.items():
        below = [line for place in some for group in place.groups for line in _group(topology, group, bridges)]
        if below:
            lines += [(1, f"<cpu {_cpu(numa, some[0])}>"), *((depth + 2, text) for depth, text in below), (1, "</cpu>")]
    lines.append((0, "</system>"))
    return "".join(f"{'  ' * depth}{text}\n" for depth, text in lines)


def _check(topology: NodeTopology) -> None:
    if not topology.usable:
        raise NcclXmlError("NCCL topology XML describes GPUs, and there is none here that can be used")
    nameless = [gpu.index for gpu in topology.usable if gpu.bus_id is None]
    if nameless:
        raise NcclXmlError(
            f"NCCL finds GPUs by their PCI bus id, and that of GPU {', '.join(map(str, nameless))} is not known; "
            "record the machine itself (gputopo record), because nvidia-smi topo -m prints none"
        )
    if topology.nvlink is not None and len(_shared_fabrics(topology.nvlink)) > 1:
        raise NcclXmlError("NCCL topology XML knows one NVSwitch fabric per machine, and this machine has several")


def _shared_fabrics(nvlink: Nvlink) -> set[int]:
    """Fabrics that join GPUs. One with a single GPU joins nothing: a GPU that fell out of the others' fabric."""
    attached = Counter(up.fabric for up in nvlink.uplinks if up.lanes)
    return {fabric for fabric, gpus in attached.items() if gpus > 1}


class _Bridges:
    """Made-up bus ids for PCIe switches, each new."""

    def __init__(self) -> None:
        self._made = 0

    def next(self) -> str:
        self._made += 1
        return f"ffff:ff:{self._made:02x}.0"


def _cpu(numa: int, place: NumaPlace) -> str:
    cpus = None if place.node is None else place.node.cpus
    mask = None if cpus is None else cpu_mask(cpus)
    return f'numaid="{numa}"' + ("" if mask is None else f' affinity="{mask}"')


def cpu_mask(cpulist: str) -> str | None:
    """Return ``0-7,32`` as words of 32 bits, highest first: ``00000001,000000ff``. None if invalid or too long."""
    if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", cpulist):
        return None
    bits = 0
    for run in cpulist.split(","):
        first, _, last = run.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            bits |= 1 << cpu
    words = -(-bits.bit_length() // 32)
    if not bits or words * 32 > _MAX_CPUS:
        return None
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def _group(topology: NodeTopology, group: DeviceGroup, bridges: _Bridges) -> list[Line]:
    """Return the devices of a PCIe switch below it; parts that share no bridge get a bridge each."""
    if not group.switched:
        return _devices(topology, group)
    parts = same_bridge(topology, group)
    if len(parts) == 1:
        return _behind(bridges, group, _devices(topology, group))
    common = bridges.next()
    below = [line for part in parts for line in _behind(bridges, part, _devices(topology, part))]
    return _behind(bridges, group, below, common)


def _behind(bridges: _Bridges, group: DeviceGroup, devices: list[Line], bus_id: str | None = None) -> list[Line]:
    if not devices:
        return []
    known = [gpu.pcie for gpu in group.gpus if gpu.pcie.max_generation in _SPEEDS and gpu.pcie.max_width]
    widest = max(known, key=lambda link: (link.max_generation or 0) * (link.max_width or 0), default=Pcie())
    opening = f'<pci busid="{bus_id or bridges.next()}" class="{_BRIDGE_CLASS}"{_link(widest)}>'
    return [(0, opening), *((depth + 1, text) for depth, text in devices), (0, "</pci>")]


def _link(pcie: Pcie) -> str:
    """Return the attributes of a PCIe link at its maximum; "" if unknown, so that NCCL detects them."""
    if pcie.max_generation not in _SPEEDS or not pcie.max_width:
        return ""
    return f' link_speed="{_SPEEDS[pcie.max_generation]} GT/s PCIe" link_width="{pcie.max_width}"'


def _devices(topology: NodeTopology, group: DeviceGroup) -> list[Line]:
    gpus = [line for gpu in group.gpus if gpu.usable for line in _gpu(topology, gpu)]
    nics = [
        (0, f'<pci busid="{nic.bus_id}" class="{_NIC_CLASS}"{_name(nic)}{_speed(nic)}/>')
        for nic in group.nics
        if nic.bus_id
    ]
    return gpus + nics


def _name(nic: Nic) -> str:
    """Return the name as an attribute; a bus id does not count. NCCL's parser knows no entities."""
    usable = nic.name != nic.bus_id and re.fullmatch(r"[\w.:+-]{1,64}", nic.name, re.ASCII)
    return f' name="{nic.name}"' if usable else ""


def _speed(nic: Nic) -> str:
    """Return the rate as NCCL writes it, in Mbit/s; "" while it is unknown."""
    return f' speed="{nic.rate_gbps * 1000}"' if nic.rate_gbps and nic.rate_gbps <= _MAX_RATE_GBPS else ""


def _gpu(topology: NodeTopology, gpu: Gpu) -> list[Line]:
    pci = f'<pci busid="{gpu.bus_id}" class="{_GPU_CLASS}"{_link(gpu.pcie)}'
    if topology.nvlink is None:
        return [(0, f"{pci}/>")]
    sm = "" if gpu.compute_capability is None else ' sm="{}{}"'.format(*gpu.compute_capability)
    attributes = f'dev="{gpu.index}"{sm}'
    links = [] if gpu.mig_enabled is True else _nvlinks(topology, topology.nvlink, gpu)
    links += [] if gpu.c2c is None else _c2c(gpu.c2c)
    inner = [(1, f"<gpu {attributes}>"), *((2, link) for link in links), (1, "</gpu>")]
    return [(0, f"{pci}>"), *(inner if links else [(1, f"<gpu {attributes}/>")]), (0, "</pci>")]


def _c2c(c2c: C2c) -> list[str]:
    """Return the links to the CPU, with the rate of one (MB/s, one direction): NCCL needs both, or detects both."""
    if c2c.gbps is None or not c2c.lanes:
        return []
    return [f'<c2c bw="{round(c2c.gbps * 1000 / 2 / c2c.lanes)}" count="{c2c.lanes}"/>']


def _nvlinks(topology: NodeTopology, nvlink: Nvlink, gpu: Gpu) -> list[str]:
    """Return a GPU's active NVLinks to GPUs that can use NVLink, and into the fabric."""
    shared = _shared_fabrics(nvlink)
    peers = {far.index: far.bus_id for far in topology.gpus if far.index in topology.joinable}
    links = [
        f'<nvlink target="{peers[link.a + link.b - gpu.index]}" count="{link.lanes}" tclass="{_GPU_CLASS}"/>'
        for link in nvlink.links
        if link.lanes and gpu.index in (link.a, link.b) and link.a + link.b - gpu.index in peers
    ]
    return links + [
        f'<nvlink target="{_HIDDEN_NVSWITCH}" count="{up.lanes}" tclass="{_NVSWITCH_CLASS}"/>'
        for up in nvlink.uplinks
        if up.gpu == gpu.index and up.lanes and up.fabric in shared
    ]
