"""/sys, read and kept as text: the PCI devices that matter here, RDMA devices, NUMA nodes and the machine's name.

Only this module reads; ``agent.sources.pci`` says what the texts mean. What identifies a machine (serial numbers,
GUIDs, asset tags) is not read at all. A file that cannot be read is absent: most of these exist on some machines only.
Kernel documents: Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband, ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.snapshot import Sysfs
from agent.sources.pci import GPU_CLASSES, NVIDIA, SWITCH_CLASS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PCI = "bus/pci/devices"
_INFINIBAND = "class/infiniband"
_NODES = "devices/system/node"
_DEVICE_FILES = (
    "vendor",
    "device",
    "class",
    "numa_node",
    "local_cpulist",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
)
_PORT_FILES = ("rate", "link_layer", "state")
_MACHINE_FILES = (
    *(f"class/dmi/id/{name}" for name in ("sys_vendor", "product_name", "board_name", "bios_version")),
    "hypervisor/type",
    "module/nvidia/version",
    f"{_NODES}/online",
)


def read_sysfs(root: Path) -> Sysfs:
    """Read what is recorded of ``root`` ("/sys"). A root without anything gives an empty ``Sysfs``."""
    reader = _Reader(root)
    reader.files(*_MACHINE_FILES)
    for bus_id in reader.names(_PCI):
        device = f"{_PCI}/{bus_id}"
        virtual = reader.has(f"{device}/physfn")  # a slice of a GPU for a virtual machine: no card of its own
        if not virtual and _wanted(reader.text(f"{device}/vendor"), reader.text(f"{device}/class")):
            _read_device(reader, bus_id)
    for name in reader.names(_INFINIBAND):
        _read_infiniband(reader, name)
    for node in reader.names(_NODES):
        if node.removeprefix("node").isdecimal():
            _read_node(reader, f"{_NODES}/{node}")
    return Sysfs(files=dict(sorted(reader.read.items())), links=dict(sorted(reader.resolved.items())))


def _wanted(vendor: str | None, pci_class: str | None) -> bool:
    if vendor is None or vendor.strip() != NVIDIA or pci_class is None:
        return False
    return pci_class.startswith((*GPU_CLASSES, SWITCH_CLASS))


def _read_device(reader: _Reader, bus_id: str) -> None:
    """The resolved link of a PCI device is the PCIe tree above it."""
    reader.link(f"{_PCI}/{bus_id}")
    reader.files(*(f"{_PCI}/{bus_id}/{name}" for name in _DEVICE_FILES))


def _read_infiniband(reader: _Reader, name: str) -> None:
    """An RDMA device. Virtual functions are as near as their physical one, and there may be hundreds: left out."""
    device = f"{_INFINIBAND}/{name}/device"
    if reader.has(f"{device}/physfn"):
        return
    path = reader.link(device)
    if path is not None:
        _read_device(reader, path.rsplit("/", 1)[-1])
    reader.files(*(f"{_INFINIBAND}/{name}/ports/1/{each}" for each in _PORT_FILES))


def _read_node(reader: _Reader, node: str) -> None:
    reader.files(f"{node}/cpulist")
    meminfo = reader.text(f"{node}/meminfo") or ""
    total = [line for line in meminfo.splitlines(keepends=True) if "MemTotal:" in line]
    if total:  # the other lines differ from one moment to the next
        reader.read[f"{node}/meminfo"] = total[0]


class _Reader:
    """Reads below a root and keeps what it read, by path below the root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.read: dict[str, str] = {}
        self.resolved: dict[str, str] = {}

    def text(self, path: str) -> str | None:
        """The text of a file, not kept; None where it cannot be read."""
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def files(self, *paths: str) -> None:
        """Keep the files that can be read."""
        texts = ((path, self.text(path)) for path in paths)
        self.read.update((path, text) for path, text in texts if text is not None)

    def link(self, path: str) -> str | None:
        """Keep where a link leads, below the root; None where it is absent or leads out of it."""
        if not self.has(path):
            return None
        target = os.path.relpath(os.path.realpath(self._root / path), os.path.realpath(self._root))
        if target.startswith(".."):
            return None
        self.resolved[path] = target
        return target

    def has(self, path: str) -> bool:
        """Whether there is such a file, directory or link."""
        return (self._root / path).exists()

    def names(self, path: str) -> Iterator[str]:
        """The names in a directory, sorted; none where it cannot be read."""
        try:
            return iter(sorted(entry.name for entry in (self._root / path).iterdir()))
        except OSError:
            return iter(())
