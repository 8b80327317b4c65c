"""Decodes ``v1.ListPodResourcesResponse`` from protobuf's wire format. Pure.

By hand, because a protobuf runtime costs 4 MiB and gRPC's 25 MiB of resident memory for these four messages. The
format: https://protobuf.dev/programming-guides/encoding. Fields that are not needed (CPUs, memory, topology, DRA, and
those that future kubelets add) are skipped by their wire type.

    WireError(ValueError)   the bytes are no such message; the text says where
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which proto3 does not have
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT = 10  # bytes of a 64-bit number in groups of seven


class WireError(ValueError):
    """The bytes are not the message that they should be."""


class Held(NamedTuple):
    """Devices of one resource that one container holds."""

    namespace: str  # PodResources.namespace
    pod: str  # PodResources.name
    container: str  # ContainerResources.name
    resource: str  # ContainerDevices.resource_name: see gputopo.labels.resources
    devices: tuple[str, ...]  # ContainerDevices.device_ids, as the device plugin named them


def held_devices(message: bytes) -> tuple[Held, ...]:
    """What the containers in a ``ListPodResourcesResponse`` hold, in the order told. Raises ``WireError``."""
    return tuple(held for pod in _nested(message, 1) for held in _of_pod(pod))


def _of_pod(message: bytes) -> Iterator[Held]:
    name, namespace = _text(message, 1), _text(message, 2)
    for container in _nested(message, 3):
        for devices in _nested(container, 2):
            ids = tuple(_decoded(value) for value in _nested(devices, 2))
            yield Held(namespace, name, _text(container, 1), _text(devices, 1), ids)


def _nested(message: bytes, number: int) -> list[bytes]:
    """The values of a repeated string or message field."""
    return [value for each, value in fields(message) if each == number and isinstance(value, bytes)]


def _text(message: bytes, number: int) -> str:
    """A string field; the last one counts, and absent is empty (proto3)."""
    return _decoded((_nested(message, number) or [b""])[-1])


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8 ({error.reason}): {value[:40]!r}") from error


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """``(field number, value)`` in order; fixed-size values as their bytes. Raises ``WireError``."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError(f"byte {start}: there is no field 0")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise WireError(f"byte {start}: field {number} has wire type {kind}")
        if len(message) - at < size:
            raise WireError(
                f"byte {start}: field {number} has {size} bytes and the message ends after {len(message) - at}"
            )
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """``(number, where it ends)``: seven bits a byte, least significant first."""
    value = 0
    for place in range(_MAX_VARINT):
        if at + place >= len(message):
            raise WireError(f"byte {at}: the message ends inside a number")
        byte = message[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise WireError(f"byte {at}: a number of more than {_MAX_VARINT} bytes")
