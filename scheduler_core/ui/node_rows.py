"""A node of the cluster cache as a row of GPU cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from typing import NamedTuple

from gputopo.model import MAX_GPUS, NodeTopology
from gputopo.render.report import age_words
from gputopo.render.wording import degraded_gpus
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, certainly_free
from scheduler_core.allocation.machine_shape import places_by_uuid
from scheduler_core.cache.free_islands import min_free
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState, kubelet_report_of, whole_gpu_shape
from scheduler_core.cache.staleness import observed_at
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.packing.topology_domains import domain_of
from scheduler_core.request.device_request import WHOLE
from scheduler_core.ui.model import GpuCell, GpuState, IslandCells, NodeRow, PodOnNode

MAX_CELLS = 64  # of a node whose GPUs are only counted
_GROUP_LEVELS = ("block", "rack", "clique")  # widest first
GpuUse = tuple[GpuState, tuple[int, ...]]  # state, and the places of the pods that hold the GPU


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
    row = NodeRow(
        name=record.name,
        product=None,
        islands=(),
        pods=pods,
        notes=_notes(node, now),
        domains=_domains(node.rules),
        draining=node.rules is not None and bool(node.rules.unusable),
        allocatable=devices,
    )
    if topology is None:
        cells = tuple(GpuCell(None, GpuState.UNKNOWN) for _ in range(min(devices, MAX_CELLS)))
        return row._replace(islands=(IslandCells(cells, joined=False),))
    free, in_one_island = _free(node.state)
    row = row._replace(
        product=_product(topology),
        islands=_islands(topology, _cells(node, topology, pods, place_of), node.state),
        free=free,
        in_one_island=in_one_island,
        faults=tuple(f"{each.what}: {each.why}" for each in topology.degraded),
    )
    return _without_free_gpus(row) if row.draining else row


def _without_free_gpus(row: NodeRow) -> NodeRow:
    """Return the row of a node that takes no new pods: its unused GPUs are not free."""
    states = {GpuState.FREE: GpuState.DRAINING}
    islands = tuple(
        island._replace(
            cells=tuple(cell._replace(state=states.get(cell.state, cell.state)) for cell in island.cells),
            free=None if island.free is None else 0,
        )
        for island in row.islands
    )
    known = row.free is not None
    return row._replace(islands=islands, free=0 if known else None, in_one_island=0 if known else None)


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


def _cells(
    node: NodeInput, topology: NodeTopology, pods: Sequence[PodOnNode], place_of: Mapping[str, int]
) -> tuple[GpuCell, ...]:
    degraded = degraded_gpus(topology)
    uses = _whole_uses(node, place_of)
    if uses is None:
        uses = _shared_uses(node.record, topology, pods)
    cells = []
    for place, gpu in enumerate(topology.gpus):
        state, holders = uses[place] if gpu.usable else (GpuState.UNAVAILABLE, ())
        cells.append(GpuCell(gpu.index, state, gpu.index in degraded, holders))
    return tuple(cells)


def _whole_uses(node: NodeInput, place_of: Mapping[str, int]) -> list[GpuUse] | None:
    """Return the use of each GPU by place; None where the node shares or partitions GPUs, or they are not known."""
    shape = whole_gpu_shape(node.record)
    free = (node.state.unreserved or node.state).free
    shares = any(number and resource != WHOLE for resource, number in node.record.machine.allocatable)
    if shape is None or shares or free is None or node.state.shape is None:
        return None
    report = kubelet_report_of(node.record)
    allocated = {} if report is None else {place_of[uid]: mask for uid, mask in report.allocated.items()}
    withdrawn = 0 if report is None else report.withdrawn
    uses: list[GpuUse] = []
    for place in range(len(shape.gpus)):
        holders = tuple(pod for pod, mask in allocated.items() if mask >> place & 1)
        if holders:
            uses.append((GpuState.USED, holders))
        elif withdrawn >> place & 1:
            uses.append((GpuState.UNAVAILABLE, ()))
        else:
            state = _state_of_free(place, free, node.state)
            uses.append((GpuState.UNKNOWN if report is None and state is GpuState.PENDING else state, ()))
    return uses


def _state_of_free(place: int, free: Sets, state: NodeState) -> GpuState:
    """Return the state of a GPU that no reported pod holds. ``free``: without reservations."""
    if state.stale:
        return GpuState.UNKNOWN
    certain, possible = _bounds(free)
    if not possible >> place & 1:
        return GpuState.USED
    if not certain >> place & 1:
        return GpuState.PENDING
    if state.unreserved is None or state.free is None:
        return GpuState.FREE
    certain, possible = _bounds(state.free)
    if certain >> place & 1:
        return GpuState.FREE
    return GpuState.MAY_BE_RESERVED if possible >> place & 1 else GpuState.RESERVED


def _bounds(free: Sets) -> tuple[int, int]:
    """Return the GPUs that are free in every possible set, and those that are free in some."""
    if isinstance(free, ExactSets):
        return certainly_free(free), free.among
    return (free.among if free.size == free.among.bit_count() else 0), free.among


def _shared_uses(record: NodeRecord, topology: NodeTopology, pods: Sequence[PodOnNode]) -> list[GpuUse]:
    allocations = None if record.gpus is None else record.gpus.allocations
    if allocations is None:
        return [(GpuState.UNKNOWN, ())] * len(topology.gpus)
    holders: dict[str, set[tuple[str, str]]] = {}
    shared = set()
    for each in allocations:
        holders.setdefault(each.gpu, set()).add((each.pod.namespace, each.pod.name))
        if each.replica is not None or each.mig_device is not None:
            shared.add(each.gpu)
    place_of = {(pod.namespace, pod.name): place for place, pod in enumerate(pods)}
    uses: list[GpuUse] = []
    for gpu in topology.gpus:
        names = holders.get(gpu.uuid or "", set())
        known = tuple(sorted(place_of[name] for name in names if name in place_of))
        state = GpuState.FREE if not names else GpuState.SHARED if gpu.uuid in shared else GpuState.USED
        uses.append((state, known))
    return uses


def _free(state: NodeState) -> tuple[int | None, int | None]:
    """Return how many whole GPUs are certainly free, and how many of them in one island; None: unknown."""
    free, shape = state.free, state.shape
    if free is None or shape is None or state.stale:
        return None, None
    number = min_free(free, shape.whole)
    if shape.islands is None:
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
        notes.append("no agent")
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
