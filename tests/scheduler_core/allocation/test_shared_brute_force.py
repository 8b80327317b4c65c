"""Memory of shared GPUs, by brute force: every order of admissions and departures, every choice of the device plugin.

The rules are written here from ``internal/rm/allocate.go`` of NVIDIA/k8s-device-plugin (0.20), independent of the
prediction: ``distributed`` takes a replica of a GPU with the fewest replicas in use, ``packed`` of one with the most
that has a free one; any of equals.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from scheduler_core.allocation.shared_gpus import ReplicaPolicy, SharedGpu, SharedGpus, replicas_fit

MEMORY = 12
Gpus = tuple[tuple[int, ...], ...]  # the shares on each GPU


def _choices(gpus: Gpus, replicas: int, policy: ReplicaPolicy) -> list[int]:
    """Return the GPUs that the plugin may choose."""
    free = [at for at, shares in enumerate(gpus) if len(shares) < replicas]
    wanted = {
        ReplicaPolicy.DISTRIBUTED: min((len(gpus[at]) for at in free), default=0),
        ReplicaPolicy.PACKED: max((len(gpus[at]) for at in free), default=0),
    }.get(policy)
    return [at for at in free if wanted is None or len(gpus[at]) == wanted]


def _may_overflow(start: Gpus, waiting: tuple[int, ...], replicas: int, policy: ReplicaPolicy) -> bool:
    """Return whether some order of admissions and departures fills a GPU beyond its memory."""

    @cache
    def follow(gpus: Gpus, waiting: tuple[int, ...]) -> bool:
        if any(sum(shares) > MEMORY for shares in gpus):
            return True
        for place in range(len(waiting)):
            rest = waiting[:place] + waiting[place + 1 :]
            for at in _choices(gpus, replicas, policy):
                if follow(_with(gpus, at, tuple(sorted((*gpus[at], waiting[place])))), rest):
                    return True
        return any(
            follow(_with(gpus, at, shares[:place] + shares[place + 1 :]), waiting)
            for at, shares in enumerate(gpus)
            for place in range(len(shares))
        )

    return follow(start, waiting)


def _with(gpus: Gpus, at: int, shares: tuple[int, ...]) -> Gpus:
    return tuple(sorted((*gpus[:at], shares, *gpus[at + 1 :])))


def _node(gpus: Gpus, replicas: int, waiting: list[int], policy: ReplicaPolicy) -> SharedGpus:
    return SharedGpus(
        resource="nvidia.com/gpu.shared",
        gpus=tuple(SharedGpu(MEMORY, tuple(sorted(shares, reverse=True))) for shares in gpus),
        min_replicas=replicas,
        max_replicas=replicas,
        default_mib=MEMORY // replicas,
        unplaced=tuple(sorted(waiting, reverse=True)),
        has_memory_requests=True,
        replica_policy=policy,
    )


@pytest.mark.parametrize("policy", ReplicaPolicy)
def test_no_order_fills_a_gpu_beyond_its_memory(policy: ReplicaPolicy) -> None:
    random, accepted, exact = Random(15), 0, 0
    for _ in range(150):
        replicas, count = random.randint(2, 4), random.randint(1, 3)
        gpus = tuple(
            tuple(sorted(random.randint(1, MEMORY // 2) for _ in range(random.randint(0, min(2, replicas)))))
            for _ in range(count)
        )
        free = replicas * count - sum(map(len, gpus))
        waiting = [random.randint(1, MEMORY // 2) for _ in range(random.randint(0, min(2, free - 1)))] if free else []
        share = random.randint(1, MEMORY)

        fits = replicas_fit(_node(gpus, replicas, waiting, policy), share)
        overflows = _may_overflow(tuple(sorted(gpus)), (*waiting, share), replicas, policy)

        assert not (fits and overflows), (gpus, replicas, waiting, share)
        accepted, exact = accepted + fits, exact + (fits != overflows)

    assert accepted > 20
    assert exact > 100  # it refuses little that would fit
