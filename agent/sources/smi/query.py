"""``nvidia-smi -q -x`` (XML) and ``nvidia-smi -q`` (text): the facts of each GPU, in one type.

Formats: ``nvsmi_device_v10`` to ``_v13.dtd`` and the text of drivers 418 to 610. Serial numbers in the output are not
read. Where nvidia-smi could not get a value it prints an error ("GPU is lost", "Insufficient Permissions"): the value
is None, and ``unreadable`` has the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from agent.sources.bus_id import sysfs_bus_id
from agent.sources.errors import ParseError
from agent.sources.smi.lines import split_lines
from agent.sources.smi.query_words import TEXT, XML, QueryPaths, text_tree
from agent.sources.smi.unreachable import UnreachableGpu, parse_unreachable
from agent.sources.xml_tree import Element, parse_xml
from gputopo.model import MAX_GPUS, FabricState, GpuFabric, Pcie

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class QueriedMig(msgspec.Struct, frozen=True):
    """A MIG device. Its UUID and profile are not printed here, only by ``nvidia-smi -L``."""

    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: int | None = None


class QueriedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one GPU."""

    index: int | None  # NVML's; None where only some of the attached GPUs are described
    bus_id: str | None  # sysfs spelling
    uuid: str | None = None
    minor: int | None = None
    product: str | None = None
    architecture: str | None = None  # "hopper", "ada-lovelace": GPU Feature Discovery's family names
    memory_mib: int | None = None  # FB memory, total including reserved
    pcie: Pcie = Pcie()
    pcie_device_max_generation: int | None = None  # of the GPU itself, independent of its slot
    mig_enabled: bool | None = None
    mig_devices: tuple[QueriedMig, ...] = ()
    fabric: GpuFabric | None = None
    virtualization: str | None = None  # "None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"
    at_p0: bool = False  # in the highest performance state
    remap_failed: bool = False  # a row of memory could not be remapped
    reset_required: bool = False
    recovery_action: str | None = None  # "Reset", "Reboot", "Drain P2P", "Drain and Reset"; None: no action
    unreadable: tuple[tuple[str, str], ...] = ()  # (fact, printed error): ("memory", "GPU is lost")

    missing: tuple[str, ...] = ()  # facts that every driver prints, and that the text does not have, not even as "N/A"

    @property
    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Identities and sizes in a form that nvidia-smi does not print: numbers, and no error in words."""
        return tuple(
            (fact, printed)
            for fact, printed in self.unreadable
            if fact in _CHECKED and printed != "0 MiB" and any(each.isdigit() for each in printed)
        )


class SmiQuery(msgspec.Struct, frozen=True):
    """The output of ``nvidia-smi -q``."""

    driver_version: str | None
    cuda_version: str | None
    attached: int | None  # GPUs of the driver; more than ``gpus`` where only some were queried
    gpus: tuple[QueriedGpu, ...]
    unreachable: tuple[UnreachableGpu, ...] = ()


def parse_query(text: str) -> SmiQuery:
    """Parse the output of ``nvidia-smi -q -x`` or ``nvidia-smi -q``.

    Raises ``ParseError`` for any other text, an incomplete XML document, text without a GPU, and too many GPUs.
    """
    # Newer drivers print a line about an unreachable GPU before the document.
    start = min((at for mark in ("<?xml", "<!DOCTYPE", "<nvidia_smi_log") if (at := text.find(mark)) >= 0), default=-1)
    if start < 0:
        return _to_query(_parse_text(text), TEXT, _unreachable(text))
    root = parse_xml(text, start)
    if root.tag != "nvidia_smi_log":
        raise ParseError(f"line {root.line}: <{root.tag[:40]}> is not the <nvidia_smi_log> of `nvidia-smi -q -x`")
    return _to_query(root, XML, _unreachable(text[:start]))


def _parse_text(text: str) -> Element:
    root = text_tree(text)
    if root.find("gpu") is None:
        first = next(split_lines(text), None)
        printed = "the text is empty" if first is None else f"the text begins with {first.text[:80]!r}"
        raise ParseError(f"no GPU found: {printed}; paste the output of `nvidia-smi -q` or `nvidia-smi -q -x`")
    return root


def _unreachable(text: str) -> tuple[UnreachableGpu, ...]:
    return tuple(
        unreachable_gpu for line in split_lines(text) if (unreachable_gpu := parse_unreachable(line)) is not None
    )


def _to_query(root: Element, paths: QueryPaths, lost: tuple[UnreachableGpu, ...]) -> SmiQuery:
    reader = _FactReader(root)
    attached = reader.read_fact("attached", paths.attached, _number)
    described = list(root.all("gpu"))
    if len(described) > MAX_GPUS:
        raise ParseError(f"{len(described)} GPUs found; at most {MAX_GPUS} are supported")
    whole = attached is None or attached == len(described)
    gpus = tuple(_to_gpu(gpu, paths, place if whole else None) for place, gpu in enumerate(described))
    driver = reader.read_fact("driver", paths.driver, _version)
    return SmiQuery(driver, reader.read_fact("cuda", paths.cuda, _version), attached, gpus, lost)


def _to_gpu(gpu: Element, paths: QueryPaths, index: int | None) -> QueriedGpu:
    reader = _FactReader(gpu)
    bus_id = reader.read_fact("bus id", paths.bus_id, sysfs_bus_id) or sysfs_bus_id(gpu.attributes.get("id", ""))
    devices = _mig_devices(gpu, paths)
    enabled = reader.read_fact("MIG mode", paths.mig_mode, {"Enabled": True, "Disabled": False}.get)
    return QueriedGpu(
        index=index,
        bus_id=bus_id,
        uuid=reader.read_fact("uuid", paths.uuid, _uuid),
        minor=reader.read_fact("minor", paths.minor, _number),
        product=reader.read_fact("product", paths.product, lambda text: None if ":" in text else text),
        architecture=reader.read_fact("architecture", paths.architecture, _family),
        memory_mib=_checked_memory(reader, paths),
        pcie=Pcie(
            generation=reader.read_fact("PCIe generation", paths.pcie_generation, _number),
            width=reader.read_fact("PCIe width", paths.pcie_width, _lanes),
            max_generation=reader.read_fact("maximal PCIe generation", paths.pcie_max_generation, _number),
            max_width=reader.read_fact("maximal PCIe width", paths.pcie_max_width, _lanes),
        ),
        pcie_device_max_generation=reader.read_fact(
            "the GPU's PCIe generation", paths.pcie_device_max_generation, _number
        ),
        mig_enabled=True if enabled is None and devices else enabled,
        mig_devices=devices if enabled is not False else (),
        fabric=_fabric(gpu, paths, reader),
        virtualization=reader.read_fact("virtualization", paths.virtualization, str),
        at_p0=reader.says(paths.performance_state, "P0"),
        remap_failed=reader.says(paths.remap_failure, "Yes"),
        reset_required=reader.says(paths.reset_required, "Yes"),
        recovery_action=reader.read_fact("recovery action", paths.recovery_action, _RECOVERIES.get) or None,
        unreadable=tuple(reader.unreadable),
        missing=tuple(
            name for name, places in (("uuid", paths.uuid), ("memory", paths.memory)) if not reader.has(places)
        ),
    )


def _checked_memory(reader: _FactReader, paths: QueryPaths) -> int | None:
    """Return the total memory, unless its parts do not add up to it (each is rounded to MiB)."""
    total = reader.read_fact("memory", paths.memory, _mib)
    reserved = reader.read_fact("reserved memory", paths.memory_reserved, _mib_or_zero)
    used = reader.read_fact("used memory", paths.memory_used, _mib_or_zero)
    free = reader.read_fact("free memory", paths.memory_free, _mib_or_zero)
    largest = max(reserved or 0, used or 0, free or 0)
    if total is not None and largest > total + _ROUNDING_MIB:
        reader.unreadable.append(("memory", f"{total} MiB, of which {largest} MiB are a part"))
        return None
    if total is None or used is None or free is None:
        return total
    # Until driver 510 "used" contains the reserved memory.
    if any(abs(total - used - free - extra) <= _ROUNDING_MIB for extra in (0, reserved or 0)):
        return total
    reader.unreadable.append(("memory", f"{total} MiB, of which {used} used and {free} free"))
    return None


def _mig_devices(gpu: Element, paths: QueryPaths) -> tuple[QueriedMig, ...]:
    above = gpu if paths.mig_list is None else gpu.find(paths.mig_list)
    found = []
    for device in above.all(paths.mig_device) if above is not None else ():
        reader = _FactReader(device)
        index = reader.read_fact("index", paths.mig_index, _number)
        if index is not None:
            instance = reader.read_fact("GPU instance", paths.mig_gpu_instance, _number)
            compute = reader.read_fact("compute instance", paths.mig_compute_instance, _number)
            found.append(QueriedMig(index, instance, compute, reader.read_fact("memory", paths.memory, _mib)))
    return tuple(found)


def _fabric(gpu: Element, paths: QueryPaths, reader: _FactReader) -> GpuFabric | None:
    """The fabric membership; None where the GPU has no fabric ("N/A"), as before Hopper."""
    state = reader.read_fact("fabric state", paths.fabric_state, _FABRIC_STATES.get)
    if state is None:
        return None
    uuid = reader.read_fact("fabric cluster", paths.fabric_cluster, str.lower)
    # "Not Supported" is a result of the registration, and no missing value.
    statuses = (found.text for path in paths.fabric_status if (found := gpu.find(path)) is not None)
    status = next((each for each in statuses if each not in {"", "N/A", "[N/A]"}), None)
    return GpuFabric(
        state=state,
        cluster_uuid=uuid if uuid is not None and uuid.strip("0-") else None,
        clique=reader.read_fact("fabric clique", paths.fabric_clique, _number),
        status=None if status == "Success" else status,
        unhealthy=_unhealthy(gpu.find(paths.fabric_health)),
    )


def _unhealthy(health: Element | None) -> tuple[str, ...]:
    """The faults in the health section ("Route Unhealthy: True"), named like the XML's elements."""
    found = []
    for child in health.children if health is not None else ():
        name = child.tag.replace("_", " ").lower()
        fault = _HEALTH_FAULTS.get(name)
        if fault is not None and child.text == fault:
            found.append(name)
        elif name == "incorrect configuration" and child.text not in {"None", *_NO_VALUE, *_ERRORS}:
            found.append(name)  # the value has the cause: "Insufficient Nvlinks", ...
    return tuple(found)


