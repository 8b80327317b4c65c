"""The use of each GPU of a node, and the numbers of GPUs in each state. Pure.

Where the kubelet's report is missing or late, it is not known which GPUs some pods hold: the state of a GPU is then
UNKNOWN or PENDING. The numbers are known all the same, by the requests of the pods, as the scheduler counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputopo.model import NodeTopology
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, certainly_free
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.occupancy import KubeletReport
from scheduler_core.cache.free_islands import min_free
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState, kubelet_report_of, whole_gpu_shape
from scheduler_core.request.device_request import WHOLE
from scheduler_core.ui.model import GpuState, PodOnNode

GpuUse = tuple[GpuState, tuple[int, ...]]  # state, and the places of the pods that hold the GPU
Counts = Counter[GpuState]


class GpuUses(NamedTuple):
    """The use of each GPU, by place, and the number of GPUs in each state."""

    uses: tuple[GpuUse, ...]
    counts: Counts


class _WholeGpus(NamedTuple):
    """A node that allocates whole GPUs."""

    state: NodeState
    shape: MachineShape
    free: Sets  # without reservations
    report: KubeletReport | None
    unreported: int  # GPUs of bound pods that the report does not name
    not_offered: int  # GPUs that the device plugin does not offer, not known which
    only_pod: int | None  # the place of the only pod; None: there are none or several


def whole_gpu_uses(record: NodeRecord, state: NodeState, place_of: Mapping[str, int]) -> GpuUses | None:
    """Return the use of the GPUs; None where the node shares or partitions GPUs, or they are not known."""
    shape, free = whole_gpu_shape(record), (state.unreserved or state).free
    shares = any(number and resource != WHOLE for resource, number in record.machine.allocatable)
    if shape is None or shares or free is None or state.shape is None:
        return None
    report = kubelet_report_of(record)
    allocated = {} if report is None else report.allocated
    withdrawn = 0 if report is None else report.withdrawn
    bound = [pod for pod in record.pods if pod.uid not in record.reserved and pod.profile.gpus]
    offered = dict(record.machine.allocatable).get(WHOLE, 0)
    node = _WholeGpus(
        state=state,
        shape=shape,
        free=free,
        report=report,
        unreported=sum(max(0, pod.profile.gpus - allocated.get(pod.uid, 0).bit_count()) for pod in bound),
        not_offered=max(0, shape.whole.bit_count() - offered - withdrawn.bit_count()),
        only_pod=place_of[bound[0].uid] if len(bound) == 1 else None,
    )
    holders = {place_of[uid]: mask for uid, mask in allocated.items()}
    uses = []
    for place in range(len(shape.gpus)):
        held_by = tuple(pod for pod, mask in holders.items() if mask >> place & 1)
        if held_by:
            uses.append((GpuState.USED, held_by))
        elif withdrawn >> place & 1:
            uses.append((GpuState.UNAVAILABLE, ()))
        else:
            uses.append(_use_without_holder(place, node))
    return GpuUses(tuple(uses), _counts(uses, node))


def _use_without_holder(place: int, node: _WholeGpus) -> GpuUse:
    """Return the use of a GPU that no reported pod holds."""
    state, undetermined = node.state, GpuState.UNKNOWN if node.report is None else GpuState.PENDING
    certain, possible = _bounds(node.free)
    if not possible >> place & 1:
        if not node.unreported:
            return GpuState.UNAVAILABLE, ()
        if node.not_offered:
            return undetermined, ()
        return GpuState.USED, () if node.only_pod is None or node.report is not None else (node.only_pod,)
    if state.stale and (node.unreported or (node.report is not None and node.report.allocated)):
        return GpuState.UNKNOWN, ()  # the report is too old
    if not certain >> place & 1:
        return undetermined, ()
    if state.unreserved is None or state.free is None:
        return GpuState.FREE, ()
    certain, possible = _bounds(state.free)
    if certain >> place & 1:
        return GpuState.FREE, ()
    return (GpuState.MAY_BE_RESERVED if possible >> place & 1 else GpuState.RESERVED), ()


def _counts(uses: Sequence[GpuUse], node: _WholeGpus) -> Counts:
    """Return the number of usable GPUs in each state; of those that are not determined, by the requests of pods."""
    usable = [use for use, gpu in zip(uses, node.shape.gpus, strict=True) if gpu.usable]
    counts = Counter(state for state, _ in usable)
    known_taken = sum(state is GpuState.USED and not holders for state, holders in usable)
    if node.only_pod is not None and node.report is None:
        known_taken = counts[GpuState.USED]
    open_gpus = sum(
        counts.pop(state, 0)
        for state in (
            GpuState.FREE,
            GpuState.RESERVED,
            GpuState.MAY_BE_RESERVED,
            GpuState.PENDING,
            GpuState.UNKNOWN,
        )
    )
    unreserved = min(open_gpus, min_free(node.free, node.shape.whole))
    free = unreserved if node.state.free is None else min(unreserved, min_free(node.state.free, node.shape.whole))
    left = open_gpus - unreserved
    taken = min(left, max(0, node.unreported - known_taken))
    missing = min(left - taken, node.not_offered)
    is_pending = node.report is not None and not node.state.stale
    counts[GpuState.FREE] += free
    counts[GpuState.RESERVED] += unreserved - free
    counts[GpuState.PENDING if is_pending else GpuState.USED] += taken
    counts[GpuState.UNAVAILABLE] += missing
    counts[GpuState.PENDING if is_pending else GpuState.UNKNOWN] += left - taken - missing
    return counts


def _bounds(free: Sets) -> tuple[int, int]:
    """Return the GPUs that are free in every possible set, and those that are free in some."""
    if isinstance(free, ExactSets):
        return certainly_free(free), free.among
    return (free.among if free.size == free.among.bit_count() else 0), (free.among if free.size else 0)


def shared_gpu_uses(record: NodeRecord, topology: NodeTopology, pods: Sequence[PodOnNode]) -> GpuUses:
    """Return the use of the GPUs of a node that shares or partitions GPUs."""
    allocations = None if record.gpus is None else record.gpus.allocations
    if allocations is None:
        state = GpuState.UNKNOWN if has_pods(record) else GpuState.FREE
        uses: list[GpuUse] = [(state, ())] * len(topology.gpus)
    else:
        holders: dict[str, set[tuple[str, str]]] = {}
        shared = set()
        for each in allocations:
            holders.setdefault(each.gpu, set()).add((each.pod.namespace, each.pod.name))
            if each.replica is not None or each.mig_device is not None:
                shared.add(each.gpu)
        place_of = {(pod.namespace, pod.name): place for place, pod in enumerate(pods)}
        uses = []
        for gpu in topology.gpus:
            names = holders.get(gpu.uuid or "", set())
            known = tuple(sorted(place_of[name] for name in names if name in place_of))
            state = GpuState.FREE if not names else GpuState.SHARED if gpu.uuid in shared else GpuState.USED
            uses.append((state, known))
    return GpuUses(
        tuple(uses), Counter(state for (state, _), gpu in zip(uses, topology.gpus, strict=True) if gpu.usable)
    )


def counted_gpu_uses(record: NodeRecord, most: int) -> GpuUses:
    """Return the use of the GPUs of a node of which only the number is known. ``most``: GPUs that are shown."""
    devices = min(most, sum(number for _, number in record.machine.allocatable))
    whole = dict(record.machine.allocatable).get(WHOLE, 0)
    if not has_pods(record):
        counts = Counter({GpuState.FREE: devices})
    elif devices != whole:  # shares or MIG devices, or too many to be GPUs
        counts = Counter({GpuState.UNKNOWN: devices})
    else:
        used = min(devices, sum(pod.profile.gpus for pod in record.pods))
        counts = Counter({GpuState.FREE: devices - used, GpuState.USED: used})
    states = [state for state, number in counts.items() if number]
    return GpuUses(((states[0] if len(states) == 1 else GpuState.UNKNOWN, ()),) * devices, counts)


def has_pods(record: NodeRecord) -> bool:
    """Return whether pods with GPUs are bound to the node, or places on it are reserved for pods."""
    return any(not is_hold(pod.uid) for pod in record.pods)
