"""hwloc's XML (``lstopo machine.xml``): GPUs, their NUMA node, and NVLink bandwidths.

    <topology version="3.0">
      <object type="Machine" ...>
        <object type="Package" cpuset="0x00ffffff" nodeset="0x00000001" ...>
          <object type="NUMANode" os_index="0" nodeset="0x00000001" .../>
          <object type="Bridge" bridge_type="0-1" ...>                                  a PCIe host bridge
            <object type="PCIDev" pci_busid="0000:34:00.0" pci_type="0302 [10de:1db8] ...">
              <object type="OSDev" gp_index="802" name="nvml0"> <info name="GPUModel" value="..."/>
      <distances2hetero nbobjs="28" name="NVLinkBandwidth">                             from row to column
        <indexes>OSDev:802 ... PCIDev:449 ... Package:3</indexes> <u64values>...</u64values>

Bandwidths are MB/s, one direction. Formats: hwloc 1 (without ``version``; NUMA nodes contain packages), 2 and 3. Serial
numbers and host names in the file are not read. PCIe distances are left out: which bridges the file has depends on
lstopo's filters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.errors import ParseError
from agent.sources.nccl import NvlinkEnd
from agent.sources.xml_tree import Element, parse_xml
from gputopo.model import Problem, ProblemKind

if TYPE_CHECKING:
    from collections.abc import Iterator


class LstopoGpu(msgspec.Struct, frozen=True, kw_only=True):
    """An NVIDIA GPU."""

    index: int | None  # N of hwloc's "nvmlN"; None where hwloc was built without NVML
    bus_id: str
    product: str | None = None  # GPUModel
    uuid: str | None = None  # NVIDIAUUID
    numa_node: int | None = None  # None: unknown, or several


class LstopoNic(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA device."""

    name: str  # "mlx5_0"
    bus_id: str
    numa_node: int | None = None


class LstopoNvlink(msgspec.Struct, frozen=True):
    """The NVLink bandwidth from a GPU to another device."""

    gpu: str  # bus id
    end: NvlinkEnd
    to: str | None  # bus id of the other GPU or of the NVSwitch; None: a CPU package
    mbps: int  # MB/s, one direction, of all links between the two


class LstopoTopology(msgspec.Struct, frozen=True):
    """One machine, from hwloc."""

    machine: str | None  # DMIProductName, PlatformModel
    gpus: tuple[LstopoGpu, ...]  # by index, then by bus id
    nics: tuple[LstopoNic, ...]
    nvlinks: tuple[LstopoNvlink, ...] | None  # None: not in the file (hwloc before 2.5), or empty
    problems: tuple[Problem, ...] = ()  # what is contradictory


def parse_lstopo(text: str) -> LstopoTopology:
    """Parse an hwloc topology document.

    Raises ``ParseError`` for any other text, a GPU listed twice, and an NVLink matrix that is not square or names
    unknown objects.
    """
    topology = parse_xml(text)
    machine = topology.find("object")
    if topology.tag != "topology" or machine is None:
        raise ParseError(f"line {topology.line}: not a <topology> of `lstopo --of xml` with a machine")
    for other in list(topology.all("object"))[1:]:
        raise _damaged(other, "an <object> outside of the machine")
    _check_tree(topology)
    found = _LstopoDevices(_OPENFABRICS_3 if topology.attributes.get("version", "").startswith("3") else _OPENFABRICS_2)
    found.collect(machine, numa=None)
    for name, values in (
        ("PCI bus id", [gpu.bus_id for gpu in found.gpus]),
        ("NVML index", [gpu.index for gpu in found.gpus if gpu.index is not None]),
    ):
        if len(set(values)) < len(values):
            raise ParseError(f"two GPUs of this hwloc topology have the same {name}: {values}")
    gpus = tuple(sorted(found.gpus, key=lambda gpu: (gpu.index is None, gpu.index, gpu.bus_id)))
    gpus, problems = _check_nodes(gpus, found.nodes)
    names = _infos(machine)
    product = names.get("DMIProductName") or names.get("PlatformModel")
    return LstopoTopology(product, gpus, tuple(found.nics), _nvlinks(topology, found.ends), problems)


