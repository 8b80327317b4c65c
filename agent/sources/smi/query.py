"""``nvidia-smi -q -x`` (XML) and ``nvidia-smi -q`` (text): the facts of each GPU, in one result.

Both say the same in different words: ``nvsmi_device_v10`` to ``_v13.dtd`` and the text of drivers 418 to 610. Serial
numbers are in there and are never read. A value that nvidia-smi could not get is its error ("GPU is lost",
"Insufficient Permissions"): it becomes None, and ``unreadable`` keeps the words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.smi.errors import ParseError
from agent.sources.smi.lines import lines
from agent.sources.smi.query_words import TEXT, XML, Words, text_tree
from agent.sources.smi.unreachable import Unreachable, unreachable
from agent.sources.xml_tree import Element, parse_xml
from gputopo.model import MAX_GPUS, FabricState, GpuFabric, Pcie

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class QueriedMig(msgspec.Struct, frozen=True):
    """A MIG device. Neither its UUID nor its profile is printed here: ``nvidia-smi -L`` has them."""

    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: int | None = None


class QueriedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of one GPU."""

    index: int | None  # NVML's; None where only some of the attached GPUs are described
    bus_id: str | None  # sysfs spelling
    uuid: str | None = None
    minor: int | None = None
    product: str | None = None
    architecture: str | None = None  # "hopper", "ada-lovelace": GPU Feature Discovery's family names
    memory_mib: int | None = None  # FB memory, total including reserved
    pcie: Pcie = Pcie()
    pcie_device_max_generation: int | None = None  # of the GPU itself, whatever slot it is in
    mig_enabled: bool | None = None
    mig_devices: tuple[QueriedMig, ...] = ()
    fabric: GpuFabric | None = None
    virtualization: str | None = None  # "None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"
    unreadable: tuple[tuple[str, str], ...] = ()  # (fact, what was said instead): ("memory", "GPU is lost")


class Query(msgspec.Struct, frozen=True):
    """What ``nvidia-smi -q`` says of a machine."""

    driver_version: str | None
    cuda_version: str | None
    attached: int | None  # GPUs that the driver has; more than ``gpus`` where only some were asked for
    gpus: tuple[QueriedGpu, ...]
    unreachable: tuple[Unreachable, ...] = ()


def parse_query(text: str) -> Query:
    """The output of ``nvidia-smi -q -x`` or ``nvidia-smi -q``.

    Raises ``ParseError`` for a document that is neither, an XML document that was cut, text that describes no GPU, and
    more GPUs than a machine has.
    """
    # Newer drivers put a line about a GPU they cannot reach before the document.
    start = min((at for mark in ("<?xml", "<!DOCTYPE", "<nvidia_smi_log") if (at := text.find(mark)) >= 0), default=-1)
    if start < 0:
        return _query(_described(text), TEXT, _unreachable(text))
    root = parse_xml(text, start)
    if root.tag != "nvidia_smi_log":
        raise ParseError(f"line {root.line}: <{root.tag[:40]}> is not the <nvidia_smi_log> of `nvidia-smi -q -x`")
    return _query(root, XML, _unreachable(text[:start]))


def _described(text: str) -> Element:
    root = text_tree(text)
    if root.find("gpu") is None:
        first = next(lines(text), None)
        said = "it is empty" if first is None else f"it begins with {first.text[:80]!r}"
        raise ParseError(f"no GPU is described here, {said}; paste the output of `nvidia-smi -q` or `nvidia-smi -q -x`")
    return root


def _unreachable(text: str) -> tuple[Unreachable, ...]:
    return tuple(gone for line in lines(text) if (gone := unreachable(line)) is not None)


def _query(root: Element, words: Words, lost: tuple[Unreachable, ...]) -> Query:
    read = _Reader(root)
    attached = read.fact("attached", words.attached, _number)
    described = list(root.all("gpu"))
    if len(described) > MAX_GPUS:
        raise ParseError(f"{len(described)} GPUs are described here, and no machine has more than {MAX_GPUS}")
    whole = attached is None or attached == len(described)
    gpus = tuple(_gpu(gpu, words, place if whole else None) for place, gpu in enumerate(described))
    driver = read.fact("driver", words.driver, _version)
    return Query(driver, read.fact("cuda", words.cuda, _version), attached, gpus, lost)


