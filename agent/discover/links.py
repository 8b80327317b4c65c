"""What every source says of NVLinks, put into one shape and believed in order: NVML, ``nvidia-smi``, NCCL. Pure.

A GPU whose NVLinks NVML could not read is taken from ``topo -m``, and its siblings stay with NVML.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agent.discover.inventory import Sighting
from agent.discover.matrix import Lanes, matrix_ports
from agent.discover.nvlink import PeerAccess, lanes_between
from agent.discover.parsed import Heard
from agent.discover.ports import GpuPorts, lane_gbps, nvml_ports
from agent.discover.precedence import Witnesses
from agent.discover.products import lane_gbps as product_gbps
from gputopo.model import Gpu, Nvlink, ProblemKind

if TYPE_CHECKING:
    from agent.sources.nccl import NcclGpu
    from agent.sources.smi.topo import TopoMatrix

_P2P_OK, _P2P_UNKNOWN = 0, 6  # NVML_P2P_STATUS_*
_NAMED = 4  # pairs in one message; a whole matrix of 16 GPUs has 120


class Told(NamedTuple):
    """What the sources together tell of NVLinks."""

    ports: dict[int, GpuPorts]  # of each GPU that any source could tell of
    peers: PeerAccess
    unknown: tuple[tuple[int, int], ...]  # pairs of usable GPUs of which nobody told, a < b


def told(heard: Heard, seen: tuple[Sighting, ...], gpus: tuple[Gpu, ...], witnesses: Witnesses) -> Told:
    """The ports of each GPU, between which GPUs NVLink peer access works, and of which pairs nothing is known."""
    by_bus_id = {each.bus_id: each.index for each in seen if each.bus_id is not None}
    nvml = _nvml(heard, by_bus_id)
    smi, smi_peers, gaps = _smi(heard, tuple(each.index for each in seen))
    nccl = {each.index: _nccl(each.nccl, by_bus_id) for each in seen if each.nccl and each.nccl.nvlinks is not None}
    ports = {**nccl, **smi, **nvml}
    ports = {gpu.index: _with_rate(ports[gpu.index], gpu, heard) for gpu in gpus if gpu.index in ports}
    ports = _without_partitioned(ports, frozenset(gpu.index for gpu in gpus if gpu.mig_enabled))
    silent = frozenset(gpu.index for gpu in gpus if gpu.index not in ports and gpu.usable)
    _note(silent, gpus, witnesses)
    usable = sorted(gpu.index for gpu in gpus if gpu.usable and not gpu.mig_enabled)  # MIG has no peers
    unread = {pair for pair in combinations(usable, 2) if silent.intersection(pair)}
    gaps = {pair for pair in gaps if not nvml.keys() & set(pair) and set(pair) <= set(usable)}
    return Told(ports, {**_cliques(gpus), **smi_peers, **_p2p(heard)}, tuple(sorted(gaps | unread)))


def _note(silent: frozenset[int], gpus: tuple[Gpu, ...], witnesses: Witnesses) -> None:
    """Say whose NVLinks are not known: once where it is all of them."""
    why = "no source could read its NVLinks"
    if silent and len(silent) == sum(gpu.usable for gpu in gpus):
        witnesses.note("nvlink", ProblemKind.UNKNOWN, "no source could read the NVLinks")
        return
    for index in sorted(silent):
        witnesses.note(f"gpus.{index}.nvlink", ProblemKind.UNKNOWN, why)


def _nvml(heard: Heard, by_bus_id: dict[str, int]) -> dict[int, GpuPorts]:
    gpus = heard.nvml.gpus if heard.nvml else ()
    told = {gpu.index: nvml_ports(gpu, by_bus_id, heard.bus.switches) for gpu in gpus}
    return {index: ports for index, ports in told.items() if ports is not None}


def _smi(heard: Heard, indices: tuple[int, ...]) -> tuple[dict[int, GpuPorts], PeerAccess, set[tuple[int, int]]]:
    """Ports and peers from ``topo -m``, and the pairs whose cell is missing from it."""
    if heard.topo is None or not heard.topo.nvlink_shown:
        return {}, {}, set()
    shown = tuple(gpu.index for gpu in heard.topo.gpus if gpu.index in indices)
    lanes = _printed(heard.topo, shown)
    ports, peers = matrix_ports(shown, lanes)
    return ports, peers, {pair for pair, number in lanes.items() if number is None}


def _printed(topo: TopoMatrix, indices: Collection[int]) -> Lanes:
    """The lanes of each pair as ``topo -m`` prints them: a PCIe distance is none."""
    rows = [(gpu.index, row) for gpu, row in zip(topo.gpus, topo.cells, strict=True)]
    place = {index: number for number, (index, _) in enumerate(rows)}
    cells = {(a, b): row[place[b]] for a, row in rows for b in place if a < b and a in indices and b in indices}
    return {pair: cell if isinstance(cell, int) else None if cell is None else 0 for pair, cell in cells.items()}


def compare(heard: Heard, nvlink: Nvlink, witnesses: Witnesses) -> None:
    """Note the pairs of whose NVLinks ``topo -m`` prints another number of lanes than NVML's ports make."""
    if heard.nvml is None or heard.topo is None or not heard.topo.nvlink_shown:
        return
    found = lanes_between(nvlink)
    printed = _printed(heard.topo, {gpu.index for gpu in heard.nvml.gpus})
    odd = [
        f"GPU{a}-GPU{b}: {found.get((a, b), 0)}, not {lanes}"
        for (a, b), lanes in printed.items()
        if lanes not in (None, found.get((a, b), 0))
    ]
    if odd:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        why = (
            f"NVML's ports are believed, and nvidia-smi prints other numbers of lanes ({'; '.join(odd[:_NAMED])}{more})"
        )
        witnesses.note("nvlink", ProblemKind.CONFLICT, why)