class _FactReader:
    """Reads facts of one element, and keeps the texts of values that could not be read."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self.unreadable: list[tuple[str, str]] = []

    def has(self, paths: tuple[str, ...]) -> bool:
        """Return whether one of ``paths`` is there."""
        return any(self._element.find(path) is not None for path in paths)

    def says(self, paths: tuple[str, ...], word: str) -> bool:
        """Return whether one of ``paths`` has this value."""
        return any((found := self._element.find(path)) is not None and found.text == word for path in paths)

    def read_fact(self, name: str, paths: tuple[str, ...], convert: Callable[[str], T | None]) -> T | None:
        """Return the value at the first of ``paths`` that has one; None where there is none."""
        found = (self._element.find(path) for path in paths)
        printed = next(
            (element.text for element in found if element is not None and element.text not in _NO_VALUE), None
        )
        if printed is None:
            return None
        value = None if printed.strip("[]") in _ERRORS else convert(printed)
        if value is None:
            self.unreadable.append((name, printed[:80]))
        return value


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _mib(text: str) -> int | None:
    match = _MIB.fullmatch(text)
    return int(match[1]) or None if match else None


def _mib_or_zero(text: str) -> int | None:
    match = _MIB.fullmatch(text)
    return int(match[1]) if match else None


def _lanes(text: str) -> int | None:
    match = _LANES.fullmatch(text)
    return int(match[1]) if match else None


def _version(text: str) -> str | None:
    return text if _VERSION.fullmatch(text) else None


def _uuid(text: str) -> str | None:
    return text if _UUID.fullmatch(text) else None


def _family(text: str) -> str | None:
    name = text.lower().replace(" ", "-")
    return name if name in _FAMILIES else None


_NUMBER = re.compile(r"[0-9]{1,9}")
_MIB = re.compile(r"([0-9]{1,9}) MiB")
_LANES = re.compile(r"([0-9]{1,2})x")
_VERSION = re.compile(r"[0-9][0-9.]{0,20}")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_ROUNDING_MIB = 4
_CHECKED = frozenset({"uuid", "bus id", "product", "memory", "reserved memory", "used memory", "free memory"})
# Architectures in the words of nvidia-smi, as GPU Feature Discovery spells them.
_FAMILIES = frozenset(
    {
        *("tesla", "fermi", "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada-lovelace", "hopper"),
        *("blackwell", "rubin"),
    }
)

_NO_VALUE = frozenset(
    {"", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "Requested functionality has been deprecated"}
)
_ERRORS = frozenset(  # nvmlErrorString, printed instead of a value
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
_RECOVERIES = {"None": "", **{each: each for each in ("Reset", "Reboot", "Drain P2P", "Drain and Reset")}}
_HEALTH_FAULTS = {
    "bandwidth": "Degraded",
    "route recovery in progress": "True",
    "route unhealthy": "True",
    "access timeout recovery": "True",
}
