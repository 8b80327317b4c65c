"""A node of the cluster cache as a row of GPU cells. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isinf
from typing import NamedTuple

from gputopo.kube.taints import is_draining
from gputopo.model import MAX_GPUS, NodeTopology
from gputopo.render.report import age_words
from gputopo.render.wording import degraded_gpus
from scheduler_core.allocation.machine_shape import places_by_uuid
from scheduler_core.cache.free_islands import min_free
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.staleness import observed_at
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.packing.topology_domains import domain_of
from scheduler_core.ui.gpu_uses import GpuUse, GpuUses, counted_gpu_uses, shared_gpu_uses, whole_gpu_uses
from scheduler_core.ui.model import GpuCell, GpuState, IslandCells, NodeRow, PodOnNode

MAX_CELLS = 64  # of a node whose GPUs are only counted
_GROUP_LEVELS = ("block", "rack", "clique")  # widest first


class NodeInput(NamedTuple):
    """Everything that a row is made of."""

    record: NodeRecord  # with reserved pods
    state: NodeState
    rules: FullNode | None


def node_row(node: NodeInput, now: float) -> NodeRow | None:
    """Return the row of a node; None if it has no GPU. ``now``: seconds since 1970."""
    record = node.record
    topology = record.machine.topology
    devices = sum(number for _, number in record.machine.allocatable)
    if devices == 0 and (topology is None or not topology.gpus):
        return None
    pods, place_of = _pods(record, _first_gpus(record))
    unusable = () if node.rules is None else node.rules.unusable
    row = NodeRow(
        name=record.name,
        product=None,
        islands=(),
        pods=pods,
        notes=_notes(node, now),
        domains=_domains(node.rules),
        draining=is_draining(unusable),
        tainted=bool(unusable) and not is_draining(unusable),
        allocatable=devices,
    )
    if topology is None:
        uses = counted_gpu_uses(record, MAX_CELLS)
        cells = tuple(GpuCell(None, state) for state, _ in uses.uses)
        row = row._replace(
            islands=(IslandCells(cells, joined=False),),
            free=None if uses.counts[GpuState.UNKNOWN] else uses.counts[GpuState.FREE],
            counts=_sorted(uses.counts),
        )
        return _without_free_gpus(row, 0) if unusable else row
    free, in_one_island = _free(node.state)
    uses = _gpu_uses(node, topology, pods, place_of)
    lost = sum(not gpu.usable for gpu in topology.gpus)
    row = row._replace(
        product=_product(topology),
        islands=_islands(topology, _cells(topology, uses.uses), node.state),
        free=free,
        in_one_island=in_one_island,
        faults=tuple(f"{each.what}: {each.why}" for each in topology.degraded),
        counts=_sorted(uses.counts + Counter({GpuState.UNAVAILABLE: lost})),
    )
    return _without_free_gpus(row, lost) if unusable else row


def _sorted(counts: Mapping[GpuState, int]) -> tuple[tuple[GpuState, int], ...]:
    return tuple((state, counts[state]) for state in GpuState if counts.get(state))


def _without_free_gpus(row: NodeRow, lost: int) -> NodeRow:
    """Return the row of a node that takes no new pods: its unused GPUs are not free. ``lost``: unusable GPUs.

    Device plugins do not run on a node with such a taint, so GPUs that are not offered there are not faulty.
    """
    unused = GpuState.DRAINING if row.draining else GpuState.TAINTED
    states = {GpuState.FREE: unused}
    if row.tainted and not row.allocatable and not lost:
        states[GpuState.UNAVAILABLE] = unused
    counts = Counter[GpuState]()
    for state, number in row.counts:
        counts[states.get(state, state)] += number
    islands = tuple(
        island._replace(
            cells=tuple(cell._replace(state=states.get(cell.state, cell.state)) for cell in island.cells),
            free=None if island.free is None else 0,
        )
        for island in row.islands
    )
    known = row.free is not None
    in_one_island = None if row.in_one_island is None else 0
    return row._replace(islands=islands, free=0 if known else None, in_one_island=in_one_island, counts=_sorted(counts))


def _first_gpus(record: NodeRecord) -> dict[tuple[str, str], int]:
    """Return the place of the first GPU of each pod with a reported GPU."""
    topology, allocations = record.machine.topology, (record.gpus and record.gpus.allocations) or ()
    places = places_by_uuid(topology)
    found: dict[tuple[str, str], int] = {}
    for each in allocations:
        pod = each.pod.namespace, each.pod.name
        found[pod] = min(found.get(pod, MAX_GPUS), places.get(each.gpu, MAX_GPUS))
    return found


def _pods(
    record: NodeRecord, first_gpus: Mapping[tuple[str, str], int]
) -> tuple[tuple[PodOnNode, ...], dict[str, int]]:
    """Return the pods of a node in the order of their GPUs, and the place of each by UID. A capacity hold is no pod."""
    found = sorted(
        (
            first_gpus.get((each.namespace, each.name), MAX_GPUS),
            PodOnNode(
                each.namespace,
                each.name,
                sum(number for _, number in each.profile.device_request.totals),
                each.uid in record.reserved,
            ),
            each.uid,
        )
        for each in record.pods
        if not is_hold(each.uid)
    )
    return tuple(pod for _, pod, _ in found), {uid: place for place, (_, _, uid) in enumerate(found)}


def _gpu_uses(
    node: NodeInput, topology: NodeTopology, pods: Sequence[PodOnNode], place_of: Mapping[str, int]
) -> GpuUses:
    found = whole_gpu_uses(node.record, node.state, place_of)
    return shared_gpu_uses(node.record, topology, pods) if found is None else found


def _cells(topology: NodeTopology, uses: Sequence[GpuUse]) -> tuple[GpuCell, ...]:
    degraded = degraded_gpus(topology)
    cells = []
    for place, gpu in enumerate(topology.gpus):
        state, holders = uses[place] if gpu.usable else (GpuState.UNAVAILABLE, ())
        cells.append(GpuCell(gpu.index, state, gpu.index in degraded, holders))
    return tuple(cells)


def _free(state: NodeState) -> tuple[int | None, int | None]:
    """Return how many whole GPUs are certainly free, and how many of them in one island; None: unknown.

    The number is known by the pods' requests even if the last report is too old.
    """
    free, shape = state.free, state.shape
    if free is None or shape is None:
        return None, None
    number = min_free(free, shape.whole)
    if shape.islands is None or state.stale:
        return number, None
    return number, max((min_free(free, island) for island in shape.islands), default=0)


def _islands(topology: NodeTopology, cells: tuple[GpuCell, ...], state: NodeState) -> tuple[IslandCells, ...]:
    known = topology.islands
    if known is None:
        return (IslandCells(cells, joined=False),)
    by_index = {cell.gpu: cell for cell in cells}
    masks = (state.shape.islands if state.shape is not None else None) or ()
    free = state.free
    islands = []
    for place, each in enumerate(known):
        number = None if free is None or state.stale or place >= len(masks) else min_free(free, masks[place])
        islands.append(IslandCells(tuple(by_index[index] for index in each.gpus), each.size > 1, number))
    joined = {index for each in known for index in each.gpus}
    islands += [IslandCells((cell,), joined=False) for cell in cells if cell.gpu not in joined]
    return tuple(islands)


def _product(topology: NodeTopology) -> str | None:
    products = dict.fromkeys((gpu.product or "").removeprefix("NVIDIA ") for gpu in topology.gpus)
    return ", ".join(filter(None, products)) or None


def _notes(node: NodeInput, now: float) -> tuple[str, ...]:
    notes: list[str] = []
    rules, record = node.rules, node.record
    if rules is not None:
        notes += rules.unusable
    if record.gpus is None:
        notes.append("no report")
    elif node.state.stale:
        at = observed_at(record.gpus)
        notes.append("no valid report" if isinf(at) else f"no report for {age_words(max(0.0, now - at))}")
    if record.machine.annotation_error is not None:
        notes.append("its topology annotation is invalid")
    return tuple(notes)


def _domains(rules: FullNode | None) -> tuple[tuple[str, str], ...]:
    labels = {} if rules is None else rules.metadata.labels or {}
    found = ((level, domain_of(labels, level, LEVELS)) for level in _GROUP_LEVELS)
    return tuple((level, value) for level, value in found if value is not None)
