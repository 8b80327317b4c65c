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
    DRAINING = "draining"  # no pod holds it, but the node is cordoned or about to be removed
    TAINTED = "tainted"  # no pod holds it, but a taint of the node keeps ordinary pods away
    USED = "used"
    PENDING = "pending"  # a pod was bound or ended; the kubelet has not reported the GPUs yet
    SHARED = "shared"  # pods hold shares or MIG devices of it
    UNAVAILABLE = "unavailable"  # lost, or the device plugin does not offer it
    UNKNOWN = "unknown"  # the kubelet's report is missing: of a cell, whether the GPU is free


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
    draining: bool = False  # it takes no new pods: it is cordoned or about to be removed
    tainted: bool = False  # it takes no ordinary pods, because of another taint; a note names it
    allocatable: int = 0  # devices that pods could request here: GPUs or shares
    # GPUs by state. The totals of the pages come from these. They are known by the requests of pods even where it is
    # not known which GPUs the pods hold; then cells are UNKNOWN or PENDING.
    counts: tuple[tuple[GpuState, int], ...] = ()

    @property
    def cells(self) -> tuple[GpuCell, ...]:
        """Return all GPUs."""
        return tuple(cell for island in self.islands for cell in island.cells)

    def count(self, *states: GpuState) -> int:
        """Return the number of GPUs in these states."""
        return sum(number for state, number in self.counts if state in states)

    @property
    def has_known_islands(self) -> bool:
        """Return whether it is known in which NVLink islands its free GPUs are."""
        return self.in_one_island is not None and self.free == sum(island.free or 0 for island in self.islands)

    @property
    def lacks_report(self) -> bool:
        """Return whether the number of used GPUs is known, but not which GPUs the pods hold."""
        return sum(cell.state is GpuState.UNKNOWN for cell in self.cells) > self.count(GpuState.UNKNOWN)

    @property
    def summary(self) -> str:
        """Return the free GPUs as text: ``3 of 8 free, 2 in one island``."""
        total = sum(number for state, number in self.counts if state is not GpuState.UNAVAILABLE)
        free = self.count(GpuState.FREE)
        if not free and self.count(GpuState.UNKNOWN):
            return f"{counted_noun(total, 'GPU')}, free: unknown"
        words = [f"{free} of {total} free"]
        for state in (GpuState.DRAINING, GpuState.TAINTED):
            words += [f"{number} {state.value}"] if (number := self.count(state)) else []
        words += [f"{self.in_one_island} in one island"] if free > 1 and self.has_known_islands else []
        words += ["which ones: unknown"] if free and self.lacks_report else []
        return ", ".join(words)


class Totals(NamedTuple):
    """Counts of GPUs, by state, and of free islands."""

    nodes: int
    by_state: tuple[tuple[GpuState, int], ...]
    islands: tuple[tuple[int, int], ...]  # (free GPUs of an island, number of such islands), largest first
    free_in_unknown_islands: int = 0  # free GPUs that ``islands`` does not count
    lacking_report: int = 0  # nodes where the number of used GPUs is known, but not which

    @property
    def free(self) -> int:
        """Return the GPUs that are certainly free, also where it is not known which."""
        return self.count(GpuState.FREE)

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
