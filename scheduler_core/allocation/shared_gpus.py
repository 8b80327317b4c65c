"""The memory of shared GPUs: what is in use on each, and whether more fits whichever GPU a pod gets. Pure.

With time slicing and MPS, the device plugin allocates each GPU several times (replicas). It chooses the GPU when the
kubelet admits the pod: by default a GPU with the fewest replicas in use (``distributed``). So a node is accepted only
if the pod fits on every GPU that it may get, whatever arrives or leaves before. This accounts for the memory that pods
claim (``gputopo.io/vram``); nothing here limits programs to it.

Why this is safe. Known shares can only leave. If they leave before the kubelet admits a pod, another GPU may become the
emptiest. Suppose m unplaced shares end up on a GPU beside k of its known shares. When the last of the m came, k + m - 1
shares were there, and this GPU was among the emptiest. So every other GPU had at least as many: at most its current
shares, the shares that have left it since the report, and the unplaced shares that did not come to this GPU, spread
as evenly as possible. That bounds k; and the k largest known shares with the m largest unplaced shares must fit.

Source: ``internal/rm/allocate.go`` (distributedAlloc) of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple

from gputopo.crd.nodegpus import DeviceAllocation
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.policy.policy import FillBand


class ReplicaPolicy(Enum):
    """How the device plugin chooses among replicas."""

    DISTRIBUTED = "distributed"  # the GPU with the fewest in use
    PACKED = "packed"  # the GPU with the most in use
    UNKNOWN = "unknown"


class SharedGpu(NamedTuple):
    """A shared GPU."""

    memory_mib: int | None
    shares: tuple[int, ...] = ()  # MiB of each replica that is known to be on it, largest first
    unreleased: int = 0  # replicas of pods that have gone since the report

    @property
    def taken(self) -> int:
        """The number of replicas in use at the time of the report."""
        return len(self.shares) + self.unreleased


class SharedGpus(NamedTuple):
    """The shared GPUs of a node, without their identities."""

    resource: str  # the resource name of the replicas
    gpus: tuple[SharedGpu, ...]
    min_replicas: int  # replicas that each GPU has at least
    max_replicas: int  # and at most
    default_mib: int  # for a pod that claims none: an even share, the limit that MPS sets
    unplaced: tuple[int, ...] = ()  # MiB of replicas that pods have or will get, on an unknown GPU
    ended_replicas: int = 0  # replicas of pods that came and went since the report
    has_memory_requests: bool = False  # a pod on the node claims memory; else there is nothing to account for
    replica_policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED
    reported: bool = True  # the kubelet's allocations are known


class ReplicaClaim(NamedTuple):
    """The replicas of a pod."""

    pod: Occupant
    replicas: int


class SharingConfig(NamedTuple):
    """The GPUs that the device plugin shares."""

    resource: str
    memories: Mapping[str, int | None]  # MiB by UUID of the GPU
    replicas: int  # of all GPUs together
    replicas_per_gpu: int | None = None  # per GPU, if known
    replica_policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED


def shared_gpus_of(
    offer: SharingConfig,
    claims: Sequence[ReplicaClaim],
    report: Iterable[DeviceAllocation] | None,
    departed: Sequence[ReplicaClaim] = (),
) -> SharedGpus:
    """Return the shared GPUs of a node. ``report``: the allocations that the kubelet reports; None: no report."""
    empty = _empty(offer, known=report is not None)
    reported: dict[object, list[str]] = {}
    for each in report or ():
        if each.gpu in offer.memories and each.mig_device is None:
            reported.setdefault(each.pod.uid or (each.pod.namespace, each.pod.name), []).append(each.gpu)
    shares: dict[str, list[int]] = {uuid: [] for uuid in offer.memories}
    unplaced: list[int] = []
    for pod, replicas in claims:
        claimed = pod.profile.constraints.vram_mib
        share = empty.default_mib if claimed is None else claimed
        uuids = _pop(reported, pod)[:replicas]
        for uuid in uuids:
            shares[uuid].append(share)
        unplaced += [share] * (replicas - len(uuids))
    if len(shares) == 1:  # only one GPU to choose
        next(iter(shares.values())).extend(unplaced)
        unplaced = []
    ended = sum(max(0, each.replicas - len(_named(reported, each.pod))) for each in departed)
    unclaimed = [uuid for uuids in reported.values() for uuid in uuids]
    gpus = [
        SharedGpu(memory, tuple(sorted(shares[uuid], reverse=True)), unclaimed.count(uuid))
        for uuid, memory in offer.memories.items()
    ]
    return empty._replace(
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.memory_mib or 0, gpu.shares, gpu.unreleased))),
        unplaced=tuple(sorted(unplaced, reverse=True)),
        ended_replicas=ended,
        has_memory_requests=any(each.pod.profile.constraints.vram_mib is not None for each in claims),
    )


def _empty(offer: SharingConfig, *, known: bool) -> SharedGpus:
    """If the replicas per GPU are unknown, an unhealthy GPU may hide that another GPU has more than an even part."""
    gpus = len(offer.memories)
    even = offer.replicas_per_gpu or -(-offer.replicas // gpus)
    return SharedGpus(
        resource=offer.resource,
        gpus=(),
        min_replicas=max(1, offer.replicas // gpus),
        max_replicas=offer.replicas_per_gpu or offer.replicas,
        default_mib=max(memory or 0 for memory in offer.memories.values()) // even,
        replica_policy=offer.replica_policy if known else ReplicaPolicy.UNKNOWN,
        reported=known,
    )


def replicas_fit(node: SharedGpus, share: int | None, replicas: int = 1) -> bool:
    """Return True if the additional replicas fit on any GPUs that they may get. ``share``: MiB of each; None: even."""
    if share is None and not node.has_memory_requests:
        return True
    additional = [node.default_mib if share is None else share] * replicas
    unplaced = sorted((*node.unplaced, *additional), reverse=True)
    return all(
        _stays_within_memory(node, at, unplaced) for at, gpu in enumerate(node.gpus) if gpu.memory_mib is not None
    )


def fill_levels(node: SharedGpus, share: int | None) -> list[float]:
    """Return the fill level with the pod, 0 to 1, of each GPU that the device plugin may choose now."""
    added = node.default_mib if share is None else share
    return [
        min(1.0, (sum(gpu.shares) + added) / gpu.memory_mib) if gpu.memory_mib else 1.0
        for gpu in _next_candidates(node)
    ]


def fill_score(share: float, band: FillBand) -> float:
    """Return the score, 0 to 1, of filling a GPU to this share of its memory.

    Below the band 0.1 + 0.9 x share / low, in it 1, above 0.1 x (1 - share) / (1 - high). So the fullest GPU that stays
    within the band comes first, and an empty GPU comes before a GPU that is filled beyond the band.
    """
    if share < band.low:
        return 0.1 + 0.9 * share / band.low
    return 1.0 if share <= band.high else 0.1 * (1 - share) / (1 - band.high)


def _stays_within_memory(node: SharedGpus, at: int, unplaced: Sequence[int]) -> bool:
    """Return True if no order of events fills this GPU beyond its memory."""
    gpu = node.gpus[at]
    others = [each.taken for place, each in enumerate(node.gpus) if place != at]
    for more in range(1, min(len(unplaced), node.max_replicas) + 1):
        level = _max_level(node, others, len(unplaced) - more + node.ended_replicas)
        beside = min(len(gpu.shares), node.max_replicas - more, level - (more - 1))
        if beside < 0:
            break
        if sum(unplaced[:more]) + sum(gpu.shares[: int(beside)]) > (gpu.memory_mib or 0):
            return False
    return True


def _max_level(node: SharedGpus, others: list[int], more: int) -> float:
    """Return how many replicas the emptiest other GPU has at most, after ``more`` replicas were spread over them."""
    if node.replica_policy is not ReplicaPolicy.DISTRIBUTED:
        return inf
    level = 0
    while sum(max(0, level + 1 - taken) for taken in others) <= more:
        level += 1
        if level >= node.min_replicas - 1:  # then all other GPUs may be full
            return inf
    return level


def _next_candidates(node: SharedGpus) -> list[SharedGpu]:
    """Return the GPUs that the device plugin may choose next."""
    free = [gpu for gpu in node.gpus if len(gpu.shares) < node.max_replicas] or list(node.gpus)
    if node.replica_policy is ReplicaPolicy.UNKNOWN or node.unplaced:
        return free
    if node.replica_policy is ReplicaPolicy.PACKED:
        most = max(len(gpu.shares) for gpu in free)
        return [gpu for gpu in free if len(gpu.shares) == most]
    fewest = min(len(gpu.shares) for gpu in free)
    return [gpu for gpu in free if len(gpu.shares) == fewest]


def _pop(reported: dict[object, list[str]], pod: Occupant) -> list[str]:
    return reported.pop(pod.uid, []) + reported.pop((pod.namespace, pod.name), [])


def _named(reported: Mapping[object, list[str]], pod: Occupant) -> list[str]:
    return reported.get(pod.uid, []) + reported.get((pod.namespace, pod.name), [])
