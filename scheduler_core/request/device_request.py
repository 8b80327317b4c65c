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
from gputopo.labels.reasons import malformed_text
from gputopo.labels.resources import is_gpu
from scheduler_core.request.pod import Container, PodSpec
from scheduler_core.request.quantity import parse_count, parse_quantity

WHOLE, SHARED = GPU_RESOURCES
MAX_DEVICES = 1 << 16  # devices a container may ask for: beyond any node, and keeps arithmetic small


class ContainerStep(NamedTuple):
    """One container's turn."""

    devices: int
    holds_until_end: bool = True  # False: an init container that ends, and whose devices later containers may have


ContainerSteps = tuple[ContainerStep, ...]


class DeviceRequest(NamedTuple):
    """What a pod takes of each GPU resource, by name of the resource. Only steps that take something are kept."""

    steps_by_resource: tuple[tuple[str, ContainerSteps], ...] = ()
    cpu_milli: int = 0  # CPU of the whole pod, in whole cores rounded up; 0: none asked, or it cannot be read

    @property
    def whole_gpu_steps(self) -> ContainerSteps:
        """Turns for whole GPUs."""
        for resource, program in self.steps_by_resource:
            if resource == WHOLE:
                return program
        return ()

    @property
    def totals(self) -> tuple[tuple[str, int], ...]:
        """Devices of each resource that the pod holds."""
        return _totals(self.steps_by_resource)


class MalformedDeviceRequestError(ValueError):
    """A container asks for what is no number of devices; the text quotes it. Reading a request catches it."""


@lru_cache(maxsize=1 << 12)
def total_devices(program: ContainerSteps) -> int:
    """Devices that the pod holds in the end."""
    held = reusable = 0
    for step in program:
        again = min(step.devices, reusable)
        held += step.devices - again
        reusable += -again if step.holds_until_end else step.devices - again
    return held


@lru_cache(maxsize=1 << 12)
def _totals(programs: tuple[tuple[str, ContainerSteps], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((resource, total_devices(program)) for resource, program in programs)


def requests_gpus(spec: PodSpec) -> bool:
    """Whether a container names a GPU resource, however many of it. Most pods' do not."""
    return any(
        is_gpu(resource)
        for container in (*(spec.init_containers or ()), *(spec.containers or ()))
        for asked in (container.resources.limits, container.resources.requests)
        for resource in asked or ()
    )


def parse_device_request(spec: PodSpec) -> DeviceRequest:
    """The GPU resources that a pod's containers ask for. Raises ``MalformedAskError``."""
    programs: dict[str, list[ContainerStep]] = {}
    for container in spec.init_containers or ():
        _add_container(programs, container, stays=container.restart_policy == "Always")
    for container in spec.containers or ():
        _add_container(programs, container, stays=True)
    found = tuple((resource, tuple(steps)) for resource, steps in sorted(programs.items()))
    return DeviceRequest(found, _cpu(spec) if found else 0)


def _add_container(programs: dict[str, list[ContainerStep]], container: Container, *, stays: bool) -> None:
    for resource, wanted in _wanted(container):
        if wanted:
            programs.setdefault(resource, []).append(ContainerStep(wanted, stays))


def _cpu(spec: PodSpec) -> int:
    """What kube-scheduler counts, but for overhead: all that run together, or the most demanding init container."""
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    running = sum(map(_cores, (*(spec.containers or ()), *sidecars)))
    first = max((_cores(each) for each in spec.init_containers or ()), default=Fraction())
    return 1000 * ceil(max(running, first))


def _cores(container: Container) -> Fraction:
    asked = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return parse_quantity(str(asked.get("cpu", 0))) or Fraction()


def _wanted(container: Container) -> Iterable[tuple[str, int]]:
    """The limit counts, as for the kubelet; where only a request is written, that."""
    asked = {**(container.resources.requests or {}), **(container.resources.limits or {})}
    for resource, text in asked.items():
        if is_gpu(resource):
            wanted = parse_count(str(text))
            if wanted is None or wanted > MAX_DEVICES:
                raise MalformedDeviceRequestError(malformed_text(resource, str(text), "a number of devices"))
            yield resource, wanted
