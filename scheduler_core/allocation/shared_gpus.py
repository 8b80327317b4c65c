"""The memory of GPUs that pods share, card by card: what is taken, and whether more fits wherever it may land. Pure.

Time slicing and MPS hand out each GPU several times (replicas). Which card a pod gets the device plugin chooses, when
the kubelet admits it: by default the one with the fewest replicas taken, of equals any (``distributed``). So a pod is
let onto a node only where it fits on every card that it may come to, whatever else arrives or leaves before. This is
accounting of what pods say (``gputopo.io/vram``); nothing here stops a program from taking more.

Why the answer below is safe. Known shares only leave; they may do so before the kubelet admits somebody, and then a
card may be the emptiest that is not now. Say that m of the shares that nobody has placed yet end up on a card beside k
of its known ones. The last of the m came when k + m - 1 were there, and the card was among the emptiest: so every
other card had as many, which is at most what they hold now, what has left them since the kubelet spoke, and the
shares that did not come to this card, spread as evenly as can be. That bounds k; and the k largest known with the m
largest unplaced must fit.

Source: ``internal/rm/allocate.go`` (distributedAlloc) of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import NamedTuple

from gputopo.crd.nodegpus import Allocation
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.policy.policy import FillBand


class ReplicaPolicy(Enum):
    """How the device plugin chooses among replicas."""

    DISTRIBUTED = "distributed"  # the card with the fewest taken
    PACKED = "packed"  # the card with the most taken
    UNKNOWN = "unknown"


class SharedGpu(NamedTuple):
    """One shared GPU."""

    memory_mib: int | None
    shares: tuple[int, ...] = ()  # MiB of each replica that is known to be on it, largest first
    unreleased: int = 0  # replicas whose pods have gone since the kubelet spoke

    @property
    def taken(self) -> int:
        """Replicas that were taken when the kubelet spoke."""
        return len(self.shares) + self.unreleased


class SharedGpus(NamedTuple):
    """The shared GPUs of a node. Which card is which does not matter."""

    resource: str  # by which its replicas are asked for
    gpus: tuple[SharedGpu, ...]
    min_replicas: int  # replicas that each card has at least
    max_replicas: int  # and at most
    default_mib: int  # what a pod that says nothing is taken to use: an even share, as MPS limits it to
    unplaced: tuple[int, ...] = ()  # MiB of replicas that pods have or will have, on a card that nobody has named
    ended_replicas: int = 0  # replicas of pods that came and went since the kubelet spoke
    has_memory_requests: bool = False  # a pod on it says what it uses; else there is nothing to keep account of
    replica_policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED


class ReplicaClaim(NamedTuple):
    """A pod's replicas."""

    pod: Occupant
    replicas: int


class SharingConfig(NamedTuple):
    """What the device plugin shares."""

    resource: str
    memories: Mapping[str, int | None]  # MiB by UUID of the card
    replicas: int  # of all cards together
    replicas_per_gpu: int | None = None  # of one card, where somebody says so
    replica_policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED


def shared_gpus_of(
    offer: SharingConfig,
    claims: Sequence[ReplicaClaim],
    word: Iterable[Allocation] | None,
    departed: Sequence[ReplicaClaim] = (),
) -> SharedGpus:
    """The ledger of a node. ``word``: the kubelet's, of which pod has which card; None: nobody asked it."""
    empty = _empty(offer, known=word is not None)
    named: dict[object, list[str]] = {}
    for each in word or ():
        if each.gpu in offer.memories and each.mig_device is None:
            named.setdefault(each.pod.uid or (each.pod.namespace, each.pod.name), []).append(each.gpu)
    shares: dict[str, list[int]] = {gpu: [] for gpu in offer.memories}
    unplaced: list[int] = []
    for pod, wanted in claims:
        said = pod.profile.constraints.vram_mib
        share = empty.default_mib if said is None else said
        on = _pop(named, pod)[:wanted]
        for gpu in on:
            shares[gpu].append(share)
        unplaced += [share] * (wanted - len(on))
    if len(shares) == 1:  # nothing to choose
        next(iter(shares.values())).extend(unplaced)
        unplaced = []
    passed = sum(max(0, each.replicas - len(_named(named, each.pod))) for each in departed)
    left = [gpu for gpus in named.values() for gpu in gpus]
    cards = [
        SharedGpu(memory, tuple(sorted(shares[gpu], reverse=True)), left.count(gpu))
        for gpu, memory in offer.memories.items()
    ]
    return empty._replace(
        gpus=tuple(sorted(cards, key=lambda card: (card.memory_mib or 0, card.shares, card.unreleased))),
        unplaced=tuple(sorted(unplaced, reverse=True)),
        ended_replicas=passed,
        has_memory_requests=any(each.pod.profile.constraints.vram_mib is not None for each in claims),
    )


