"""The values of the cluster page. Unknown is None. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.render.wording import counted_noun
from scheduler_core.explain.model import ReservedGpus
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.planner.report.preemptions import PreemptionSummary


class GpuState(Enum):
    """The state of one GPU: its present availability."""

    FREE = "free"
    RESERVED = "reserved"  # free, and kept for a gang or a planned pod
    MAY_BE_RESERVED = "may be reserved"  # free; the kubelet takes the reserved GPUs from these
    DRAINING = "draining"  # free, but the node takes no new pods
    USED = "used"
    PENDING = "pending"  # a pod was bound or ended; the kubelet has not reported the GPUs yet
    SHARED = "shared"  # pods hold shares or MIG devices of it
    UNAVAILABLE = "unavailable"  # lost, or the device plugin does not offer it
    UNKNOWN = "unknown"  # no agent reports which GPUs the pods hold


class PodOnNode(NamedTuple):
    """A pod that holds GPUs of a node."""

    namespace: str
    name: str
    gpus: int  # devices; shares and MIG devices count as one each
    reserved: bool = False  # not bound yet: a reservation keeps its place

    @property
    def title(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class GpuCell(NamedTuple):
    """A GPU of a node."""

    gpu: int | None  # its index on the node; None: only the number of GPUs is known
    state: GpuState
    degraded: bool = False
    pods: tuple[int, ...] = ()  # places in ``NodeRow.pods`` of the pods that hold it


class IslandCells(NamedTuple):
    """GPUs that NVLinks join; without known NVLinks all GPUs of the node."""

    cells: tuple[GpuCell, ...]
    joined: bool  # by NVLink; False: one GPU, or unknown
    free: int | None = None  # GPUs that are certainly free


class NodeRow(NamedTuple):
    """A GPU node."""

    name: str
    product: str | None
    islands: tuple[IslandCells, ...]
    pods: tuple[PodOnNode, ...] = ()
    free: int | None = None  # whole GPUs that are certainly free
    in_one_island: int | None = None  # the most of these in one island
    notes: tuple[str, ...] = ()  # what limits its use: "cordoned", "no report for 20m"
    faults: tuple[str, ...] = ()  # degraded hardware: "gpu3: lost"
    domains: tuple[tuple[str, str], ...] = ()  # topology levels, widest first: (("block", "b1"), ("rack", "r7"))
    draining: bool = False  # it takes no new pods; a note says why
    allocatable: int = 0  # devices that pods could request here: GPUs or shares

    @property
    def cells(self) -> tuple[GpuCell, ...]:
        """Return all GPUs."""
        return tuple(cell for island in self.islands for cell in island.cells)

    @property
    def summary(self) -> str:
        """Return the free GPUs as text: ``3 of 8 free, 2 in one island``."""
        total = sum(cell.state is not GpuState.UNAVAILABLE for cell in self.cells)
        if self.free is None:
            return f"{counted_noun(total, 'GPU')}, free: unknown"
        if draining := sum(cell.state is GpuState.DRAINING for cell in self.cells):
            return f"0 of {total} free, {draining} draining"
        if self.free < 2 or self.in_one_island is None:
            return f"{self.free} of {total} free"
        return f"{self.free} of {total} free, {self.in_one_island} in one island"


class Totals(NamedTuple):
    """Counts of GPUs, by state, and of free islands."""

    nodes: int
    by_state: tuple[tuple[GpuState, int], ...]
    islands: tuple[tuple[int, int], ...]  # (free GPUs of an island, number of such islands), largest first
    free: int  # GPUs that are certainly free, also where it is not known which

    @property
    def gpus(self) -> int:
        """Return all GPUs."""
        return sum(number for _, number in self.by_state)

    def count(self, *states: GpuState) -> int:
        """Return the number of GPUs in these states."""
        return sum(number for state, number in self.by_state if state in states)


class NodeGroup(NamedTuple):
    """The nodes of one topology domain, or of one product where nodes have no such labels."""

    key: str  # in the address of its page
    title: str
    rows: tuple[NodeRow, ...]
    totals: Totals


class PendingPod(NamedTuple):
    """A pod that requests GPUs, has no node, and belongs to no gang."""

    namespace: str
    name: str
    gpus: int  # devices; shares and MIG devices count as one each
    priority: int
    scheduler: str | None
    reason: str = ""  # why it waits, where the free GPUs alone show it


class Overview(NamedTuple):
    """The cluster at one moment."""

    at: float  # seconds since 1970
    totals: Totals
    groups: tuple[NodeGroup, ...]
    gangs: tuple[GangSummary, ...]
    reserved: tuple[ReservedGpus, ...]
    preemptions: tuple[PreemptionSummary, ...] = ()  # in progress
    pending: tuple[PendingPod, ...] = ()  # highest priority first
    troubles: tuple[str, ...] = ()  # why this may be incomplete
    notice: str = ""  # where it is from, if not from a running cluster
