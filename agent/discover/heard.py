"""Parsing what a snapshot holds verbatim, source by source; one that cannot be understood costs only itself. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from agent.discover.witnesses import Witnesses
from agent.failures import from_nvml
from agent.snapshot import Nvml, Output, Snapshot
from agent.sources import pci
from agent.sources.nccl import NcclTopology, parse_nccl
from agent.sources.smi.errors import ParseError
from agent.sources.smi.failure import classify
from agent.sources.smi.listing import Listing, parse_listing
from agent.sources.smi.nvlink import GpuLinkStatus, parse_nvlink_status
from agent.sources.smi.p2p import P2pMatrix, parse_p2p
from agent.sources.smi.query import Query, parse_query
from agent.sources.smi.topo import TopoMatrix, parse_topo
from gputopo.model import ProblemKind

T = TypeVar("T")


class Heard(NamedTuple):
    """What each source said, parsed. None: it was not asked, could not answer, or was not understood."""

    snapshot: Snapshot
    nvml: Nvml | None = None
    topo: TopoMatrix | None = None
    listing: Listing | None = None
    query: Query | None = None
    link_status: tuple[GpuLinkStatus, ...] = ()
    p2p: P2pMatrix | None = None
    pci_gpus: tuple[pci.PciDevice, ...] = ()
    nccl: NcclTopology | None = None


def hear(snapshot: Snapshot, witnesses: Witnesses) -> Heard:
    """Every source of the snapshot, parsed; what could not be is noted as a problem."""
    nvml = snapshot.nvml
    if nvml is not None and nvml.error is not None:
        witnesses.note("nvml", ProblemKind.UNKNOWN, f"{nvml.error}: {from_nvml(nvml.error).headline}")
        nvml = None
    for source, error in snapshot.errors.items():
        witnesses.note(source, ProblemKind.UNKNOWN, error)
    smi = snapshot.smi or {}
    return Heard(
        snapshot=snapshot,
        nvml=nvml,
        topo=_parsed("topo -m", smi, parse_topo, witnesses),
        listing=_parsed("-L", smi, parse_listing, witnesses),
        query=_parsed("-q -x", smi, parse_query, witnesses),
        link_status=_parsed("nvlink -s", smi, parse_nvlink_status, witnesses) or (),
        p2p=_parsed("topo -p2p n", smi, parse_p2p, witnesses),
        pci_gpus=() if snapshot.sysfs is None else pci.gpus_of(snapshot.sysfs),
        nccl=_nccl(snapshot.nccl, witnesses),
    )


def _parsed(command: str, smi: dict[str, Output], parse: Callable[[str], T], witnesses: Witnesses) -> T | None:
    output = smi.get(command)
    if output is None:
        return None
    what = f"nvidia-smi {command}"
    failure = classify(f"{output.stdout}\n{output.stderr}", output.exit_code)
    if failure is not None:
        witnesses.note(what, ProblemKind.UNKNOWN, failure.headline)
        return None
    try:
        return parse(output.stdout)
    except ParseError as error:
        witnesses.note(what, ProblemKind.UNKNOWN, str(error))
        return None


def _nccl(text: str | None, witnesses: Witnesses) -> NcclTopology | None:
    try:
        return None if text is None else parse_nccl(text)
    except ParseError as error:
        witnesses.note("nccl", ProblemKind.UNKNOWN, str(error))
        return None
