"""The order of devices in the drawing: rows of NUMA boxes of PCIe switches of GPUs. No coordinates yet.

A box is a NUMA node with its GPUs and NICs; devices of unknown NUMA nodes are in the box "NUMA ?". A switch is a set of
GPUs and NICs without a host bridge between them (PIX or PXB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.model import PcieDistance
from gputopo.render.wording import escape_invisible, format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import Gpu, Nic, NodeTopology, NumaNode

NEAR = (PcieDistance.PIX, PcieDistance.PXB)  # no host bridge in between
_LOCAL = (PcieDistance.PHB, PcieDistance.NODE)  # the same NUMA node
_UNKNOWN = "?"


class Switch(NamedTuple):
    """GPUs and NICs behind the same PCIe switches, or a GPU without a switch."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    distance: PcieDistance | None  # the largest within; None: no box is drawn


class NumaBox(NamedTuple):
    """A NUMA node with its devices."""

    label: str  # "NUMA 0", "NUMA ?"
    detail: str  # its CPUs and memory, as far as known; may be ""
    switches: tuple[Switch, ...]
    nics: tuple[Nic, ...]  # those behind no switch of this box


class Arrangement(NamedTuple):
    """All boxes: rows of boxes with GPUs, from top to bottom, and boxes without GPUs."""

    rows: tuple[tuple[NumaBox, ...], ...]
    spare: tuple[NumaBox, ...]  # NUMA nodes without GPUs, by id
    single: bool  # one box holds every GPU: draw it around all rows


def arrange_boxes(topology: NodeTopology) -> Arrangement:
    """Sort GPUs and NICs into boxes, and the boxes with GPUs into rows of four to eight GPUs."""
    homes: dict[str, list[Gpu]] = {}
    for gpu in topology.gpus:
        homes.setdefault(_home(gpu), []).append(gpu)
    nodes = {str(node.id): node for node in topology.numa_nodes}
    guests = _nic_homes(topology, homes)
    boxes = tuple(_box(key, members, guests.pop(key, []), (topology, nodes)) for key, members in homes.items())
    spare_keys = sorted({*guests, *_cpu_nodes(topology)} - set(homes), key=lambda key: (len(key), key))
    spare = tuple(_box(key, [], guests.get(key, []), (topology, nodes)) for key in spare_keys)
    return Arrangement(_rows(boxes, len(topology.gpus)), spare, len(boxes) == 1)


def _home(gpu: Gpu) -> str:
    return str(gpu.numa_node) if gpu.numa_node is not None else gpu.numa_affinity or _UNKNOWN


def _cpu_nodes(topology: NodeTopology) -> list[str]:
    """Return the NUMA nodes, except those that are only the memory of a GPU."""
    memory = {gpu.memory_numa_node for gpu in topology.gpus}
    return [str(node.id) for node in topology.numa_nodes if node.cpus != "" and node.id not in memory]


def _nic_homes(topology: NodeTopology, homes: dict[str, list[Gpu]]) -> dict[str, list[Nic]]:
    """Put each NIC into the box of its nearest GPU if they share a switch or host, else into the box of its node."""
    box_of = {gpu.index: key for key, members in homes.items() for gpu in members}
    guests: dict[str, list[Nic]] = {}
    for nic in topology.nics:
        near, local = _nearest(topology, nic, NEAR), _nearest(topology, nic, _LOCAL)
        if near:
            key = box_of[near[0].index]
        elif nic.numa_node is not None:
            key = str(nic.numa_node)
        else:
            key = box_of[local[0].index] if local else _UNKNOWN
        guests.setdefault(key, []).append(nic)
    return guests


def _nearest(topology: NodeTopology, nic: Nic, within: tuple[PcieDistance, ...]) -> list[Gpu]:
    pairs = [pair for pair in zip(nic.distances, topology.gpus, strict=True) if pair[0] in within]
    return [gpu for far in within for distance, gpu in pairs if distance is far]


def _box(key: str, members: list[Gpu], nics: list[Nic], context: tuple[NodeTopology, dict[str, NumaNode]]) -> NumaBox:
    topology, nodes = context
    switches = _switches(topology, members, nics)
    switched = {id(nic) for switch in switches for nic in switch.nics}
    loose = tuple(nic for nic in nics if id(nic) not in switched)
    return NumaBox(f"NUMA {escape_invisible(key)}", _detail(nodes.get(key), members), switches, loose)


