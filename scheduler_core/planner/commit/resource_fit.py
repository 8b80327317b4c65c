"""Whether the members of a gang fit on the nodes of its hold: CPU, memory, other resources, host ports. Pure.

A search counts CPU, memory, ephemeral storage and pod slots. Before the first pod is evicted, the planner reads all
pods of these nodes: their host ports and other resources may keep a member from its node although its GPUs come free.
Counted as kube-scheduler does (NodeResourcesFit, NodePorts).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from fractions import Fraction

import msgspec

from gputopo.labels.resources import is_gpu
from gputopo.quantities import parse_quantity
from scheduler_core.request.pod import ContainerResources, PodCondition
from scheduler_core.request.resizes import Statuses, resizes_of

_ONE_POD = {"pods": Fraction(1)}  # of the pods that a node may have
_NONE = Fraction(0)
_GIB = 1 << 30
_ANY_ADDRESS = frozenset(("", "0.0.0.0"))  # noqa: S104  nothing is bound here
Amounts = Mapping[str, Fraction]  # by resource


class FitMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The part of ``metadata`` that matters here: annotations may be large."""

    name: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None


class FitPort(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``ports`` of a container. With the network of the host, the API server sets ``hostPort``."""

    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")

    def conflicts_with(self, other: FitPort) -> bool:
        """Return whether one node cannot offer both."""
        is_same = self.host_port == other.host_port and self.protocol == other.protocol
        return is_same and (self.host_ip == other.host_ip or not _ANY_ADDRESS.isdisjoint((self.host_ip, other.host_ip)))


class FitContainer(msgspec.Struct, frozen=True, rename="camel"):
    """A container or init container."""

    name: str = ""
    resources: ContainerResources = ContainerResources()
    restart_policy: str | None = None  # "Always" on an init container: a sidecar
    ports: tuple[FitPort, ...] | None = None


class FitSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a pod's ``spec`` that requests resources of its node."""

    containers: tuple[FitContainer, ...] | None = None
    init_containers: tuple[FitContainer, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: ContainerResources | None = None  # of all containers together


class FitStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a pod's ``status`` that says which resources it uses."""

    phase: str | None = None
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: Statuses = None
    init_container_statuses: Statuses = None


class FitPod(msgspec.Struct, frozen=True):
    """A pod, as far as it requests resources of its node."""

    metadata: FitMetadata = FitMetadata()
    spec: FitSpec = FitSpec()
    status: FitStatus = FitStatus()


class FitNodeStatus(msgspec.Struct, frozen=True):
    """``status`` of a Node."""

    allocatable: dict[str, str | int | float] | None = None


class FitNode(msgspec.Struct, frozen=True):
    """A Node, as far as pods may request its resources."""

    metadata: FitMetadata = FitMetadata()
    status: FitNodeStatus = FitNodeStatus()


def shortage_on(node: FitNode, pods: Iterable[FitPod], gone: Container[str], members: Iterable[FitPod]) -> str | None:
    """Return which resource or port the members lack on a node, for people; None: none.

    ``pods``: of the node; ``gone``: UIDs of pods that are to be evicted. Pods that terminate count as gone.
    """
    staying, members = _staying(pods, gone), list(members)
    used, asked = _sum(map(requests_of, staying)), _sum(map(requests_of, members))
    allocatable = _quantities(node.status.allocatable)
    free = {name: max(_NONE, allocatable.get(name, _NONE) - used.get(name, _NONE)) for name in asked}
    short = min((name for name, number in asked.items() if number > free[name] and not is_gpu(name)), default=None)
    if short is not None:
        left, needed = _text(free[short]), _text(asked[short])
        about = f"{left} of {short} left for members of the gang that request {needed}"
        return f"node {node.metadata.name} would have {about}"
    taken = [port for pod in staying for port in _host_ports(pod)]
    for port in (port for pod in members for port in _host_ports(pod)):
        if any(map(port.conflicts_with, taken)):
            return f"port {port.host_port} of node {node.metadata.name} would be in use, which members of the gang need"
        taken.append(port)
    return None


def _staying(pods: Iterable[FitPod], gone: Container[str]) -> list[FitPod]:
    return [
        pod
        for pod in pods
        if pod.metadata.uid not in gone
        and pod.metadata.deletion_timestamp is None
        and pod.status.phase not in ("Succeeded", "Failed")
    ]


def _host_ports(pod: FitPod) -> list[FitPort]:
    sidecars = [each for each in pod.spec.init_containers or () if each.restart_policy == "Always"]
    containers = (*sidecars, *(pod.spec.containers or ()))
    return [port for each in containers for port in each.ports or () if port.host_port]


def _text(number: Fraction) -> str:
    return f"{float(number / _GIB):.4g}Gi" if number >= _GIB else f"{float(number):g}"


def requests_of(pod: FitPod) -> Amounts:
    """Return the resources that a pod requests, as kube-scheduler counts them, with the overhead and the pod itself."""
    spec, status = pod.spec, pod.status
    resizes = resizes_of(status.container_statuses, status.init_container_statuses, status.conditions)
    most, sidecars = dict[str, Fraction](), dict[str, Fraction]()
    for container in spec.init_containers or ():
        asked = _sum((sidecars, _requests(resizes.resources_of(container.name, container.resources))))
        most = _largest(most, asked)
        if container.restart_policy == "Always":
            sidecars = asked
    containers = (resizes.resources_of(each.name, each.resources) for each in spec.containers or ())
    together = _sum((sidecars, *map(_requests, containers)))
    of_pod = {} if spec.resources is None else _requests(spec.resources)
    return _sum(({**_largest(most, together), **of_pod}, _quantities(spec.overhead), _ONE_POD))


def _sum(amounts: Iterable[Amounts]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = {}
    for each in amounts:
        for name, number in each.items():
            found[name] = found.get(name, _NONE) + number
    return found


def _largest(one: Amounts, other: Amounts) -> dict[str, Fraction]:
    return {name: max(one.get(name, _NONE), other.get(name, _NONE)) for name in {**one, **other}}


def _requests(resources: ContainerResources) -> dict[str, Fraction]:
    """Return the requests; the API server sets missing ones to the limits."""
    return _quantities({**(resources.limits or {}), **(resources.requests or {})})


def _quantities(written: Mapping[str, str | int | float] | None) -> dict[str, Fraction]:
    return dict(_valid(written or {}))


def _valid(written: Mapping[str, str | int | float]) -> Iterator[tuple[str, Fraction]]:
    for name, text in written.items():
        if number := parse_quantity(str(text)):
            yield name, number
