"""Reads /sys and keeps it as text: the relevant PCI devices, RDMA devices, NUMA nodes and the machine's name.

This module only reads; ``agent.sources.pci`` interprets the texts. Identities of the machine (serial numbers, GUIDs,
asset tags) are not read. A file that cannot be read is absent, because most of these files exist on some machines only.
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
    """Read the recorded parts of ``root`` ("/sys"). An empty root gives an empty ``Sysfs``."""
    reader = _SysfsReader(root)
    reader.keep_files(*_MACHINE_FILES)
    for bus_id in reader.list_names(_PCI):
        device = f"{_PCI}/{bus_id}"
        virtual = reader.exists(f"{device}/physfn")  # a virtual function of a GPU, not a card
        if not virtual and _is_wanted(reader.read_text(f"{device}/vendor"), reader.read_text(f"{device}/class")):
            _read_device(reader, bus_id)
    for name in reader.list_names(_INFINIBAND):
        _read_infiniband(reader, name)
    for node in reader.list_names(_NODES):
        if node.removeprefix("node").isdecimal():
            _read_node(reader, f"{_NODES}/{node}")
    return Sysfs(files=dict(sorted(reader.kept.items())), links=dict(sorted(reader.resolved.items())))


def _is_wanted(vendor: str | None, pci_class: str | None) -> bool:
    if vendor is None or vendor.strip() != NVIDIA or pci_class is None:
        return False
    return pci_class.startswith((*GPU_CLASSES, SWITCH_CLASS))


def _read_device(reader: _SysfsReader, bus_id: str) -> None:
    """Read a PCI device. The target of its link is its path in the PCIe tree."""
    reader.keep_link(f"{_PCI}/{bus_id}")
    reader.keep_files(*(f"{_PCI}/{bus_id}/{name}" for name in _DEVICE_FILES))


def _read_infiniband(reader: _SysfsReader, name: str) -> None:
    """Read an RDMA device. Virtual functions are skipped: there may be hundreds, as near as their physical function."""
    device = f"{_INFINIBAND}/{name}/device"
    if reader.exists(f"{device}/physfn"):
        return
    path = reader.keep_link(device)
    if path is not None:
        _read_device(reader, path.rsplit("/", 1)[-1])
    reader.keep_files(*(f"{_INFINIBAND}/{name}/ports/1/{each}" for each in _PORT_FILES))


def _read_node(reader: _SysfsReader, node: str) -> None:
    reader.keep_files(f"{node}/cpulist")
    meminfo = reader.read_text(f"{node}/meminfo") or ""
    total = [line for line in meminfo.splitlines(keepends=True) if "MemTotal:" in line]
    if total:  # the other lines change all the time
        reader.kept[f"{node}/meminfo"] = total[0]


class _SysfsReader:
    """Reads below a root and keeps the texts, by path below the root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.kept: dict[str, str] = {}
        self.resolved: dict[str, str] = {}

    def read_text(self, path: str) -> str | None:
        """Return the text of a file without keeping it; None where it cannot be read."""
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def keep_files(self, *paths: str) -> None:
        """Keep the files that can be read."""
        texts = ((path, self.read_text(path)) for path in paths)
        self.kept.update((path, text) for path, text in texts if text is not None)

    def keep_link(self, path: str) -> str | None:
        """Keep and return the target of a link, below the root; None where it is absent or leads out of the root."""
        if not self.exists(path):
            return None
        target = os.path.relpath(os.path.realpath(self._root / path), os.path.realpath(self._root))
        if target.startswith(".."):
            return None
        self.resolved[path] = target
        return target

    def exists(self, path: str) -> bool:
        """Return whether a file, directory or link exists."""
        return (self._root / path).exists()

    def list_names(self, path: str) -> Iterator[str]:
        """Return the sorted names in a directory; none where it cannot be read."""
        try:
            return iter(sorted(entry.name for entry in (self._root / path).iterdir()))
        except OSError:
            return iter(())
