"""Preemption policies of other schedulers: the pods that they evict. Sources: kube-scheduler 1.37, KAI-Scheduler 0.17.

All policies place pods by the same filters: a pod that requires an island starts only on one. They differ in the pods
that they evict for a job that does not fit. An evicted pod ends the run of its whole job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from scheduler_core.simulation.preemption.running import RunningCluster, RunningJob, fits

KAI_PREEMPTIBLE_BELOW = 100  # priority; from here on KAI never evicts


class EvictionChoice(NamedTuple):
    """The jobs to evict."""

    victims: tuple[RunningJob, ...]
    gave_up: bool = False
    too_early: bool = False  # nothing was searched: the job has not waited long enough


class EvictionRule(Protocol):
    """Chooses the jobs to evict for a job that does not fit."""

    def choose(self, waiting: RunningJob, cluster: RunningCluster, now: float) -> EvictionChoice:
        """Return the jobs to evict; none: the job waits."""
        ...


class NoEviction:
    """Evicts nothing."""

    def choose(self, waiting: RunningJob, cluster: RunningCluster, now: float) -> EvictionChoice:
        """See ``EvictionRule``."""
        del waiting, cluster, now
        return EvictionChoice(())


class DefaultPreemption:
    """kube-scheduler's default preemption: pod by pod, on one node each, by numbers of GPUs and by priority."""

    def choose(self, waiting: RunningJob, cluster: RunningCluster, now: float) -> EvictionChoice:
        """See ``EvictionRule``. Pods of the job that fit without evictions take their GPUs first."""
        del now
        if not cluster.has_lower(waiting.job.priority):
            return EvictionChoice(())
        free, evicted = list(cluster.free), dict[str, RunningJob]()
        for _ in range(waiting.job.pods):
            node = _first_fit(waiting, cluster, free)
            if node is None:
                best = min(
                    (
                        each
                        for number in range(len(free))
                        if (each := _victims_on(number, waiting, cluster, free, evicted))
                    ),
                    default=None,
                    key=_preference,
                )
                if best is None:
                    break
                for victim in best.victims:
                    evicted[victim.key] = victim
                    for pod in victim.pods:
                        free[pod.node] |= pod.gpus
                node = best.node
            free[node] = _without(free[node], waiting.job.gpus)
        return EvictionChoice(tuple(evicted.values()))


class _NodeVictims(NamedTuple):
    node: int
    victims: tuple[RunningJob, ...]


def _first_fit(waiting: RunningJob, cluster: RunningCluster, free: list[int]) -> int | None:
    job = waiting.job
    return next(
        (at for at, mask in enumerate(free) if fits(cluster.shapes[at], mask, job.gpus, island=job.island)), None
    )


def _victims_on(
    number: int, waiting: RunningJob, cluster: RunningCluster, free: list[int], evicted: dict[str, RunningJob]
) -> _NodeVictims | None:
    """Return the pods that kube-scheduler would evict on a node; None: the node is no candidate.

    Nodes with enough GPUs are none: there, only the extender refused. All pods of a lower priority are removed, and put
    back while the pod still fits by number, the most important ones first.
    """
    gpus = waiting.job.gpus
    count = free[number].bit_count()
    if count >= gpus:
        return None
    lower = [
        each
        for key, each in cluster.on[number].items()
        if key not in evicted and each.job.priority < waiting.job.priority
    ]
    held = {each.key: sum(pod.gpus.bit_count() for pod in each.pods if pod.node == number) for each in lower}
    spare = count + sum(held.values()) - gpus
    if spare < 0:
        return None
    victims = []
    for each in sorted(lower, key=lambda each: (-each.job.priority, each.started, each.key)):
        if held[each.key] <= spare:
            spare -= held[each.key]
        else:
            victims.append(each)
    return _NodeVictims(number, tuple(victims))


def _preference(found: _NodeVictims) -> tuple[float, ...]:
    """Order candidates as ``pickOneNodeForPreemption`` does."""
    priorities = [each.job.priority for each in found.victims]
    first = min(each.started for each in found.victims if each.job.priority == max(priorities))
    return max(priorities), sum(priorities), len(priorities), -first, found.node


def _without(free: int, gpus: int) -> int:
    """Return the set without that many GPUs, whichever they are."""
    for _ in range(min(gpus, free.bit_count())):
        free &= free - 1
    return free


class KaiPreemption:
    """KAI's rule: whole jobs of a lower priority below 100, the lowest and youngest first, until the gang fits."""

    def choose(self, waiting: RunningJob, cluster: RunningCluster, now: float) -> EvictionChoice:
        """See ``EvictionRule``. It counts GPUs of nodes: islands inside of a node are no topology level of KAI."""
        del now
        below = min(waiting.job.priority, KAI_PREEMPTIBLE_BELOW)
        if not cluster.has_lower(below):
            return EvictionChoice(())
        running = {each.key: each for on in cluster.on for each in on.values() if each.job.priority < below}
        order = sorted(running.values(), key=lambda each: (each.job.priority, -each.started, each.key))
        free = [mask.bit_count() for mask in cluster.free]
        evicted: list[RunningJob] = []
        for each in order:
            if _holds(free, waiting):
                break
            evicted.append(each)
            _add(free, each, 1)
        if not evicted or not _holds(free, waiting):
            return EvictionChoice(())
        for each in tuple(evicted):  # put back the jobs that are not needed
            _add(free, each, -1)
            if _holds(free, waiting):
                evicted.remove(each)
            else:
                _add(free, each, 1)
        return EvictionChoice(tuple(evicted))


def _holds(free: Iterable[int], waiting: RunningJob) -> bool:
    return sum(count // waiting.job.gpus for count in free) >= waiting.job.pods


def _add(free: list[int], job: RunningJob, sign: int) -> None:
    for pod in job.pods:
        free[pod.node] += sign * pod.gpus.bit_count()