def _check_nodes(gpus: tuple[LstopoGpu, ...], nodes: set[int]) -> tuple[tuple[LstopoGpu, ...], tuple[Problem, ...]]:
    """Return the GPUs without NUMA nodes that the file does not have, and a problem for each."""
    wrong = [gpu for gpu in gpus if nodes and gpu.numa_node is not None and gpu.numa_node not in nodes]
    kept = tuple(msgspec.structs.replace(gpu, numa_node=None) if gpu in wrong else gpu for gpu in gpus)
    return kept, tuple(
        Problem(
            f"lstopo {gpu.bus_id}",
            ProblemKind.CONFLICT,
            f"its nodeset names NUMA node {gpu.numa_node}, which the file does not have: not used",
        )
        for gpu in wrong
    )


class _LstopoDevices:
    """The devices found in the object tree."""

    def __init__(self, openfabrics: frozenset[str]) -> None:
        self._openfabrics = openfabrics  # the values of osdev_type that mean an RDMA device
        self.gpus: list[LstopoGpu] = []
        self.nics: list[LstopoNic] = []
        self.nodes: set[int] = set()  # NUMA nodes of the file
        self.ends: dict[str, tuple[NvlinkEnd, str | None]] = {}  # "OSDev:802", "PCIDev:449" -> kind, bus id

    def collect(self, above: Element, numa: int | None) -> None:
        """Collect the devices below an object; they have the NUMA node of the nearest object with a nodeset."""
        numa = _single_node(above.attributes["nodeset"]) if "nodeset" in above.attributes else numa
        for child in above.all("object"):
            kind = child.attributes.get("type", "")
            _check_nodeset(child, above)
            if kind == "NUMANode" and child.attributes.get("os_index", "").isdecimal():
                self.nodes.add(int(child.attributes["os_index"]))
            if not kind:
                raise _damaged(child, "an <object> without type")
            is_gpu = _NVIDIA_GPU.match(above.attributes.get("pci_type", "")) is not None
            if kind == "OSDev" and not is_gpu and _NVML.fullmatch(child.attributes.get("name", "")):
                raise _damaged(child, f"{child.attributes['name']} is below an object that is not an NVIDIA GPU")
            if kind == "PCIDev" and sysfs_bus_id(child.attributes.get("pci_busid", "")) is None:
                raise ParseError(
                    f"line {child.line}: pci_busid={child.attributes.get('pci_busid')!r} is not a PCI bus id like "
                    "'0000:07:00.0'"
                )
            if kind == "Package":
                self._add_end(child, NvlinkEnd.CPU, None)
            elif kind == "PCIDev" and (bus_id := sysfs_bus_id(child.attributes.get("pci_busid", ""))) is not None:
                self._add_pci(child, bus_id, numa)
            self.collect(child, numa)

    def _add_pci(self, device: Element, bus_id: str, numa: int | None) -> None:
        os_devices = [child for child in device.all("object") if child.attributes.get("type") == "OSDev"]
        if device.attributes.get("subtype") == "NVSwitch":
            self._add_end(device, NvlinkEnd.NVSWITCH, bus_id)
        if _NVIDIA_GPU.match(device.attributes.get("pci_type", "")):
            self.gpus.append(_gpu(os_devices, bus_id, numa))
            for each in (device, *os_devices):
                self._add_end(each, NvlinkEnd.GPU, bus_id)
        for each in os_devices:
            name = each.attributes.get("name", "")
            if each.attributes.get("osdev_type") in self._openfabrics:
                self.nics.append(LstopoNic(name=name, bus_id=bus_id, numa_node=numa))

    def _add_end(self, element: Element, end: NvlinkEnd, bus_id: str | None) -> None:
        name = f"{element.attributes.get('type')}:{element.attributes.get('gp_index')}"
        self.ends[name] = (end, bus_id)


def _gpu(os_devices: list[Element], bus_id: str, numa: int | None) -> LstopoGpu:
    infos: dict[str, str] = {}
    index = None
    for device in os_devices:
        infos |= _infos(device)
        if match := _NVML.fullmatch(device.attributes.get("name", "")):
            index = int(match[1])
    return LstopoGpu(
        index=index, bus_id=bus_id, product=infos.get("GPUModel"), uuid=infos.get("NVIDIAUUID"), numa_node=numa
    )


def _infos(element: Element) -> dict[str, str]:
    return {info.attributes.get("name", ""): info.attributes.get("value", "") for info in element.all("info")}


def _single_node(nodeset: str) -> int | None:
    """Return the only NUMA node of a nodeset; else None."""
    mask = _mask(nodeset)
    return mask.bit_length() - 1 if mask is not None and mask.bit_count() == 1 else None


