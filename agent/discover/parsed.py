"""Parsing what a snapshot holds verbatim, source by source; one that cannot be understood costs only itself. Pure.

A parser is imported when its source has something to say: a pasted ``topo -m`` needs one of them, and start-up is what
a command line is felt by.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from agent.discover.precedence import Witnesses
from agent.snapshot import Nvml, Output, Snapshot, Sysfs
from agent.sources.errors import ParseError
from gputopo.model import NumaNode, ProblemKind

if TYPE_CHECKING:
    from agent.sources.nccl import NcclTopology
    from agent.sources.pci import PciDevice, RdmaDevice
    from agent.sources.smi.listing import Listing
    from agent.sources.smi.nvlink import GpuLinkStatus
    from agent.sources.smi.p2p import P2pMatrix
    from agent.sources.smi.query import Query
    from agent.sources.smi.topo import TopoMatrix

# nvidia-smi's arguments -> the module and function that read its output.
_PARSERS = {
    "topo -m": ("agent.sources.smi.topo", "parse_topo"),
    "-L": ("agent.sources.smi.listing", "parse_listing"),
    "-q -x": ("agent.sources.smi.query", "parse_query"),
    "nvlink -s": ("agent.sources.smi.nvlink", "parse_nvlink_status"),
    "topo -p2p n": ("agent.sources.smi.p2p", "parse_p2p"),
}


class Bus(msgspec.Struct, frozen=True):
    """What the kernel says of the machine."""

    gpus: tuple[PciDevice, ...] = ()
    switches: frozenset[str] = frozenset()  # bus ids of the NVSwitches
    rdma: tuple[RdmaDevice, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    machine: str | None = None


class Heard(msgspec.Struct, frozen=True):
    """What each source said, parsed. None: it was not asked, could not answer, or was not understood."""

    snapshot: Snapshot
    nvml: Nvml | None = None
    topo: TopoMatrix | None = None
    listing: Listing | None = None
    query: Query | None = None
    link_status: tuple[GpuLinkStatus, ...] | None = None
    p2p: P2pMatrix | None = None
    bus: Bus = Bus()
    nccl: NcclTopology | None = None


def hear(snapshot: Snapshot, witnesses: Witnesses) -> Heard:
    """Every source of the snapshot, parsed; what could not be is noted as a problem."""
    for source, error in snapshot.errors.items():
        witnesses.note(source, ProblemKind.UNKNOWN, error)
    hwloc_listing, hwloc_devices = _hwloc(snapshot.lstopo, witnesses)
    smi = {command: _parsed(command, output, witnesses) for command, output in (snapshot.smi or {}).items()}
    return Heard(
        snapshot=snapshot,
        nvml=_nvml(snapshot.nvml, witnesses),
        topo=smi.get("topo -m"),
        listing=smi.get("-L") or hwloc_listing,
        query=smi.get("-q -x"),
        link_status=smi.get("nvlink -s"),
        p2p=smi.get("topo -p2p n"),
        bus=Bus() if snapshot.sysfs is None else _bus(snapshot.sysfs),
        nccl=_nccl(snapshot.nccl, witnesses) or hwloc_devices,
    )


def _nvml(nvml: Nvml | None, witnesses: Witnesses) -> Nvml | None:
    if nvml is None or nvml.error is None:
        return nvml
    from agent.failures import from_nvml  # noqa: PLC0415  only where NVML failed

    witnesses.note("nvml", ProblemKind.UNKNOWN, f"{nvml.error}: {from_nvml(nvml.error).headline}")
    return None


def _parsed(command: str, output: Output, witnesses: Witnesses) -> Any:
    """The value of an output, of the type that ``Heard`` says; None for a command that is not in the table."""
    if command not in _PARSERS:
        return None
    module, function = _PARSERS[command]
    try:
        return getattr(import_module(module), function)(output.stdout)
    except ParseError as error:
        from agent.sources.smi.failure import classify  # noqa: PLC0415  only where nvidia-smi failed

        failure = classify(f"{output.stdout}\n{output.stderr}", output.exit_code)
        why = str(error) if failure is None else failure.headline
        witnesses.note(f"nvidia-smi {command}", ProblemKind.UNKNOWN, why)
        return None


def _bus(sysfs: Sysfs) -> Bus:
    from agent.sources import pci  # noqa: PLC0415  only where there is a /sys

    return Bus(
        gpus=pci.gpus_of(sysfs),
        switches=frozenset(switch.bus_id for switch in pci.switches_of(sysfs)),
        rdma=pci.rdma_devices_of(sysfs),
        numa_nodes=pci.numa_nodes_of(sysfs),
        machine=pci.machine_of(sysfs),
    )


def _nccl(text: str | None, witnesses: Witnesses) -> NcclTopology | None:
    if text is None:
        return None
    from agent.sources.nccl import parse_nccl  # noqa: PLC0415  only where there is such a file

    try:
        return parse_nccl(text)
    except ParseError as error:
        witnesses.note("nccl", ProblemKind.UNKNOWN, str(error))
        return None


def _hwloc(text: str | None, witnesses: Witnesses) -> tuple[Listing | None, NcclTopology | None]:
    """Hwloc's GPUs as a list, and their places and links in the shape of NCCL's."""
    if text is None:
        return None, None
    from agent.discover import hwloc  # noqa: PLC0415  only where there is such a file
    from agent.sources.lstopo import parse_lstopo  # noqa: PLC0415

    try:
        machine = parse_lstopo(text)
    except ParseError as error:
        witnesses.note("lstopo", ProblemKind.UNKNOWN, str(error))
        return None, None
    return hwloc.listing(machine), hwloc.devices(machine)