def _gpu(gpu: Element, words: Words, index: int | None) -> QueriedGpu:
    read = _Reader(gpu)
    bus_id = read.fact("bus id", words.bus_id, sysfs_bus_id) or sysfs_bus_id(gpu.attributes.get("id", ""))
    enabled = read.fact("MIG mode", words.mig_mode, {"Enabled": True, "Disabled": False}.get)
    return QueriedGpu(
        index=index,
        bus_id=bus_id,
        uuid=read.fact("uuid", words.uuid, _uuid),
        minor=read.fact("minor", words.minor, _number),
        product=read.fact("product", words.product, str),
        architecture=read.fact("architecture", words.architecture, _family),
        memory_mib=read.fact("memory", words.memory, _mib),
        pcie=Pcie(
            generation=read.fact("PCIe generation", words.pcie_generation, _number),
            width=read.fact("PCIe width", words.pcie_width, _lanes),
            max_generation=read.fact("maximal PCIe generation", words.pcie_max_generation, _number),
            max_width=read.fact("maximal PCIe width", words.pcie_max_width, _lanes),
        ),
        pcie_device_max_generation=read.fact("the GPU's PCIe generation", words.pcie_device_max_generation, _number),
        mig_enabled=enabled,
        mig_devices=_mig_devices(gpu, words) if enabled else (),
        fabric=_fabric(gpu, words, read),
        virtualization=read.fact("virtualization", words.virtualization, str),
        unreadable=tuple(read.unreadable),
    )


def _mig_devices(gpu: Element, words: Words) -> tuple[QueriedMig, ...]:
    above = gpu if words.mig_list is None else gpu.find(words.mig_list)
    found = []
    for device in above.all(words.mig_device) if above is not None else ():
        read = _Reader(device)
        index = read.fact("index", words.mig_index, _number)
        if index is not None:
            instance = read.fact("GPU instance", words.mig_gpu_instance, _number)
            compute = read.fact("compute instance", words.mig_compute_instance, _number)
            found.append(QueriedMig(index, instance, compute, read.fact("memory", words.memory, _mib)))
    return tuple(found)


def _fabric(gpu: Element, words: Words, read: _Reader) -> GpuFabric | None:
    """None where this GPU knows no fabric ("N/A"), as before Hopper."""
    state = read.fact("fabric state", words.fabric_state, _FABRIC_STATES.get)
    if state is None:
        return None
    uuid = read.fact("fabric cluster", words.fabric_cluster, str.lower)
    status = read.fact("fabric status", words.fabric_status, str)
    return GpuFabric(
        state=state,
        cluster_uuid=uuid if uuid is not None and uuid.strip("0-") else None,
        clique=read.fact("fabric clique", words.fabric_clique, _number),
        status=None if status == "Success" else status,
        unhealthy=_unhealthy(gpu.find(words.fabric_health)),
    )


def _unhealthy(health: Element | None) -> tuple[str, ...]:
    """The faults among ``Route Unhealthy: True`` and its like, in the words of the XML's elements."""
    found = []
    for child in health.children if health is not None else ():
        name = child.tag.replace("_", " ").lower()
        fault = _HEALTH_FAULTS.get(name)
        if fault is not None and child.text == fault:
            found.append(name)
        elif name == "incorrect configuration" and child.text not in {"None", *_NO_VALUE, *_ERRORS}:
            found.append(name)  # the value says which: "Insufficient Nvlinks", ...
    return tuple(found)


class _Reader:
    """Reads facts of one element, and keeps the words of those that could not be read."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self.unreadable: list[tuple[str, str]] = []

    def fact(self, name: str, paths: tuple[str, ...], convert: Callable[[str], T | None]) -> T | None:
        """The value at the first of ``paths`` that has one; None where there is none."""
        found = (self._element.find(path) for path in paths)
        said = next((element.text for element in found if element is not None and element.text not in _NO_VALUE), None)
        if said is None:
            return None
        value = None if said.strip("[]") in _ERRORS else convert(said)
        if value is None:
            self.unreadable.append((name, said[:80]))
        return value


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _mib(text: str) -> int | None:
    match = _MIB.fullmatch(text)
    return int(match[1]) or None if match else None


def _lanes(text: str) -> int | None:
    match = _LANES.fullmatch(text)
    return int(match[1]) if match else None


def _version(text: str) -> str | None:
    return text if _VERSION.fullmatch(text) else None


def _uuid(text: str) -> str | None:
    return text if _UUID.fullmatch(text) else None


def _family(text: str) -> str | None:
    return None if text == "Unknown" else text.lower().replace(" ", "-")


_NUMBER = re.compile(r"[0-9]{1,9}")
_MIB = re.compile(r"([0-9]{1,9}) MiB")
_LANES = re.compile(r"([0-9]{1,2})x")
_VERSION = re.compile(r"[0-9][0-9.]{0,20}")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NO_VALUE = frozenset(
    {"", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "Requested functionality has been deprecated"}
)
_ERRORS = frozenset(  # nvmlErrorString, where a value belongs
    {
        "Function Not Found",
        "GPU is lost",
        "GPU requires reset",
        "GPU requires restart",
        "Insufficient Permissions",
        "Not Found",
        "Timeout",
        "Unknown Error",
    }
)

_FABRIC_STATES = {
    "Not Started": FabricState.NOT_STARTED,
    "In Progress": FabricState.IN_PROGRESS,
    "Completed": FabricState.COMPLETED,
}
_HEALTH_FAULTS = {
    "bandwidth": "Degraded",
    "route recovery in progress": "True",
    "route unhealthy": "True",
    "access timeout recovery": "True",
}
