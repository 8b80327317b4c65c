"""NVLinks of all sources in one type, in the order of precedence NVML, ``nvidia-smi``, NCCL. Pure.

A GPU whose NVLinks NVML could not read is taken from ``topo -m``; the other GPUs stay with NVML.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from agent.discover.inventory import InventoryEntry
from agent.discover.matrix import Lanes, ports_from_lanes
from agent.discover.nvlink import PeerAccess, lanes_between
from agent.discover.parsed import ParsedSources
from agent.discover.ports import GpuPorts, lane_bandwidth, ports_from_nvml
from agent.discover.precedence import SourcePrecedence
from agent.discover.products import product_lane_bandwidth
from agent.snapshot import ABSENT_ERRORS, NvmlPair
from gputopo.model import Gpu, Nvlink, ProblemKind

if TYPE_CHECKING:
    from agent.sources.nccl import NcclGpu
    from agent.sources.smi.topo import TopoMatrix

_P2P_OK, _P2P_UNKNOWN = 0, 6  # NVML_P2P_STATUS_*
_P2P_CALL, _STATE_CALL = "nvmlDeviceGetP2PStatus", "nvmlDeviceGetNvLinkState"
_NAMED = 4  # pairs in one message; 16 GPUs have 120


class NvlinkFacts(NamedTuple):
    """The NVLink facts of all sources together."""

    ports: dict[int, GpuPorts]  # of each GPU whose NVLinks a source could read
    peers: PeerAccess
    unknown: tuple[tuple[int, int], ...]  # pairs of usable GPUs that no source describes, a < b


def collect_nvlinks(
    sources: ParsedSources, inventory: tuple[InventoryEntry, ...], gpus: tuple[Gpu, ...], precedence: SourcePrecedence
) -> NvlinkFacts:
    """Return the ports of each GPU, the pairs with NVLink peer access, and the unknown pairs."""
    by_bus_id = {each.bus_id: each.index for each in inventory if each.bus_id is not None}
    nvml = _ports_from_nvml(sources, by_bus_id)
    smi, smi_peers, gaps = _ports_from_topo(sources, tuple(each.index for each in inventory))
    nccl = {
        each.index: _ports_from_nccl(each.nccl, by_bus_id)
        for each in inventory
        if each.nccl and each.nccl.nvlinks is not None
    }
    ports = {**nccl, **smi, **nvml}
    ports = {gpu.index: _with_lane_bandwidth(ports[gpu.index], gpu, sources) for gpu in gpus if gpu.index in ports}
    ports = _without_mig_peers(ports, frozenset(gpu.index for gpu in gpus if gpu.mig_enabled))
    unread_gpus = frozenset(gpu.index for gpu in gpus if gpu.index not in ports and gpu.usable)
    _report_unread_gpus(unread_gpus, gpus, precedence)
    usable = sorted(gpu.index for gpu in gpus if gpu.usable and not gpu.mig_enabled)  # a GPU in MIG mode has no peers
    unread_pairs = {pair for pair in combinations(usable, 2) if unread_gpus.intersection(pair)}
    gaps = {pair for pair in gaps if not nvml.keys() & set(pair) and set(pair) <= set(usable)}
    peers = {**_clique_access(gpus), **smi_peers, **_peer_access(sources)}
    unread_peers = {
        pair
        for pair in _unread_peer_access(sources)
        if pair not in peers and all(end in ports and ports[end].switch for end in pair)
    }
    peers |= dict.fromkeys(unread_peers, False)  # what is unknown joins no fabric
    return NvlinkFacts(ports, peers, tuple(sorted(gaps | unread_pairs | (unread_peers & set(combinations(usable, 2))))))


def _report_unread_gpus(unread_gpus: frozenset[int], gpus: tuple[Gpu, ...], precedence: SourcePrecedence) -> None:
    """Add a problem for GPUs whose NVLinks are unknown: only one if this is true for all of them."""
    why = "no source could read its NVLinks"
    if unread_gpus and len(unread_gpus) == sum(gpu.usable for gpu in gpus):
        precedence.add_problem("nvlink", ProblemKind.UNKNOWN, "no source could read the NVLinks")
        return
    for index in sorted(unread_gpus):
        precedence.add_problem(f"gpus.{index}.nvlink", ProblemKind.UNKNOWN, why)


def _ports_from_nvml(sources: ParsedSources, by_bus_id: dict[str, int]) -> dict[int, GpuPorts]:
    gpus = sources.nvml.gpus if sources.nvml else ()
    pairs = sources.nvml.pairs if sources.nvml else ()
    linked = {end for pair in pairs if pair.p2p_nvlink == _P2P_OK for end in (pair.a, pair.b)}
    placed = all(gpu.index in by_bus_id.values() for gpu in gpus if gpu.access_error is None)
    known = {gpu.index: ports_from_nvml(gpu, by_bus_id, sources.sysfs.switches, all_placed=placed) for gpu in gpus}
    # Peer access over NVLink that works contradicts a GPU which says that it has no NVLink.
    unread = {gpu.index for gpu in gpus if gpu.index in linked and not gpu.nvlinks and _STATE_CALL in gpu.errors}
    return {index: ports for index, ports in known.items() if ports is not None and index not in unread}


def _unread_peer_access(sources: ParsedSources) -> set[tuple[int, int]]:
    """Return the pairs for which the call for NVLink peer access failed."""

    def failed(pair: NvmlPair) -> bool:
        return pair.errors.get(_P2P_CALL, "NOT_SUPPORTED") not in ABSENT_ERRORS

    return {(pair.a, pair.b) for pair in (sources.nvml.pairs if sources.nvml else ()) if failed(pair)}


def _ports_from_topo(
    sources: ParsedSources, indices: tuple[int, ...]
) -> tuple[dict[int, GpuPorts], PeerAccess, set[tuple[int, int]]]:
    """Ports and peers from ``topo -m``, and the pairs whose cell is missing."""
    if sources.topo is None or not sources.topo.nvlink_shown:
        return {}, {}, set()
    shown = tuple(gpu.index for gpu in sources.topo.gpus if gpu.index in indices)
    lanes = _printed_lanes(sources.topo, shown)
    ports, peers = ports_from_lanes(shown, lanes)
    counts = listed_ports(sources)
    ports = {index: _with_listed_ports(each, counts.get(index)) for index, each in ports.items()}
    return ports, peers, {pair for pair, number in lanes.items() if number is None}


def listed_ports(sources: ParsedSources) -> dict[int, tuple[int, int]]:
    """Return the number of active ports and of all ports that ``nvlink -s`` lists, by GPU.

    nvidia-smi leaves out links that it cannot read, and a text may be cut. So a list counts only if it has no gap and
    no unknown state, and if all GPUs of the product have as many ports.
    """
    found: dict[int, tuple[int, int]] = {}
    for product in {each.gpu.product for each in sources.link_status or ()}:
        siblings = [each for each in sources.link_status or () if each.gpu.product == product]
        numbers = {frozenset(link.link for link in each.links) for each in siblings if not each.all_inactive}
        unread = any(link.active is None for each in siblings for link in each.links)
        ports = max(map(len, numbers), default=0)
        if numbers == {frozenset(range(ports))} and ports and not unread:
            found |= {each.gpu.index: (each.active, ports) for each in siblings}
    return found


def _with_listed_ports(ports: GpuPorts, listed: tuple[int, int] | None) -> GpuPorts:
    """Add the number of ports, and the active ports that lead to no visible GPU, which ``topo -m`` does not show."""
    active, every = listed or (0, 0)
    if every < ports.active:
        return ports
    return msgspec.structs.replace(ports, ports=every, elsewhere=max(0, active - ports.active))


def compare_with_listed_ports(sources: ParsedSources, ports: Mapping[int, GpuPorts]) -> Iterator[str]:
    """Yield a message for each GPU with more lanes than it has active ports in ``nvlink -s``, and for damaged lists."""
    listed = listed_ports(sources)
    unread = [each.gpu.index for each in sources.link_status or () if not each.all_inactive]
    if unread := [index for index in unread if index not in listed]:
        yield f"nvidia-smi nvlink -s does not list all links of GPU {', '.join(map(str, sorted(unread)))}: run it again"
    for index, (active, every) in listed.items():
        if index in ports and active < ports[index].active <= every:
            more = f"{ports[index].active} active links by nvidia-smi topo -m, {active} of {every} by nvlink -s"
            yield f"GPU {index} has {more}: run both again"


def _printed_lanes(topo: TopoMatrix, indices: Collection[int]) -> Lanes:
    """The lanes of each pair as ``topo -m`` prints them; a PCIe distance counts as 0."""
    rows = [(gpu.index, row) for gpu, row in zip(topo.gpus, topo.cells, strict=True)]
    place = {index: number for number, (index, _) in enumerate(rows)}
    cells = {(a, b): row[place[b]] for a, row in rows for b in place if a < b and a in indices and b in indices}
    return {pair: cell if isinstance(cell, int) else None if cell is None else 0 for pair, cell in cells.items()}


def compare_with_topo(sources: ParsedSources, nvlink: Nvlink, precedence: SourcePrecedence) -> None:
    """Add a problem for pairs where ``topo -m`` prints other numbers of lanes than NVML reports."""
    if sources.nvml is None or sources.topo is None or not sources.topo.nvlink_shown:
        return
    found = lanes_between(nvlink)
    printed = _printed_lanes(sources.topo, {gpu.index for gpu in sources.nvml.gpus})
    differing = [
        f"GPU{a}-GPU{b}: {found.get((a, b), 0)}, not {lanes}"
        for (a, b), lanes in printed.items()
        if lanes not in (None, found.get((a, b), 0))
    ]
    if differing:
        more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
        why = f"nvidia-smi prints other lanes than NVML, which is used ({'; '.join(differing[:_NAMED])}{more})"
        precedence.add_problem("nvlink", ProblemKind.CONFLICT, why)


def _ports_from_nccl(gpu: NcclGpu, by_bus_id: dict[str, int]) -> GpuPorts:
    """Return the ports. A far end without class is the GPU with its bus id, else an assumed NVSwitch, as in NCCL."""
    from agent.sources.nccl import NvlinkEnd  # noqa: PLC0415  loaded already where this source exists

    direct: dict[int, int] = {}
    switch = hidden = elsewhere = 0
    for link in gpu.nvlinks or ():
        if link.end in (NvlinkEnd.GPU, NvlinkEnd.UNKNOWN) and link.bus_id in by_bus_id:
            peer = by_bus_id[link.bus_id]
            direct[peer] = direct.get(peer, 0) + link.lanes
        elif link.end is NvlinkEnd.GPU:
            hidden += link.lanes
        elif link.end is NvlinkEnd.CPU:
            elsewhere += link.lanes
        else:
            switch += link.lanes
    assumed = any(link.end is NvlinkEnd.UNKNOWN and link.bus_id not in by_bus_id for link in gpu.nvlinks or ())
    return GpuPorts(gpus=direct, switch=switch, assumed=assumed, hidden=hidden, elsewhere=elsewhere)


def _without_mig_peers(ports: dict[int, GpuPorts], partitioned: frozenset[int]) -> dict[int, GpuPorts]:
    """Remove links to GPUs in MIG mode, which have no NVLink peers.

    The lanes of a neighbour to such a GPU are up and lead nowhere: they are not missing.
    """
    found = {}
    for index, each in ports.items():
        idle = sum(lanes for peer, lanes in each.gpus.items() if peer in partitioned)
        peers = {peer: lanes for peer, lanes in each.gpus.items() if peer not in partitioned}
        kept = msgspec.structs.replace(each, gpus=peers, elsewhere=each.elsewhere + idle) if idle else each
        found[index] = GpuPorts() if index in partitioned else kept
    return found


def _with_lane_bandwidth(ports: GpuPorts, gpu: Gpu, sources: ParsedSources) -> GpuPorts:
    """Add the bandwidth of a lane where the source of the ports has none: from ``nvlink -s``, else from the product."""
    if ports.gbps is not None or not ports.active:
        return ports
    printed = {
        link.mbps
        for each in sources.link_status or ()
        if each.gpu.index == gpu.index
        for link in each.links
        if link.mbps
    }
    rate = lane_bandwidth(printed.pop()) if len(printed) == 1 else product_lane_bandwidth(gpu.product)
    return msgspec.structs.replace(ports, gbps=rate)


def _peer_access(sources: ParsedSources) -> PeerAccess:
    pairs = sources.nvml.pairs if sources.nvml else ()
    known = {(p.a, p.b): p.p2p_nvlink == _P2P_OK for p in pairs if p.p2p_nvlink not in (None, _P2P_UNKNOWN)}
    if known or sources.p2p is None:
        return known
    from agent.sources.smi.p2p import P2pStatus  # noqa: PLC0415  loaded already where this source exists

    cells = {
        (a, b): sources.p2p.status[i][j] for (i, a), (j, b) in combinations(enumerate(sources.p2p.gpus), 2) if a < b
    }
    return {pair: cell is P2pStatus.OK for pair, cell in cells.items() if cell not in (None, P2pStatus.UNKNOWN)}


def _clique_access(gpus: tuple[Gpu, ...]) -> PeerAccess:
    """GPUs in different cliques of a multi-node fabric cannot reach each other over it."""
    known = {gpu.index: (gpu.fabric.cluster_uuid, gpu.fabric.clique) for gpu in gpus if gpu.fabric}
    return {(a, b): False for a, b in combinations(sorted(known), 2) if known[a] != known[b]}
