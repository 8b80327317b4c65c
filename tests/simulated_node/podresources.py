"""The kubelet's PodResources v1 API (``k8s.io/kubelet/pkg/apis/podresources/v1/api.proto``) on unix sockets.

A node is one listening socket of an asyncio loop, so a thousand cost little. The messages are described here as the
public API defines them: name, type and number of each field that whole devices need; what else there is (CPUs, memory,
dynamic resources) stays empty on these nodes, and an empty field is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from tests.simulated_node.kubelet import Allotment, Device, DeviceManager, Pod

PACKAGE = "v1"
SERVICE = f"{PACKAGE}.PodResourcesLister"
_STRING, _INT64, _MESSAGE = 9, 3, 11  # FieldDescriptorProto.Type
# message -> (field, number, repeated, type or message)
_MESSAGES: Mapping[str, Sequence[tuple[str, int, bool, int | str]]] = {
    "NUMANode": [("ID", 1, False, _INT64)],
    "TopologyInfo": [("nodes", 1, True, "NUMANode")],
    "ContainerDevices": [
        ("resource_name", 1, False, _STRING),
        ("device_ids", 2, True, _STRING),
        ("topology", 3, False, "TopologyInfo"),
    ],
    "ContainerResources": [("name", 1, False, _STRING), ("devices", 2, True, "ContainerDevices")],
    "PodResources": [
        ("name", 1, False, _STRING),
        ("namespace", 2, False, _STRING),
        ("containers", 3, True, "ContainerResources"),
    ],
    "ListPodResourcesRequest": [],
    "ListPodResourcesResponse": [("pod_resources", 1, True, "PodResources")],
    "AllocatableResourcesRequest": [],
    "AllocatableResourcesResponse": [("devices", 1, True, "ContainerDevices")],
    "GetPodResourcesRequest": [("pod_name", 1, False, _STRING), ("pod_namespace", 2, False, _STRING)],
    "GetPodResourcesResponse": [("pod_resources", 1, False, "PodResources")],
}
# method -> (request, response)
METHODS = {
    "List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
    "GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse"),
    "Get": ("GetPodResourcesRequest", "GetPodResourcesResponse"),
}


def _message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, repeated, kind in fields:
            named = isinstance(kind, str)
            message.field.add(
                name=field,
                number=number,
                label=3 if repeated else 1,  # LABEL_REPEATED, LABEL_OPTIONAL
                type=_MESSAGE if named else kind,
                type_name=f".{PACKAGE}.{kind}" if named else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES = _message_classes()


class PodResources:
    """The service of one node, over its device manager."""

    def __init__(self, devices: DeviceManager) -> None:
        self._devices = devices

    def list(self) -> dict[str, Any]:
        """Every pod of the node, those without devices included, as the kubelet lists them."""
        return {"pod_resources": [_pod(pod, given) for pod, given in self._devices.pods]}

    def allocatable(self) -> dict[str, Any]:
        """Every healthy device, whether free or not."""
        healthy = {name: tuple(self._devices.healthy(name)) for name in self._devices.capacity}
        return {"devices": _container_devices(healthy)}

    def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Return one pod. Raises ``GRPCError`` with the kubelet's message for a pod that does not exist."""
        for pod, given in self._devices.pods:
            if (pod.namespace, pod.name) == (namespace, name):
                return {"pod_resources": _pod(pod, given)}
        raise GRPCError(Status.UNKNOWN, f"pod {name} in namespace {namespace} not found")

    def __mapping__(self) -> dict[str, Handler]:
        """Return the handlers that grpclib serves, by path."""
        answers: dict[str, Callable[[Any], dict[str, Any]]] = {
            "List": lambda _: self.list(),
            "GetAllocatableResources": lambda _: self.allocatable(),
            "Get": lambda request: self.get(request.pod_namespace, request.pod_name),
        }
        return {f"/{SERVICE}/{method}": _handler(method, answer) for method, answer in answers.items()}


class Socket(Server):
    """The listening socket of one node. grpclib leaves connections to their clients; here they end with the server."""

    def __init__(self, service: PodResources) -> None:
        super().__init__([service])
        self._connections: WeakSet[H2Protocol] = WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        connection = super()._protocol_factory()
        self._connections.add(connection)
        return connection

    async def stop(self) -> None:
        """Hang up, and listen no more."""
        self.close()
        await asyncio.sleep(0)  # a connection that was just accepted is made in the next turn of the loop
        for connection in tuple(self._connections):
            connection.processor.close("the node stops")
        await self.wait_closed()


async def serve(devices: DeviceManager, path: Path) -> Socket:
    """Listen on a unix socket. Runs on the loop that calls it, as must everything that touches ``devices``."""
    socket = Socket(PodResources(devices))
    await socket.start(path=str(path))
    return socket


def _handler(method: str, answer: Callable[[Any], dict[str, Any]]) -> Handler:
    request, response = (MESSAGES[name] for name in METHODS[method])

    async def handle(stream: Stream[Any, Any]) -> None:
        await stream.send_message(response(**answer(await stream.recv_message())))

    return Handler(handle, Cardinality.UNARY_UNARY, request, response)


def _pod(pod: Pod, given: Mapping[str, Allotment]) -> dict[str, Any]:
    containers = [
        {"name": container.name, "devices": _container_devices(given.get(container.name, {}))}
        for container in pod.containers
        if not container.init or container.restartable
    ]
    return {"name": pod.name, "namespace": pod.namespace, "containers": containers}


def _container_devices(allotment: Mapping[str, Sequence[Device]]) -> list[dict[str, Any]]:
    """One entry per device, as the kubelet writes them."""
    return [
        {"resource_name": name, "device_ids": [device.id]}
        | ({} if device.numa is None else {"topology": {"nodes": [{"ID": device.numa}]}})
        for name, devices in allotment.items()
        for device in devices
    ]
