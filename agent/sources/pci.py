"""Interprets the texts of /sys: PCI devices, the distance between two, RDMA devices, NUMA nodes. Pure.

A value that the kernel does not know, or that it never writes, is None: -1 for a NUMA node, "Unknown" for a speed, 0 or
255 for a width.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gputopo.model import NumaNode, Pcie, PcieDistance

if TYPE_CHECKING:
    from agent.snapshot import Sysfs

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers: NVIDIA boards with and without display outputs
SWITCH_CLASS = "0x0680"  # "other bridge": the class of an NVSwitch

_PCI = "bus/pci/devices"
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DEVICE_CLASS = re.compile(rf"{_PCI}/([^/]+)/class")
_INFINIBAND = re.compile(r"class/infiniband/([^/]+)/")
_NODE = re.compile(r"devices/system/node/node(\d+)/cpulist")
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6, "128": 7}  # GT/s per lane -> PCIe generation
_WIDTHS = ("1", "2", "4", "8", "12", "16", "32")


class PciDevice(msgspec.Struct, frozen=True):
    """A device on the PCI bus."""

    bus_id: str  # "0000:07:00.0"
    numa_node: int | None
    cpu_affinity: str | None  # local_cpulist: "0-15,64-79"
    pcie: Pcie
    path: tuple[str, ...]  # from the top of /sys/devices down to the device; empty where it was not recorded


class RdmaDevice(msgspec.Struct, frozen=True):
    """A device of /sys/class/infiniband: InfiniBand or RoCE."""

    name: str  # "mlx5_0"
    pci: PciDevice | None  # None: not on a PCI bus, or not recorded
    rate_gbps: int | None  # Gbit/s, port 1; None where it is down
    link_layer: str | None  # "InfiniBand" or "Ethernet"


def find_gpus(sysfs: Sysfs) -> tuple[PciDevice, ...]:
    """Return the NVIDIA GPUs on the bus, by bus id, including those that the driver lost or never had."""
    return _devices_of_class(sysfs, GPU_CLASSES)


def find_switches(sysfs: Sysfs) -> tuple[PciDevice, ...]:
    """Return the NVSwitches on the bus, by bus id."""
    return _devices_of_class(sysfs, (SWITCH_CLASS,))


def find_rdma_devices(sysfs: Sysfs) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices, by name in numeric order: mlx5_2 before mlx5_10."""
    keys = (*sysfs.files, *sysfs.links)
    names = {match[1] for match in map(_INFINIBAND.match, keys) if match is not None}
    return tuple(_rdma_device(sysfs, name) for name in sorted(names, key=_numeric_order))