def _empty(offer: SharingConfig, *, known: bool) -> SharedGpus:
    """Where nobody says how many replicas a card has, one that is sick may hide that another has more than its part."""
    cards = len(offer.memories)
    even = offer.replicas_per_gpu or -(-offer.replicas // cards)
    return SharedGpus(
        resource=offer.resource,
        gpus=(),
        min_replicas=max(1, offer.replicas // cards),
        max_replicas=offer.replicas_per_gpu or offer.replicas,
        default_mib=max(memory or 0 for memory in offer.memories.values()) // even,
        replica_policy=offer.replica_policy if known else ReplicaPolicy.UNKNOWN,
    )


def replicas_fit(node: SharedGpus, share: int | None, replicas: int = 1) -> bool:
    """Whether that many more replicas, of so many MiB each, fit wherever they may land. None: an even share."""
    if share is None and not node.has_memory_requests:
        return True
    coming = [node.default_mib if share is None else share] * replicas
    unplaced = sorted((*node.unplaced, *coming), reverse=True)
    return all(_holds(node, at, unplaced) for at, card in enumerate(node.gpus) if card.memory_mib is not None)


def fill_levels(node: SharedGpus, share: int | None) -> list[float]:
    """How full the card would be, 0 to 1, for each card that the device plugin may choose as things are."""
    wanted = node.default_mib if share is None else share
    return [min(1.0, (sum(card.shares) + wanted) / card.memory_mib) if card.memory_mib else 1.0 for card in _next(node)]


def fill_score(share: float, band: FillBand) -> float:
    """What it is worth to fill a card to that share of its memory, 0 to 1.

    Below the band 0.1 + 0.9 x share / low, in it 1, above 0.1 x (1 - share) / (1 - high): so the fullest card that
    stays within the band comes first, and a card that is opened comes before one that is filled beyond.
    """
    if share < band.low:
        return 0.1 + 0.9 * share / band.low
    return 1.0 if share <= band.high else 0.1 * (1 - share) / (1 - band.high)


def _holds(node: SharedGpus, at: int, unplaced: Sequence[int]) -> bool:
    """Whether no course of things fills that card beyond its memory."""
    card = node.gpus[at]
    others = [each.taken for place, each in enumerate(node.gpus) if place != at]
    for more in range(1, min(len(unplaced), node.max_replicas) + 1):
        level = _level(node, others, len(unplaced) - more + node.ended_replicas)
        beside = min(len(card.shares), node.max_replicas - more, level - (more - 1))
        if beside < 0:
            break
        if sum(unplaced[:more]) + sum(card.shares[: int(beside)]) > (card.memory_mib or 0):
            return False
    return True


def _level(node: SharedGpus, others: list[int], more: int) -> float:
    """How many replicas the emptiest other card may have at most, after so many more were spread over them."""
    if node.replica_policy is not ReplicaPolicy.DISTRIBUTED:
        return inf
    level = 0
    while sum(max(0, level + 1 - taken) for taken in others) <= more:
        level += 1
        if level >= node.min_replicas - 1:  # then all others may be full
            return inf
    return level


def _next(node: SharedGpus) -> list[SharedGpu]:
    """The cards that may be chosen next, as things are."""
    free = [card for card in node.gpus if len(card.shares) < node.max_replicas] or list(node.gpus)
    if node.replica_policy is ReplicaPolicy.UNKNOWN or node.unplaced:
        return free
    if node.replica_policy is ReplicaPolicy.PACKED:
        most = max(len(card.shares) for card in free)
        return [card for card in free if len(card.shares) == most]
    fewest = min(len(card.shares) for card in free)
    return [card for card in free if len(card.shares) == fewest]


def _pop(named: dict[object, list[str]], pod: Occupant) -> list[str]:
    return named.pop(pod.uid, []) + named.pop((pod.namespace, pod.name), [])


def _named(named: Mapping[object, list[str]], pod: Occupant) -> list[str]:
    return named.get(pod.uid, []) + named.get((pod.namespace, pod.name), [])
