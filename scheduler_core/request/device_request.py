"""The devices of each resource that a pod requests, container by container, as the kubelet allocates them. Pure.

The kubelet allocates devices to one container after the other, init containers first. It reuses the devices of an init
container for later containers, unless the init container is a sidecar. The pod holds all of its devices until it ends,
so it takes the maximum that it needs at any time; kube-scheduler counts the same.

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
from gputopo.model import MAX_GPUS
from gputopo.quantities import parse_count, parse_quantity
from scheduler_core.request.pod import Container, PodSpec

WHOLE, SHARED = GPU_RESOURCES
_MAX_STEPS = 2 * MAX_GPUS  # containers that are modelled one by one: no node has GPUs for more, and each costs time
_MAX_RESOURCES = 64  # kinds of GPUs, shares and MIG devices: each is looked up on every node; a node has a few
_MAX_IDLE_STEPS = 8  # init containers that only reuse GPUs: they matter to the kubelet's Topology Manager alone
_NO_CORES = Fraction()
_MAX_OTHER_DEVICES = 256  # more than any node has network cards and virtual functions
MAX_DEVICES = 1 << 16  # devices that a container may request: more than any node has


class ContainerStep(NamedTuple):
    """The devices that the kubelet allocates to one container."""

    devices: int
    holds_until_end: bool = True  # False: an init container that ends; later containers reuse its devices
    # What else the kubelet may align with the devices. Only in ``aligned_steps``.
    cpus: int = 0  # for exclusive use: whole cores of a pod of QoS class Guaranteed
    memory: int = 0  # bytes, of a pod of QoS class Guaranteed
    others: bool = False  # devices of other vendors, huge pages, or resources of the whole pod


ContainerSteps = tuple[ContainerStep, ...]


class DeviceRequest(NamedTuple):
    """The devices of each GPU resource that a pod requests. Containers without devices are left out."""

    steps_by_resource: tuple[tuple[str, ContainerSteps], ...] = ()
    cpu_milli: int = 0  # CPU of the pod, rounded up to whole cores; 0: none requested, or invalid
    # All containers with everything that a kubelet may align with their whole GPUs; (): only GPUs.
    aligned_steps: ContainerSteps = ()
    other_devices: int = 0  # of other device plugins, at most at once: network cards may be among them

    @property
    def whole_gpu_steps(self) -> ContainerSteps:
        """The steps that allocate whole GPUs."""
        for resource, steps in self.steps_by_resource:
            if resource == WHOLE:
                return steps
        return ()

    @property
    def totals(self) -> tuple[tuple[str, int], ...]:
        """The number of devices of each resource that the pod holds."""
        return _totals(self.steps_by_resource)


class MalformedDeviceRequestError(ValueError):
    """A container requests an invalid number of devices; the message quotes it. ``parse_request`` catches it."""


@lru_cache(maxsize=1 << 12)
def total_devices(steps: ContainerSteps) -> int:
    """Return the number of devices that the pod holds after its last container has started."""
    held = reusable = 0
    for step in steps:
        reused = min(step.devices, reusable)
        held += step.devices - reused
        reusable += -reused if step.holds_until_end else step.devices - reused
    return held


@lru_cache(maxsize=1 << 12)
def _totals(steps_by_resource: tuple[tuple[str, ContainerSteps], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((resource, total_devices(steps)) for resource, steps in steps_by_resource)


def requests_gpus(spec: PodSpec) -> bool:
    """Return True if a container names a GPU resource, even with quantity 0."""
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources
            if any(map(is_gpu, resources.limits or ())) or any(map(is_gpu, resources.requests or ())):
                return True
    return False


def parse_device_request(spec: PodSpec) -> DeviceRequest:
    """Return the GPU resources that the containers of a pod request. Raises ``MalformedDeviceRequestError``."""
    steps_by_resource: dict[str, list[ContainerStep]] = {}
    for container in spec.init_containers or ():
        _add_container(steps_by_resource, container, stays=container.restart_policy == "Always")
    for container in spec.containers or ():
        _add_container(steps_by_resource, container, stays=True)
    if len(steps_by_resource) > _MAX_RESOURCES:
        raise MalformedDeviceRequestError(
            f"the pod requests {len(steps_by_resource)} GPU resources: expected at most {_MAX_RESOURCES}"
        )
    found = tuple((resource, _without_idle_steps(steps)) for resource, steps in sorted(steps_by_resource.items()))
    aligned = _aligned_steps(spec) if WHOLE in steps_by_resource else ()
    return DeviceRequest(found, _cpu(spec) if found else 0, aligned, _other_devices(spec) if found else 0)


def _without_idle_steps(steps: Iterable[ContainerStep]) -> ContainerSteps:
    """Return the steps without most init containers that only reuse devices. Too many steps count as a single one."""
    kept: list[ContainerStep] = []
    reusable = idle = 0
    for step in steps:
        if step.holds_until_end:
            reusable -= min(step.devices, reusable)
        elif step.devices > reusable:
            reusable = step.devices
        elif idle < _MAX_IDLE_STEPS:
            idle += 1
        else:
            continue
        kept.append(step)
    return tuple(kept) if len(kept) <= _MAX_STEPS else (ContainerStep(total_devices(tuple(kept))),)


def _aligned_steps(spec: PodSpec) -> ContainerSteps:
    """Return all containers with the resources that a kubelet may align; () if these are GPUs alone, or too many."""
    containers = [(each, each.restart_policy == "Always") for each in spec.init_containers or ()]
    containers += [(each, True) for each in spec.containers or ()]
    if len(containers) > _MAX_STEPS:
        return ()
    guaranteed = all(_is_guaranteed(each) for each, _ in containers)
    of_pod = spec.resources is not None
    if not guaranteed and not of_pod and not any(_has_others(each, guaranteed) for each, _ in containers):
        return ()  # most pods
    steps = tuple(_aligned_step(each, stays, guaranteed, of_pod) for each, stays in containers)
    return steps if any(step.cpus or step.memory or step.others for step in steps) else ()


def _aligned_step(container: Container, stays: bool, guaranteed: bool, of_pod: bool) -> ContainerStep:
    quantities = _quantities(container)
    devices = dict(_requested_devices(container)).get(WHOLE, 0)
    cores, memory = (parse_quantity(str(quantities.get(name, 0))) or Fraction() for name in ("cpu", "memory"))
    return ContainerStep(
        devices,
        stays,
        int(cores) if guaranteed and cores.denominator == 1 else 0,
        ceil(memory) if guaranteed else 0,
        of_pod or _has_others(container, guaranteed),
    )


def _has_others(container: Container, guaranteed: bool) -> bool:
    """Return whether the container requests other things that a kubelet may align."""
    names = (*(container.resources.limits or ()), *(container.resources.requests or ()))
    return any(("/" in name and not is_gpu(name)) or (guaranteed and name.startswith("hugepages-")) for name in names)


def _other_devices(spec: PodSpec) -> int:
    """Return the devices of other plugins that the pod holds at most: those of init containers are reused."""
    first = [each for each in spec.init_containers or () if each.restart_policy != "Always"]
    staying = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    running = sum(map(_others_of, (*(spec.containers or ()), *staying)))
    return min(_MAX_OTHER_DEVICES, max(running, sum(map(_others_of, staying)) + max(map(_others_of, first), default=0)))


def _others_of(container: Container) -> int:
    quantities = _quantities(container)
    return sum(parse_count(str(text)) or 0 for name, text in quantities.items() if "/" in name and not is_gpu(name))


def _is_guaranteed(container: Container) -> bool:
    """Return whether CPU and memory have limits above 0, and requests that equal them (``ComputePodQOS``)."""
    limits, requests = container.resources.limits or {}, container.resources.requests or {}
    return all(
        name in limits and _same(limits[name], requests.get(name, limits[name])) and parse_quantity(str(limits[name]))
        for name in ("cpu", "memory")
    )


def _same(one: object, other: object) -> bool:
    return one == other or parse_quantity(str(one)) == parse_quantity(str(other))


def _quantities(container: Container) -> dict[str, str | int | float]:
    """Return the limits of a container, and its requests where there is no limit, as the kubelet counts."""
    return {**(container.resources.requests or {}), **(container.resources.limits or {})}


def _add_container(steps_by_resource: dict[str, list[ContainerStep]], container: Container, *, stays: bool) -> None:
    for resource, devices in _requested_devices(container):
        if devices:
            steps_by_resource.setdefault(resource, []).append(ContainerStep(devices, stays))


def _cpu(spec: PodSpec) -> int:
    """As kube-scheduler counts, without overhead: the containers that run together, or the largest init container."""
    sidecars = [each for each in spec.init_containers or () if each.restart_policy == "Always"]
    running = sum(map(_cores, (*(spec.containers or ()), *sidecars)))
    first = max((_cores(each) for each in spec.init_containers or ()), default=Fraction())
    return 1000 * ceil(max(running, first))


def _cores(container: Container) -> Fraction:
    quantities = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    # Thousands of init containers without a request must not cost a parse each.
    return _NO_CORES if "cpu" not in quantities else parse_quantity(str(quantities["cpu"])) or _NO_CORES


def _requested_devices(container: Container) -> Iterable[tuple[str, int]]:
    for resource, text in _quantities(container).items():
        if is_gpu(resource):
            devices = parse_count(str(text))
            if devices is None or devices > MAX_DEVICES:
                raise MalformedDeviceRequestError(malformed_text(resource, str(text), "a number of devices"))
            yield resource, devices
