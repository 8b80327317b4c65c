"""A scheduler by scores: chooses the node with the highest score, and scores only changed nodes again."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import single_bits
from scheduler_core.simulation.device_plugin import draw_gpus
from scheduler_core.simulation.hosts import Placement, SimulatedCluster, SimulatedHost
from scheduler_core.simulation.workload import JobKind, SimulatedJob


class RatedNode(NamedTuple):
    """The rating of a node that the pod fits on."""

    score: float
    share: int = 0  # for a share of a GPU: the GPU, as a set


Rate = Callable[[JobKind, SimulatedHost], RatedNode]


class _NodeRatings:
    """The ratings of all nodes for one kind of pod."""

    def __init__(self) -> None:
        self.rated: dict[int, RatedNode] = {}
        self.by_score: dict[float, set[int]] = {}
        self.mark = 0  # index in ``SimulatedCluster.changed``; 0: no node is rated

    def set_rating(self, number: int, rated: RatedNode | None) -> None:
        """Set the rating of the node; None: the pod does not fit."""
        old = self.rated.pop(number, None)
        if old is not None:
            equal = self.by_score[old.score]
            equal.remove(number)
            if not equal:
                del self.by_score[old.score]
        if rated is not None:
            self.rated[number] = rated
            self.by_score.setdefault(rated.score, set()).add(number)


class RankedScheduler:
    """A scheduler by scores. ``in_order``: of equal nodes the first in a fixed random order; else any of them."""

    def __init__(self, hosts: SimulatedCluster, rate: Rate, random: Random, *, in_order: bool = False) -> None:
        self._hosts = hosts
        self._rate = rate
        self._random = random
        self._ratings: dict[JobKind, _NodeRatings] = {}
        numbers = list(range(len(hosts.all)))
        random.shuffle(numbers)
        self._order = dict(enumerate(numbers)) if in_order else None

    def place(self, job: SimulatedJob, now: float) -> Placement | None:
        """See ``engine.SimulatedScheduler``."""
        del now
        ratings = self._ratings_of(job.kind)
        if not ratings.rated:
            return None
        equal = sorted(ratings.by_score[max(ratings.by_score)])
        number = self._random.choice(equal) if self._order is None else min(equal, key=self._order.__getitem__)
        host = self._hosts.all[number]
        if job.kind.share:
            return Placement(number, ratings.rated[number].share)
        gpus = draw_gpus(host.shape, host.free, job.kind.gpus, self._random) if job.kind.gpus else 0
        return Placement(number, gpus)

    def ended(self, job: SimulatedJob, placement: Placement, now: float) -> None:
        """See ``engine.SimulatedScheduler``. ``SimulatedCluster.changed`` has all changes."""

    def _ratings_of(self, kind: JobKind) -> _NodeRatings:
        ratings = self._ratings.get(kind)
        if ratings is None:
            ratings = self._ratings[kind] = _NodeRatings()
            changed = set(range(len(self._hosts.all)))
        else:
            changed = set(self._hosts.changed[ratings.mark :])
        for number in changed:
            host = self._hosts.all[number]
            ratings.set_rating(number, self._rate(kind, host) if host.fits(kind) else None)
        ratings.mark = len(self._hosts.changed)
        return ratings


def tightest_gpu(kind: JobKind, host: SimulatedHost) -> int:
    """Return the fullest GPU with enough capacity for a share, as a set; 0 for other pods."""
    if not kind.share:
        return 0
    return 1 << min((left, place) for place, left in enumerate(host.free_fractions) if left >= kind.share)[1]


def any_gpu(kind: JobKind, host: SimulatedHost, random: Random) -> int:
    """Return a random GPU with enough capacity for a share, as a set."""
    if not kind.share:
        return 0
    return random.choice(
        [bit for bit in single_bits(host.shape.whole) if host.free_fractions[bit.bit_length() - 1] >= kind.share]
    )
