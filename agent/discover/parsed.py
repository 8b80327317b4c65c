"""Parses the sources in a snapshot. A source that cannot be parsed does not affect the others. Pure.

A parser is imported only when its source is present, because import time is most of the start-up of the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from agent.discover.precedence import SourcePrecedence
from agent.snapshot import Nvml, Output, Snapshot, Sysfs
from agent.sources.errors import ParseError
from gputopo.model import NumaNode, ProblemKind

if TYPE_CHECKING:
    from agent.sources.nccl import NcclTopology
    from agent.sources.pci import PciDevice, RdmaDevice
    from agent.sources.smi.listing import Listing
    from agent.sources.smi.nvlink import GpuLinkStatus
    from agent.sources.smi.p2p import P2pMatrix
    from agent.sources.smi.query import SmiQuery
    from agent.sources.smi.topo import TopoMatrix

# arguments of nvidia-smi -> module and function that parse the output
_PARSERS = {
    "topo -m": ("agent.sources.smi.topo", "parse_topo"),
    "-L": ("agent.sources.smi.listing", "parse_listing"),
    "-q -x": ("agent.sources.smi.query", "parse_query"),
    "nvlink -s": ("agent.sources.smi.nvlink", "parse_nvlink_status"),
    "topo -p2p n": ("agent.sources.smi.p2p", "parse_p2p"),
}


class SysfsFacts(msgspec.Struct, frozen=True):
    """The facts of /sys."""

    gpus: tuple[PciDevice, ...] = ()
    switches: frozenset[str] = frozenset()  # bus ids of the NVSwitches
    rdma: tuple[RdmaDevice, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    machine: str | None = None


class ParsedSources(msgspec.Struct, frozen=True):
    """The parsed sources. None: not in the snapshot, failed, or not parsable."""

    snapshot: Snapshot
    nvml: Nvml | None = None
    topo: TopoMatrix | None = None
    listing: Listing | None = None
    query: SmiQuery | None = None
    link_status: tuple[GpuLinkStatus, ...] | None = None
    p2p: P2pMatrix | None = None
    sysfs: SysfsFacts = SysfsFacts()
    nccl: NcclTopology | None = None


def parse_sources(snapshot: Snapshot, precedence: SourcePrecedence) -> ParsedSources:
    """Parse every source of the snapshot; add a problem for each that fails."""
    for source, error in snapshot.errors.items():
        precedence.add_problem(source, ProblemKind.UNKNOWN, error)
    hwloc_listing, hwloc_devices = _parse_hwloc(snapshot.lstopo, precedence)
    smi = {command: _parse_output(command, output, precedence) for command, output in (snapshot.smi or {}).items()}
    return ParsedSources(
        snapshot=snapshot,
        nvml=_nvml_source(snapshot.nvml, precedence),
        topo=smi.get("topo -m"),
        listing=smi.get("-L") or hwloc_listing,
        query=smi.get("-q -x"),
        link_status=smi.get("nvlink -s"),
        p2p=smi.get("topo -p2p n"),
        sysfs=SysfsFacts() if snapshot.sysfs is None else _parse_sysfs(snapshot.sysfs),
        nccl=_parse_nccl(snapshot.nccl, precedence) or hwloc_devices,
    )


def _nvml_source(nvml: Nvml | None, precedence: SourcePrecedence) -> Nvml | None:
    if nvml is None or nvml.error is None:
        return nvml
    from agent.failures import failure_from_nvml  # noqa: PLC0415  only where NVML failed

    precedence.add_problem("nvml", ProblemKind.UNKNOWN, f"{nvml.error}: {failure_from_nvml(nvml.error).headline}")
    return None


def _parse_output(command: str, output: Output, precedence: SourcePrecedence) -> Any:
    """Return the parsed output, of the type in ``ParsedSources``; None for a command that is not in the table."""
    if command not in _PARSERS:
        return None
    module, function = _PARSERS[command]
    try:
        return getattr(import_module(module), function)(output.stdout)
    except ParseError as error:
        from agent.sources.smi.failure import classify_failure  # noqa: PLC0415  only where nvidia-smi failed

        failure = classify_failure(f"{output.stdout}\n{output.stderr}", output.exit_code)
        why = str(error) if failure is None else failure.headline
        precedence.add_problem(f"nvidia-smi {command}", ProblemKind.UNKNOWN, why)
        return None


def _parse_sysfs(sysfs: Sysfs) -> SysfsFacts:
    from agent.sources import pci  # noqa: PLC0415  only with this source

    return SysfsFacts(
        gpus=pci.find_gpus(sysfs),
        switches=frozenset(switch.bus_id for switch in pci.find_switches(sysfs)),
        rdma=pci.find_rdma_devices(sysfs),
        numa_nodes=pci.find_numa_nodes(sysfs),
        machine=pci.product_name(sysfs),
    )


def _parse_nccl(text: str | None, precedence: SourcePrecedence) -> NcclTopology | None:
    if text is None:
        return None
    from agent.sources.nccl import parse_nccl  # noqa: PLC0415  only with this source

    try:
        return parse_nccl(text)
    except ParseError as error:
        precedence.add_problem("nccl", ProblemKind.UNKNOWN, str(error))
        return None


def _parse_hwloc(text: str | None, precedence: SourcePrecedence) -> tuple[Listing | None, NcclTopology | None]:
    """Hwloc's GPUs as a listing, and their locations and links in the type of NCCL's."""
    if text is None:
        return None, None
    from agent.discover import hwloc  # noqa: PLC0415  only with this source
    from agent.sources.lstopo import parse_lstopo  # noqa: PLC0415

    try:
        machine = parse_lstopo(text)
    except ParseError as error:
        precedence.add_problem("lstopo", ProblemKind.UNKNOWN, str(error))
        return None, None
    return hwloc.to_listing(machine), hwloc.to_nccl_topology(machine)