def _nccl(gpu: NcclGpu, by_bus_id: dict[str, int]) -> GpuPorts:
    """NCCL takes a far end that it cannot see for an NVSwitch, as we do."""
    from agent.sources.nccl import NvlinkEnd  # noqa: PLC0415  loaded already where there is such a file

    direct: dict[int, int] = {}
    switch = hidden = elsewhere = 0
    for link in gpu.nvlinks or ():
        if link.end is NvlinkEnd.GPU and link.bus_id in by_bus_id:
            direct[by_bus_id[link.bus_id]] = link.lanes
        elif link.end is NvlinkEnd.GPU:
            hidden += link.lanes
        elif link.end is NvlinkEnd.CPU:
            elsewhere += link.lanes
        else:
            switch += link.lanes
    return GpuPorts(gpus=direct, switch=switch, hidden=hidden, elsewhere=elsewhere)


def _without_partitioned(ports: dict[int, GpuPorts], partitioned: frozenset[int]) -> dict[int, GpuPorts]:
    """In MIG mode a GPU has no NVLink peers, and what it says of its ports is not what its neighbours say.

    A neighbour's lanes to it are up and lead nowhere: they are not missing.
    """
    found = {}
    for index, each in ports.items():
        idle = sum(lanes for peer, lanes in each.gpus.items() if peer in partitioned)
        peers = {peer: lanes for peer, lanes in each.gpus.items() if peer not in partitioned}
        kept = msgspec.structs.replace(each, gpus=peers, elsewhere=each.elsewhere + idle) if idle else each
        found[index] = GpuPorts() if index in partitioned else kept
    return found


def _with_rate(ports: GpuPorts, gpu: Gpu, heard: Heard) -> GpuPorts:
    """The bandwidth of a lane where the source of the ports did not tell it: ``nvlink -s``, else the product's."""
    if ports.gbps is not None or not ports.active:
        return ports
    printed = {
        link.mbps for each in heard.link_status or () if each.gpu.index == gpu.index for link in each.links if link.mbps
    }
    rate = lane_gbps(printed.pop()) if len(printed) == 1 else product_gbps(gpu.product)
    return msgspec.structs.replace(ports, gbps=rate)


def _p2p(heard: Heard) -> PeerAccess:
    pairs = heard.nvml.pairs if heard.nvml else ()
    told = {(p.a, p.b): p.p2p_nvlink == _P2P_OK for p in pairs if p.p2p_nvlink not in (None, _P2P_UNKNOWN)}
    if told or heard.p2p is None:
        return told
    from agent.sources.smi.p2p import P2pStatus  # noqa: PLC0415  loaded already where there is such a matrix

    cells = {(a, b): heard.p2p.status[i][j] for (i, a), (j, b) in combinations(enumerate(heard.p2p.gpus), 2) if a < b}
    return {pair: cell is P2pStatus.OK for pair, cell in cells.items() if cell not in (None, P2pStatus.UNKNOWN)}


def _cliques(gpus: tuple[Gpu, ...]) -> PeerAccess:
    """GPUs in different cliques of a multi-node fabric do not reach each other over it."""
    known = {gpu.index: (gpu.fabric.cluster_uuid, gpu.fabric.clique) for gpu in gpus if gpu.fabric}
    return {(a, b): False for a, b in combinations(sorted(known), 2) if known[a] != known[b]}
