"""How many devices of which resource a pod takes, container by container, as the kubelet hands them out. Pure.

The kubelet gives devices to one container after the other, init containers first. What an init container had is given
again to later containers, unless it stays (a sidecar). Everything is the pod's until the pod ends, so the pod as a
whole takes what its most demanding moment needs; that is also what kube-scheduler counts.

Source: ``pkg/kubelet/cm/devicemanager`` and KEP-753 of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from gputopo.labels.keys import GPU_RESOURCES
from gputopo.labels.reasons import malformed
from gputopo.labels.resources import is_gpu
from scheduler_core.request.pod import Container, PodSpec
from scheduler_core.request.quantity import count, quantity

WHOLE, SHARED = GPU_RESOURCES
MOST = 1 << 16  # devices a container may ask for: beyond any node, and keeps arithmetic small


class Step(NamedTuple):
    """One container's turn."""

    devices: int
    stays: bool = True  # False: an init container that ends, and whose devices later containers may have


Program = tuple[Step, ...]


class Ask(NamedTuple):
    """What a pod takes of each GPU resource, by name of the resource. Only steps that take something are kept."""

    programs: tuple[tuple[str, Program], ...] = ()
    cpu_milli: int = 0  # CPU of the whole pod, in whole cores rounded up; 0: none asked, or it cannot be read

    @property
    def whole(self) -> Program:
        """Turns for whole GPUs."""
        for resource, program in self.programs:
            if resource == WHOLE:
                return program
        return ()

    @property
    def totals(self) -> tuple[tuple[str, int], ...]:
        """Devices of each resource that the pod holds."""
        return _totals(self.programs)


class MalformedAskError(ValueError):
    """A container asks for what is no number of devices; the text quotes it. Reading a request catches it."""


@lru_cache(maxsize=1 << 12)
def total(program: Program) -> int:
    """Devices that the pod holds in the end."""
    held = reusable = 0
    for step in program:
        again = min(step.devices, reusable)
        held += step.devices - again
        reusable += -again if step.stays else step.devices - again
    return held


@lru_cache(maxsize=1 << 12)
def _totals(programs: tuple[tuple[str, Program], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((resource, total(program)) for resource, program in programs)


def asks_for_gpus(spec: PodSpec) -> bool:
    """Whether a container names a GPU resource, however many of it. Most pods' do not."""
    return any(
        is_gpu(resource)
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))
        for asked in (container.resources.limits, container.resources.requests)
        for resource in asked or ()
    )


def read_ask(spec: PodSpec) -> Ask:
    """The GPU resources that a pod's containers ask for. Raises ``MalformedAskError``."""
    programs: dict[str, list[Step]] = {}
    for container in spec.init_containers or ():
        _take(programs, container, stays=container.restart_policy == "Always")
    for container in spec.containers or ():
        _take(programs, container, stays=True)
    found = tuple((resource, tuple(steps)) for resource, steps in sorted(programs.items()))
    return Ask(found, _cpu(spec) if found else 0)


def _take(programs: dict[str, list[Step]], container: Container, *, stays: bool) -> None:
    for resource, wanted in _wanted(container):
        if wanted:
            programs.setdefault(resource, []).append(Step(wanted, stays))


def _cpu(spec: PodSpec) -> int:
    """What kube-scheduler counts, but for overhead: all that run together, or the most demanding init container."""
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    running = sum(map(_cores, (*(spec.containers or ()), *sidecars)))
    first = max((_cores(each) for each in spec.init_containers or ()), default=Fraction())
    return 1000 * ceil(max(running, first))


def _cores(container: Container) -> Fraction:
    asked = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return quantity(str(asked.get("cpu", 0))) or Fraction()


def _wanted(container: Container) -> Iterable[tuple[str, int]]:
    """The limit counts, as for the kubelet; where only a request is written, that."""
    asked = {**(container.resources.requests or {}), **(container.resources.limits or {})}
    for resource, text in asked.items():
        if is_gpu(resource):
            wanted = count(str(text))
            if wanted is None or wanted > MOST:
                raise MalformedAskError(malformed(resource, str(text), "a number of devices"))
            yield resource, wanted
