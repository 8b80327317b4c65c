"""Decodes the responses of the PodResources API from protobuf's wire format. Pure.

Written by hand, because a protobuf runtime needs 4 MiB and gRPC 25 MiB of resident memory for these few messages. The
format: https://protobuf.dev/programming-guides/encoding. Unused fields (DRA, and fields of future kubelets) are skipped
by their wire type.

    PodResourcesWireError(ValueError)   the bytes are not such a message; the text says where
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, not in proto3
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_MEMORY = 1 << 62  # bytes: Kubernetes objects hold signed numbers of 64 bits
_MAX_VARINT = 10  # bytes of a 64-bit number in groups of seven


class PodResourcesWireError(ValueError):
    """The bytes are not a valid message."""


class HeldDevices(NamedTuple):
    """Devices of one resource that one container holds."""

    namespace: str  # PodResources.namespace
    pod: str  # PodResources.name
    container: str  # ContainerResources.name
    resource: str  # ContainerDevices.resource_name: see gputopo.labels.resources
    devices: tuple[str, ...]  # ContainerDevices.device_ids, as the device plugin named them


class MemoryBlock(NamedTuple):
    """Memory of one or more NUMA nodes."""

    kind: str  # ContainerMemory.memory_type: "memory", or "hugepages-2Mi"
    size: int  # bytes
    nodes: tuple[int, ...]  # ids of NUMA nodes


class PinnedResources(NamedTuple):
    """CPUs and memory that the kubelet may allocate exclusively, or that containers hold exclusively."""

    cpus: frozenset[int] = frozenset()  # ids
    memory: tuple[MemoryBlock, ...] = ()


class AllocatableResources(NamedTuple):
    """``AllocatableResourcesResponse``: everything that the kubelet may allocate, whether free or not."""

    devices: frozenset[tuple[str, str]] = frozenset()  # resource name, and device id: the healthy devices
    pinned: PinnedResources = PinnedResources()  # empty where the policies of the CPU and Memory Manager are none


def decode_allocatable(message: bytes) -> AllocatableResources:
    """Return an ``AllocatableResourcesResponse``. Raises ``PodResourcesWireError``."""
    found = set()
    for devices in _field_values(message, 1):
        name = _text_field(devices, 1)
        found |= {(name, _decode_text(value)) for value in _field_values(devices, 2)}
    return AllocatableResources(frozenset(found), _pinned(message, 2, 3))


def decode_pinned(message: bytes) -> PinnedResources:
    """Return the CPUs and memory that the containers in a ``ListPodResourcesResponse`` hold exclusively.

    Raises ``PodResourcesWireError``.
    """
    containers = [each for pod in _field_values(message, 1) for each in _field_values(pod, 3)]
    found = [_pinned(each, 3, 4) for each in containers]
    cpus = frozenset(cpu for each in found for cpu in each.cpus)
    return PinnedResources(cpus, tuple(sorted(block for each in found for block in each.memory)))


def _pinned(message: bytes, cpus: int, memory: int) -> PinnedResources:
    blocks = [
        MemoryBlock(_text_field(each, 1), min(_MAX_MEMORY, (_numbers(each, 2) or [0])[-1]), _numa_nodes(each))
        for each in _field_values(message, memory)
    ]
    return PinnedResources(frozenset(_numbers(message, cpus)), tuple(sorted(blocks)))


def _numa_nodes(message: bytes) -> tuple[int, ...]:
    nodes = [node for topology in _field_values(message, 3) for node in _field_values(topology, 1)]
    return tuple(sorted({(_numbers(node, 1) or [0])[-1] for node in nodes}))


def _numbers(message: bytes, number: int) -> list[int]:
    """Return the values of a number field, repeated (packed or not) or single."""
    found: list[int] = []
    for each, value in decode_fields(message):
        if each == number and isinstance(value, int):
            found.append(value)
        elif each == number and isinstance(value, bytes):
            offset = 0
            while offset < len(value):
                one, offset = _decode_varint(value, offset)
                found.append(one)
    return found


def decode_held_devices(message: bytes) -> tuple[HeldDevices, ...]:
    """Return the devices in a ``ListPodResourcesResponse``, in its order. Raises ``PodResourcesWireError``."""
    return tuple(held for pod in _field_values(message, 1) for held in _held_by_pod(pod))


def _held_by_pod(message: bytes) -> Iterator[HeldDevices]:
    name, namespace = _text_field(message, 1), _text_field(message, 2)
    for container in _field_values(message, 3):
        for devices in _field_values(container, 2):
            ids = tuple(_decode_text(value) for value in _field_values(devices, 2))
            yield HeldDevices(namespace, name, _text_field(container, 1), _text_field(devices, 1), ids)


def _field_values(message: bytes, number: int) -> list[bytes]:
    """Return the values of a repeated string or message field."""
    return [value for each, value in decode_fields(message) if each == number and isinstance(value, bytes)]


def _text_field(message: bytes, number: int) -> str:
    """Return a string field; the last value counts, and an absent field is empty (proto3)."""
    return _decode_text((_field_values(message, number) or [b""])[-1])


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise PodResourcesWireError(f"a string is not UTF-8 ({error.reason}): {value[:40]!r}") from error


def decode_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield ``(field number, value)`` in order; fixed-size values as bytes. Raises ``PodResourcesWireError``."""
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _decode_varint(message, offset)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise PodResourcesWireError(f"byte {start}: field number 0 is invalid")
        if kind == _VARINT:
            value, offset = _decode_varint(message, offset)
            yield number, value
            continue
        if kind == _BYTES:
            size, offset = _decode_varint(message, offset)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise PodResourcesWireError(f"byte {start}: field {number} has the unsupported wire type {kind}")
        if len(message) - offset < size:
            raise PodResourcesWireError(
                f"byte {start}: field {number} has {size} bytes and the message ends after {len(message) - offset}"
            )
        yield number, message[offset : offset + size]
        offset += size


def _decode_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return ``(number, end offset)``: seven bits per byte, least significant first."""
    value = 0
    for position in range(_MAX_VARINT):
        if offset + position >= len(message):
            raise PodResourcesWireError(f"byte {offset}: the message ends inside a varint")
        byte = message[offset + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, offset + position + 1
    raise PodResourcesWireError(f"byte {offset}: a varint of more than {_MAX_VARINT} bytes")