def find_numa_nodes(sysfs: Sysfs) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes, by id; nodes without CPUs (a Grace GPU's memory) have the cpulist ""."""
    ids = sorted(int(match[1]) for match in map(_NODE.fullmatch, sysfs.files) if match is not None)
    return tuple(_numa_node(sysfs, node) for node in ids)


def product_name(sysfs: Sysfs) -> str | None:
    """Return the vendor's name of the machine: ``/sys/class/dmi/id/product_name``."""
    return _text(sysfs, "class/dmi/id/product_name") or None


def pcie_distance(a: PciDevice, b: PciDevice) -> PcieDistance | None:
    """Return the distance between two devices in the terms of ``nvidia-smi topo -m``; None where /sys does not tell.

    Two devices on ports of the same switch have two more steps below their common bridge: that is PIX
    (``NVML_TOPOLOGY_SINGLE``, "a single PCIe switch"); anything deeper is PXB. Devices that share nothing below the
    host bridge are PHB. Different host bridges are NODE or SYS by their NUMA nodes, and unknown where a node is
    unknown.
    """
    bridge_a, bridge_b = _host_bridge(a.path), _host_bridge(b.path)
    if bridge_a is None or bridge_b is None:
        return None
    if bridge_a != bridge_b:
        if a.numa_node is None or b.numa_node is None:
            return None
        return PcieDistance.NODE if a.numa_node == b.numa_node else PcieDistance.SYS
    shared = _shared_depth(a.path, b.path)
    if shared == len(bridge_a):
        return PcieDistance.PHB
    return PcieDistance.PIX if max(len(a.path), len(b.path)) - shared <= 2 else PcieDistance.PXB


def pcie_generation(speed: str | None) -> int | None:
    """Return the PCIe generation of a link speed: "16.0 GT/s PCIe", or "8 GT/s" before Linux 5.7."""
    number, _, unit = (speed or "").strip().partition(" ")
    return _GENERATIONS.get(number.removesuffix(".0")) if unit.startswith("GT/s") else None


def _host_bridge(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path down to the host bridge: "pci0000:00", below a VMBus device on Hyper-V."""
    for depth, step in enumerate(path, start=1):
        if _HOST_BRIDGE.fullmatch(step):
            return path[:depth]
    return None


def _shared_depth(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The number of steps that two paths share from the top."""
    steps = zip(a, b, strict=False)  # compare as far as the shorter path
    return next((depth for depth, (left, right) in enumerate(steps) if left != right), min(len(a), len(b)))


def _devices_of_class(sysfs: Sysfs, classes: tuple[str, ...]) -> tuple[PciDevice, ...]:
    matches = (match for match in map(_DEVICE_CLASS.fullmatch, sysfs.files) if match is not None)
    bus_ids = sorted(match[1] for match in matches if sysfs.files[match[0]].startswith(classes))
    nvidia = (bus_id for bus_id in bus_ids if _text(sysfs, f"{_PCI}/{bus_id}/vendor") == NVIDIA)
    return tuple(_device(sysfs, bus_id) for bus_id in nvidia)


def _device(sysfs: Sysfs, bus_id: str) -> PciDevice:
    base = f"{_PCI}/{bus_id}"
    path = sysfs.links.get(base)
    return PciDevice(
        bus_id=bus_id,
        numa_node=_natural_number(_text(sysfs, f"{base}/numa_node")),
        cpu_affinity=_text(sysfs, f"{base}/local_cpulist") or None,
        pcie=Pcie(
            generation=pcie_generation(_text(sysfs, f"{base}/current_link_speed")),
            width=_width(_text(sysfs, f"{base}/current_link_width")),
            max_generation=pcie_generation(_text(sysfs, f"{base}/max_link_speed")),
            max_width=_width(_text(sysfs, f"{base}/max_link_width")),
        ),
        path=tuple(path.split("/")) if path else (),
    )


def _rdma_device(sysfs: Sysfs, name: str) -> RdmaDevice:
    base = f"class/infiniband/{name}"
    bus_id = sysfs.links.get(f"{base}/device", "").rsplit("/", 1)[-1]
    rate, _, unit = (_text(sysfs, f"{base}/ports/1/rate") or "").partition(" ")
    state = _text(sysfs, f"{base}/ports/1/state")
    up = state is None or "ACTIVE" in state  # "4: ACTIVE", "5: ACTIVE_DEFER"
    return RdmaDevice(
        name=name,
        pci=_device(sysfs, bus_id) if _BUS_ID.fullmatch(bus_id) else None,
        # "400 Gb/sec (4X NDR)". A port that is down reports its lowest rate: 2.5, 10, 40.
        rate_gbps=_natural_number(rate) if up and unit.startswith("Gb/sec") else None,
        link_layer=_text(sysfs, f"{base}/ports/1/link_layer") or None,
    )


def _numa_node(sysfs: Sysfs, node: int) -> NumaNode:
    base = f"devices/system/node/node{node}"
    match = re.search(r"MemTotal:\s*(\d+) kB", sysfs.files.get(f"{base}/meminfo", ""))
    memory_mib = int(match[1]) >> 10 if match is not None else None
    return NumaNode(id=node, cpus=_text(sysfs, f"{base}/cpulist"), memory_mib=memory_mib)


def _text(sysfs: Sysfs, path: str) -> str | None:
    text = sysfs.files.get(path)
    return None if text is None else text.strip()


def _natural_number(text: str | None) -> int | None:
    """Return a number from 0 on; None for -1, the kernel's value for unknown."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _width(text: str | None) -> int | None:
    return int(text) if text in _WIDTHS else None


def _numeric_order(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((word, int(number or -1)) for word, number in re.findall(r"([^0-9]*)([0-9]{0,9})", name))