def _mask(nodeset: str) -> int | None:
    """Return a nodeset in words of 32 bits, "0x00000001" or "0x1,,0x0", as a mask; None if it is none."""
    words = [word or "0" for word in nodeset.split(",")]
    if not nodeset or len(words) > _MAX_WORDS or not all(_WORD.fullmatch(word) for word in words):
        return None
    return int("".join(f"{int(word, 16):08x}" for word in words), 16)


def _damaged(where: Element, what: str) -> ParseError:
    return ParseError(f"line {where.line}: {what}: this hwloc topology was damaged or edited")


def _check_tree(above: Element) -> None:
    """Raise ``ParseError`` for an object below an element that has none in hwloc's files."""
    io_object = above.attributes.get("type") in _IO_OBJECTS
    for child in above.children:
        if child.tag == "object" and above.tag not in {"object", "topology"}:
            raise _damaged(child, f"an <object> below <{above.tag[:40]}>")
        kind = child.attributes.get("type", "")
        if child.tag == "object" and io_object and kind not in {*_IO_OBJECTS, "Misc"}:
            raise _damaged(child, f"an <object> of type {kind[:40]!r} below one of type {above.attributes['type']!r}")
        _check_tree(child)


def _check_nodeset(child: Element, above: Element) -> None:
    """Raise ``ParseError`` for an object with NUMA nodes that the object around it does not have."""
    inner, outer = (_mask(each.attributes.get("nodeset", "")) for each in (child, above))
    if inner is not None and outer is not None and inner & ~outer:
        nodes = child.attributes["nodeset"][:40]
        raise _damaged(child, f"nodeset={nodes!r} is not within that of the object around it")


def _nvlinks(topology: Element, ends: dict[str, tuple[NvlinkEnd, str | None]]) -> tuple[LstopoNvlink, ...] | None:
    matrix = next(
        (found for found in _distance_matrices(topology) if found.attributes.get("name") == "NVLinkBandwidth"), None
    )
    if matrix is None:
        return None
    kind = (
        f"{matrix.attributes['type']}:" if "type" in matrix.attributes else ""
    )  # given once where all objects have the same type
    objects = [kind + word for word in _words(matrix, "indexes")]
    values = _words(matrix, "u64values")
    if not objects and not values:
        return None  # its contents were lost: no bandwidth is unknown, and not zero
    unknown_names = [name for name in objects if name not in ends]
    if unknown_names or len(values) != len(objects) ** 2 or not all(_VALUE.fullmatch(value) for value in values):
        why = (
            f"names {unknown_names[0][:40]!r}, which is not a GPU, NVSwitch or CPU"
            if unknown_names
            else "is not square"
        )
        raise ParseError(f"line {matrix.line}: the NVLinkBandwidth matrix {why}")
    return tuple(_nvlink_entries(objects, [int(value) for value in values], ends))


def _nvlink_entries(
    objects: list[str], values: list[int], ends: dict[str, tuple[NvlinkEnd, str | None]]
) -> Iterator[LstopoNvlink]:
    """Yield the entries in the rows of GPUs, without the diagonal."""
    for i, row in enumerate(objects):
        from_end, gpu = ends[row]
        if from_end is NvlinkEnd.GPU and gpu is not None:
            for j, column in enumerate(objects):
                if i != j and (mbps := values[i * len(objects) + j]):
                    yield LstopoNvlink(gpu, *ends[column], mbps)


def _distance_matrices(topology: Element) -> Iterator[Element]:
    yield from topology.all("distances2hetero")
    yield from topology.all("distances2")


def _words(matrix: Element, tag: str) -> list[str]:
    return [word for part in matrix.all(tag) for word in part.text.split()]


_IO_OBJECTS = frozenset({"Bridge", "PCIDev", "OSDev"})
_NVIDIA_GPU = re.compile(r"03[0-9a-f]{2} \[10de:")  # PCI class "display", vendor NVIDIA
_NVML = re.compile(r"nvml([0-9]{1,3})")
_OPENFABRICS_2 = frozenset({"3"})  # hwloc 1 and 2: HWLOC_OBJ_OSDEV_OPENFABRICS, the fourth type
_OPENFABRICS_3 = frozenset({"32", "48"})  # bit 5, with or without HWLOC_OBJ_OSDEV_NETWORK
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}")
_MAX_WORDS = 64  # 2048 NUMA nodes
_VALUE = re.compile(r"[0-9]{1,12}")
