"""CPU, memory, ephemeral storage and pod slots of a node that a pod requests, as kube-scheduler counts them. Pure.

Without a request nothing is counted: the defaults of kube-scheduler (100m, 200 MB) are for its scores only. Each pod is
counted, and most have no GPU, so quantities are converted once, and a pod is summed up in integers.

Source: ``PodRequests`` of k8s.io/component-helpers/resource, and the plugin NodeResourcesFit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gputopo.quantities import parse_quantity
from scheduler_core.request.full_pod import FullPod, FullPodSpec
from scheduler_core.request.resizes import Resizes, resizes_of

_MOST = 1 << 50  # of any amount: more than any node has (a PiB), and less than a quantity may say
Quantities = Mapping[str, str | int | float]
_NAMES = ("cpu", "memory", "ephemeral-storage")
_Amounts = tuple[int, int, int]  # in the order of ``_NAMES``


class NodeLoad(NamedTuple):
    """Requests of pods, or what a node has for them, besides devices."""

    cpu_milli: int = 0
    memory: int = 0  # bytes
    storage: int = 0  # bytes of ephemeral storage
    pods: int = 0

    def plus(self, other: NodeLoad, times: int = 1) -> NodeLoad:
        """Return the sum; ``times`` -1: the difference."""
        return NodeLoad(
            self.cpu_milli + times * other.cpu_milli,
            self.memory + times * other.memory,
            self.storage + times * other.storage,
            self.pods + times * other.pods,
        )


NO_LOAD = NodeLoad()
ONE_POD = NodeLoad(pods=1)  # a pod without requests


def pod_load(pod: FullPod) -> NodeLoad:
    """Return the requests of a pod: the largest need at any time, with the overhead, and one pod."""
    spec, status = pod.spec, pod.status
    cpu = memory = storage = 0  # of the containers that run together
    resizes = resizes_of(status.container_statuses, status.init_container_statuses, status.conditions)
    for container in spec.containers or ():
        resources = resizes.resources_of(container.name, container.resources)
        if resources.requests or resources.limits:
            own = _requests(resources.requests, resources.limits)
            cpu, memory, storage = cpu + own[0], memory + own[1], storage + own[2]
    if spec.init_containers:
        cpu, memory, storage = _with_init_containers(spec, resizes, (cpu, memory, storage))
    if spec.resources is not None:  # of all containers together
        stated = {**(spec.resources.limits or {}), **(spec.resources.requests or {})}
        whole = _amounts(stated)
        cpu, memory = whole[0] if "cpu" in stated else cpu, whole[1] if "memory" in stated else memory
    if spec.overhead:
        more = _amounts(spec.overhead)
        cpu, memory, storage = cpu + more[0], memory + more[1], storage + more[2]
    return _interned(min(cpu, _MOST), min(memory, _MOST), min(storage, _MOST))


def allocatable_load(stated: Quantities | None) -> tuple[int | None, int | None, int | None]:
    """Return memory, ephemeral storage and pod slots that a node states; None: unknown."""
    found = stated or {}
    return tuple(  # type: ignore[return-value]
        _whole(str(found[name])) if name in found else None for name in ("memory", "ephemeral-storage", "pods")
    )


def _with_init_containers(spec: FullPodSpec, resizes: Resizes, together: _Amounts) -> _Amounts:
    """Return the largest need: one init container after the other, beside the sidecars that were started before it."""
    most, sidecars = (0, 0, 0), (0, 0, 0)
    for container in spec.init_containers or ():
        resources = resizes.resources_of(container.name, container.resources)
        own = _requests(resources.requests, resources.limits)
        asked = _sum(sidecars, own)
        most = _largest(most, asked)
        if container.restart_policy == "Always":
            sidecars = asked
    return _largest(most, _sum(sidecars, together))


def _requests(requests: Quantities | None, limits: Quantities | None) -> _Amounts:
    """Return the requests of a container; the API server sets missing ones to the limits."""
    if not requests and not limits:
        return 0, 0, 0
    return _amounts({**limits, **(requests or {})} if limits else requests or {})


def _amounts(stated: Quantities) -> _Amounts:
    cpu, memory, storage = map(stated.get, _NAMES)
    return (
        0 if cpu is None else _milli(str(cpu)),
        0 if memory is None else _whole(str(memory)) or 0,
        0 if storage is None else _whole(str(storage)) or 0,
    )


def _sum(one: _Amounts, other: _Amounts) -> _Amounts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _largest(one: _Amounts, other: _Amounts) -> _Amounts:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


@lru_cache(maxsize=1 << 10)
def _milli(text: str) -> int:
    """Return thousandths, rounded up; 0 for an invalid quantity."""
    found = parse_quantity(text)
    return 0 if found is None else min(_MOST, -(-found.numerator * 1000 // found.denominator))


@lru_cache(maxsize=1 << 10)
def _whole(text: str) -> int | None:
    """Return the number, rounded up; None for an invalid quantity."""
    found = parse_quantity(text)
    return None if found is None else min(_MOST, -(-found.numerator // found.denominator))


@lru_cache(maxsize=1 << 12)
def _interned(cpu_milli: int, memory: int, storage: int) -> NodeLoad:
    """Return one object for equal requests: the pods of one template have equal ones."""
    return NodeLoad(cpu_milli, memory, storage, 1)