def _detail(node: NumaNode | None, members: list[Gpu]) -> str:
    affinities = {gpu.cpu_affinity for gpu in members}
    shared = affinities.pop() if len(affinities) == 1 else None
    cpus = node.cpus if node is not None and node.cpus else shared
    memory = None if node is None else node.memory_mib
    parts = [f"CPUs {escape_invisible(cpus)}"] if cpus else []
    return " · ".join(parts + ([format_gib(memory)] if memory else []))


def _switches(topology: NodeTopology, members: list[Gpu], nics: list[Nic]) -> tuple[Switch, ...]:
    """Return the connected components of "no host bridge between them", by their first GPU.

    A NIC near two GPUs connects them: `topo -m` hides the distance of GPUs that have an NVLink.
    """
    place = {gpu.index: i for i, gpu in enumerate(topology.gpus)}

    def near(a: Gpu, b: Gpu) -> bool:
        shared = (each.distances[place[a.index]] in NEAR and each.distances[place[b.index]] in NEAR for each in nics)
        return topology.distance(a.index, b.index) in NEAR or any(shared)

    left = list(members)
    switches = []
    while left:
        group = [left.pop(0)]
        for gpu in group:  # grows during the iteration
            joined = [other for other in left if near(gpu, other)]
            group += joined
            left = [other for other in left if other not in joined]
        here = tuple(nic for nic in nics if any(nic.distances[place[gpu.index]] in NEAR for gpu in group))
        switches.append(_switch(topology, tuple(sorted(group, key=lambda gpu: gpu.index)), here))
        taken = {id(nic) for nic in here}
        nics = [nic for nic in nics if id(nic) not in taken]
    return tuple(switches)


def _switch(topology: NodeTopology, group: tuple[Gpu, ...], nics: tuple[Nic, ...]) -> Switch:
    place = {gpu.index: i for i, gpu in enumerate(topology.gpus)}
    distances = [topology.distance(a.index, b.index) for a in group for b in group]
    distances += [nic.distances[place[gpu.index]] for nic in nics for gpu in group]
    if PcieDistance.PXB in distances:
        return Switch(group, nics, PcieDistance.PXB)
    return Switch(group, nics, PcieDistance.PIX if PcieDistance.PIX in distances else None)


def _rows(boxes: tuple[NumaBox, ...], count: int) -> tuple[tuple[NumaBox, ...], ...]:
    """Return two rows for 5 to 16 GPUs, of whole boxes unless a row gets very long; else rows of eight."""
    best = 4 if count <= 4 else min(8, -(-count // 2))
    if len(boxes) > 1 and count <= 16:
        for capacity in range(best, 9):
            rows = _fill(boxes, capacity)
            if len(rows) <= 2 and all(_size(row) <= capacity for row in rows):
                return rows
    return _fill(tuple(part for box in boxes for part in _split(box, best)), best)


def _fill(boxes: Sequence[NumaBox], capacity: int) -> tuple[tuple[NumaBox, ...], ...]:
    rows: list[list[NumaBox]] = []
    for box in boxes:
        if not rows or _size([*rows[-1], box]) > capacity:
            rows.append([])
        rows[-1].append(box)
    return tuple(tuple(row) for row in rows)


def _size(row: Sequence[NumaBox]) -> int:
    return sum(len(switch.gpus) for box in row for switch in box.switches)


def _split(box: NumaBox, capacity: int) -> tuple[NumaBox, ...]:
    """Split a box into boxes of at most ``capacity`` GPUs; its NICs stay with the first box."""
    parts: list[list[Switch]] = [[]]
    room = capacity
    for switch in box.switches:
        rest = switch
        while rest.gpus:
            if room == 0 or (len(rest.gpus) > room and len(rest.gpus) <= capacity and room < capacity):
                parts.append([])
                room = capacity
            head = rest._replace(gpus=rest.gpus[:room])
            parts[-1].append(head)
            room -= len(head.gpus)
            rest = rest._replace(gpus=rest.gpus[len(head.gpus) :], nics=())
    first = NumaBox(box.label, box.detail, tuple(parts[0]), box.nics)
    return (first, *(NumaBox(box.label, "continued", tuple(part), ()) for part in parts[1:]))
