"""A PodResources socket of a kubelet: a real gRPC server (grpcio) with the messages of the public ``api.proto``.

protobuf builds the messages from a descriptor in this module, so that our decoder is tested against another encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
STRING, INT64, UINT64, MESSAGE = _Field.TYPE_STRING, _Field.TYPE_INT64, _Field.TYPE_UINT64, _Field.TYPE_MESSAGE
ONE, MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED

# message -> fields: (name, number, label, type, message type)
_MESSAGES: dict[str, tuple[tuple[str, int, _Field.Label.ValueType, _Field.Type.ValueType, str], ...]] = {
    "NUMANode": (("ID", 1, ONE, INT64, ""),),
    "TopologyInfo": (("nodes", 1, MANY, MESSAGE, "NUMANode"),),
    "ContainerDevices": (
        ("resource_name", 1, ONE, STRING, ""),
        ("device_ids", 2, MANY, STRING, ""),
        ("topology", 3, ONE, MESSAGE, "TopologyInfo"),
    ),
    "ContainerMemory": (
        ("memory_type", 1, ONE, STRING, ""),
        ("size", 2, ONE, UINT64, ""),
        ("topology", 3, ONE, MESSAGE, "TopologyInfo"),
    ),
    "ContainerResources": (
        ("name", 1, ONE, STRING, ""),
        ("devices", 2, MANY, MESSAGE, "ContainerDevices"),
        ("cpu_ids", 3, MANY, INT64, ""),
        ("memory", 4, MANY, MESSAGE, "ContainerMemory"),
    ),
    "PodResources": (
        ("name", 1, ONE, STRING, ""),
        ("namespace", 2, ONE, STRING, ""),
        ("containers", 3, MANY, MESSAGE, "ContainerResources"),
        ("cpu_ids", 4, MANY, INT64, ""),
    ),
    "AllocatableResourcesResponse": (
        ("devices", 1, MANY, MESSAGE, "ContainerDevices"),
        ("cpu_ids", 2, MANY, INT64, ""),
        ("memory", 3, MANY, MESSAGE, "ContainerMemory"),
    ),
    "ListPodResourcesResponse": (("pod_resources", 1, MANY, MESSAGE, "PodResources"),),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, label, kind, of in fields:
            added = message.field.add(name=field, number=number, label=label, type=kind)
            if of:
                added.type_name = f".v1.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES}


_CLASS = _classes()


def message(kind: str, /, **fields: Any) -> Any:
    """A protobuf message of the PodResources API."""
    return _CLASS[kind](**fields)


def pod(name: str, devices: dict[str, list[str]], *, namespace: str = "default", container: str = "main") -> Any:
    """A pod whose one container holds devices, by resource; with CPUs, memory and NUMA nodes around them."""
    near = message("TopologyInfo", nodes=[message("NUMANode", ID=1)])
    holds = [
        message("ContainerDevices", resource_name=resource, device_ids=ids, topology=near)
        for resource, ids in devices.items()
    ]
    memory = [message("ContainerMemory", memory_type="memory", size=2**40, topology=near)]
    inside = message("ContainerResources", name=container, devices=holds, cpu_ids=[1, 300, 2**40], memory=memory)
    return message("PodResources", name=name, namespace=namespace, containers=[inside], cpu_ids=[7])


def listing(*pods: Any) -> bytes:
    """The bytes of a ``ListPodResourcesResponse``."""
    encoded: bytes = message("ListPodResourcesResponse", pod_resources=pods).SerializeToString()
    return encoded


def memory(size: int, *nodes: int, kind: str = "memory") -> Any:
    """A block of memory of NUMA nodes."""
    topology = message("TopologyInfo", nodes=[message("NUMANode", ID=node) for node in nodes])
    return message("ContainerMemory", memory_type=kind, size=size, topology=topology)


def offer(devices: dict[str, list[str]], cpus: Iterable[int] = (), blocks: Iterable[Any] = ()) -> bytes:
    """The bytes of an ``AllocatableResourcesResponse``: one entry per device, as the kubelet writes them."""
    entries = [
        message("ContainerDevices", resource_name=resource, device_ids=[each])
        for resource, ids in devices.items()
        for each in ids
    ]
    encoded: bytes = message(
        "AllocatableResourcesResponse", devices=entries, cpu_ids=list(cpus), memory=list(blocks)
    ).SerializeToString()
    return encoded


Answer = Callable[[grpc.ServicerContext], bytes]


@contextmanager
def kubelet(socket: Path, answer: Answer, allocatable: Answer | None = None) -> Iterator[grpc.Server]:
    """Serve ``List``, and ``GetAllocatableResources`` if there is an answer, on a unix socket."""
    answers = {"List": answer} | ({} if allocatable is None else {"GetAllocatableResources": allocatable})
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(lambda _, context, each=each: each(context))
        for name, each in answers.items()
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield server
    finally:
        server.stop(None).wait()
        socket.unlink(missing_ok=True)
