"""The JSON fields that a type decodes, and hostile values for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from gputopo.labels import keys, workloads

Path = tuple[str | int, ...]
_PLACEHOLDER = "@hostile@"
_SERVER_FIELDS = {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"}
_OWN_KEYS = (*keys.POD_KEYS, *keys.NODE_LABELS, *keys.NODE_ANNOTATIONS, *keys.MIRRORS, *keys.NODE_KEYS_READ)
_KNOWN_KEYS = sorted(
    {key.key for key in _OWN_KEYS}
    | {value for name, value in vars(workloads).items() if name.isupper() and isinstance(value, str) and "/" in value}
)
_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "cpu", "memory")
_TEXTS = (
    "",
    " ",
    "\\u0000",
    "\\ud800",  # half of a character
    "\\u202eabc\\u2066",  # text direction
    "a\\nb\\rc",
    "é́" * 50,
    "-1",
    "0",
    "1e-0",
    "2E0",
    "1k",
    "1m",
    "1e999999999",
    "9" * 4_000,
    "0x10",
    "٣",  # a digit of another script
    "NaN",
    "true",
    "null",
    "9999-12-31T23:59:59Z",
    "0000-00-00T00:00:00Z",
    "2026-02-30T25:61:61Z",
    "2026-11-18T11:00:00+99:99",
    "required",
    "../../etc/passwd",
    "{" * 2_000,
    "(a+)+$" * 20,
    "x" * 200_000,
    "\\n" * 200_000,
    "a," * 50_000,
)
_NUMBERS = ("-1", "0", "1.5", "2147483648", "9223372036854775808", "1e308", "1e999", "9" * 400, "-0")


class Hostile(NamedTuple):
    """A hostile value in a field."""

    field: str  # "spec.containers.0.image"
    value: str  # JSON, shortened
    text: bytes  # of the object


def hostile_objects(kind: type[Any], base: dict[str, Any], step: int = 1) -> Iterator[Hostile]:
    """Yield the object with every ``step``-th hostile value of the fields that ``kind`` decodes.

    Not of the metadata that the API server sets itself.
    """
    unread = [("metadata", "managedFields"), ("metadata", "labels", "x"), ("spec", "unknownField")]
    fields = [*_fields(msgspec.inspect.type_info(kind), ()), *((path, _STRUCTURES) for path in unread)]
    tried = (
        (path, value)
        for path, values in fields
        if path and (path[0] != "metadata" or path[-1] not in _SERVER_FIELDS)
        for value in values
    )
    for path, value in islice(tried, 0, None, step):
        yield Hostile(".".join(map(str, path)), _shortened(value), _with_value(base, path, value))


_SCALARS = ("null", "true", '"x"', "7", "[]", "{}", "[null]", '{"a":null}')
_STRUCTURES = (
    *_SCALARS,
    '{"a":' * 3_000 + "{}" + "}" * 3_000,
    "[" * 3_000 + "]" * 3_000,
    "[" + ",".join(["{}"] * 20_000) + "]",
    "{" + ",".join(f'"k{number}":"v"' for number in range(20_000)) + "}",
)
_STRINGS = (*_STRUCTURES, *(f'"{text}"' for text in _TEXTS))


def _fields(kind: msgspec.inspect.Type, path: Path, depth: int = 0) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield each field below a type, with the values to try."""
    inspect = msgspec.inspect
    if depth > 12:  # types that contain themselves
        return
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _fields(each, path, depth + 1)
    elif isinstance(kind, inspect.StructType):
        yield path, _STRUCTURES
        for field in kind.fields:
            yield from _fields(field.type, (*path, field.encode_name), depth + 1)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield path, _STRUCTURES
        yield from _fields(kind.item_type, (*path, 0), depth + 1)
    elif isinstance(kind, inspect.DictType):
        yield path, _STRUCTURES
        names = _RESOURCES if path[-1] in ("limits", "requests", "allocatable") else _KNOWN_KEYS
        for name in names:
            yield from _fields(kind.value_type, (*path, name), depth + 1)
    elif isinstance(kind, inspect.StrType | inspect.AnyType | inspect.RawType | inspect.EnumType):
        yield path, _STRINGS
    elif isinstance(kind, inspect.IntType | inspect.FloatType | inspect.BoolType):
        yield path, (*_STRUCTURES, *_NUMBERS)


def _with_value(base: dict[str, Any], path: Path, value: str) -> bytes:
    """Return the object as JSON, with the JSON text ``value`` at ``path``."""
    changed = json.loads(json.dumps(base))
    place: Any = changed
    for step, following in zip(path, (*path[1:], None), strict=True):
        fresh: Any = _PLACEHOLDER if following is None else [] if isinstance(following, int) else {}
        if isinstance(step, int):
            if not place:
                place.append(fresh)
            elif following is None or not isinstance(place[0], type(fresh)):
                place[0] = fresh
            place = place[0]
        else:
            if following is None or not isinstance(place.get(step), type(fresh)):
                place[step] = fresh
            place = place[step]
    return json.dumps(changed).replace(f'"{_PLACEHOLDER}"', value).encode()


def _shortened(value: str) -> str:
    return value if len(value) <= 40 else f"{value[:30]}... ({len(value)} characters)"
