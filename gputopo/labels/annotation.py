"""The value of the annotation ``gputopo.io/topology``: the whole graph as bounded, versioned, compact JSON.

Lists of GPUs, NICs and links are stored by column, since the GPUs of a machine agree in most columns. A column is
``[v]`` if all rows agree, ``[v1, ..., vn]`` if they differ, or ``{"of": [v, w], "at": [0, 0, 1]}`` if few distinct
values repeat; a column of default values is left out. A PCIe distance is one letter per pair. Facts that change while
the machine stays the same (the current PCIe speed, the rate of a NIC) are left out: see ``NodeTopology.stable_facts``.

    AnnotationError(ValueError)     the text is not a topology annotation; the message contains reason and advice
    EncodeError(ValueError)         the topology does not fit into an annotation, even without its optional parts
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from gputopo.model import MAX_GPUS, MigDevice, NodeTopology, PcieDistance, Problem, ProblemKind
from gputopo.process.decoding import convert, decode, decoder

VERSION = 1
BYTES_FOR_16 = 8 * 1024  # Kubernetes allows 256 KiB for all annotations of an object together
_BYTES_PER_FURTHER_GPU = BYTES_FOR_16 // 16
_MAX_ROWS = MAX_GPUS * MAX_GPUS  # no table of a machine is longer; a hostile count must not allocate memory
_MAX_CELLS = 32 * _MAX_ROWS  # no table has as many columns; hostile columns must not cost seconds
_LETTERS: dict[PcieDistance | None, str] = {
    None: ".",
    PcieDistance.PIX: "x",
    PcieDistance.PXB: "b",
    PcieDistance.PHB: "h",
    PcieDistance.NODE: "n",
    PcieDistance.SYS: "s",
}
_DISTANCES = {letter: distance for distance, letter in _LETTERS.items()}


_MACHINE_MODELS = 256  # decoded at a time; a cluster has some dozen


_ABSENT, _NULL = msgspec.Raw(b""), msgspec.Raw(b"null")
_UuidColumn: Any = list[str | None] | None
_DeviceColumn: Any = list[tuple[MigDevice, ...] | None] | None
_BootId: Any = str | None


class AnnotationError(ValueError):
    """The text is not a topology annotation."""


class EncodeError(ValueError):
    """The topology does not fit into an annotation."""


class _Coded(msgspec.Struct, forbid_unknown_fields=True):
    of: list[Any]  # distinct values
    at: list[int]  # for each row, the index of its value in ``of``


class _Table(msgspec.Struct):
    n: int  # rows
    columns: dict[str, list[Any] | _Coded] = {}


class _Wire(msgspec.Struct, omit_defaults=True):
    v: int
    node: dict[str, Any] = {}
    gpus: _Table | None = None
    links: _Table | None = None  # None: NVLink unknown
    uplinks: _Table | None = None
    unknown_links: list[tuple[int, int]] = []
    pcie: str | None = None  # upper triangle, row by row; None: no distance is known
    nics: _Table | None = None
    numa_nodes: _Table | None = None
    degraded: _Table | None = None
    left_out: list[str] = []


class _UnreadTable(msgspec.Struct):
    n: int
    columns: dict[str, msgspec.Raw] = {}


class _UnreadWire(msgspec.Struct, omit_defaults=True):
    """``_Wire`` with its parts as text: equal texts are parsed once."""

    v: int
    node: dict[str, msgspec.Raw] = {}
    gpus: _UnreadTable | None = None
    links: msgspec.Raw = _ABSENT
    uplinks: msgspec.Raw = _ABSENT
    unknown_links: msgspec.Raw = _ABSENT
    pcie: msgspec.Raw = _ABSENT
    nics: msgspec.Raw = _ABSENT
    numa_nodes: msgspec.Raw = _ABSENT
    degraded: msgspec.Raw = _ABSENT
    left_out: msgspec.Raw = _ABSENT


def encode_annotation(topology: NodeTopology) -> str:
    """Return the annotation's value: JSON of at most ``budget(GPUs)`` bytes, the same for equal topologies."""
    wire = _to_wire(topology.stable_facts())
    limit = max_bytes(len(topology.gpus))
    text = msgspec.json.encode(wire)
    for name, column in _OPTIONAL_PARTS:
        if len(text) <= limit:
            break
        if _leave_out(wire, name, column):
            text = msgspec.json.encode(wire)
    if len(text) > limit:
        raise EncodeError(f"the topology of {len(topology.gpus)} GPUs takes {len(text)} bytes; at most {limit} fit")
    return text.decode()


def max_bytes(gpus: int) -> int:
    """Return the maximum size in bytes of the annotation of a node with that many GPUs."""
    return BYTES_FOR_16 + max(0, gpus - 16) * _BYTES_PER_FURTHER_GPU


_MAX_BYTES = max_bytes(MAX_GPUS)


def decode_annotation(text: str) -> NodeTopology:
    """Return the topology in an annotation's value. Raises ``AnnotationError``."""
    if len(text) > _MAX_BYTES:
        raise AnnotationError(
            f"the topology annotation has {len(text)} characters, and at most {_MAX_BYTES} are read: {text[:80]!r}"
        )
    try:
        wire = _decode_unread(text)
        if wire.v != VERSION:
            raise AnnotationError(
                f"the topology annotation has version {wire.v}; this gputopo reads {VERSION}: upgrade the older side"
            )
        own = _pop_own_facts(wire)
        if own is None:
            return _from_wire(decode(text, _Wire))
        return _with_own_facts(_machine_model(msgspec.json.encode(wire)), own)
    # RecursionError: a value is looked at that nests; OverflowError: a number that no field can have
    except (msgspec.DecodeError, RecursionError, OverflowError) as error:
        raise AnnotationError(f"the topology annotation is damaged ({error}): {text[:80]!r}") from error


# Each decodes a part of every Node: to look up a decoder by its type takes as long as to decode a small part.
_decode_unread = decoder(_UnreadWire)
_decode_uuids, _decode_devices, _decode_boot_id = map(decoder, (_UuidColumn, _DeviceColumn, _BootId))
_set = msgspec.structs.force_setattr


class _OwnFacts(NamedTuple):
    """The facts in which machines of one model differ."""

    uuids: list[str | None] | None
    mig_devices: list[tuple[MigDevice, ...]] | None
    boot_id: str | None = None


def _pop_own_facts(wire: _UnreadWire) -> _OwnFacts | None:
    """Remove and return the facts that only this machine has; None if they are not as usual."""
    gpus = wire.gpus or _UnreadTable(0)
    uuids = gpus.columns.pop("uuid", _NULL)
    devices = gpus.columns.pop("mig_devices", _NULL)
    boot_id = wire.node.pop("boot_id", _NULL)
    try:
        rows = _decode_devices(devices)
        found = _OwnFacts(
            _decode_uuids(uuids),
            None if rows is None else [each or () for each in rows],
            _decode_boot_id(boot_id),
        )
    except msgspec.ValidationError:
        return None
    usual = all(column is None or len(column) == gpus.n for column in (found.uuids, found.mig_devices))
    return found if usual else None


@lru_cache(maxsize=_MACHINE_MODELS)
def _machine_model(text: bytes) -> NodeTopology:
    """Return the topology of an annotation without own facts. All machines of a model share it, and its memory."""
    return _from_wire(decode(text, _Wire))


def _with_own_facts(model: NodeTopology, own: _OwnFacts) -> NodeTopology:
    """Return a copy with these facts. UUIDs and boot ids have no rules to check, so the copies are not validated."""
    gpus: list[Any] = list(model.gpus)
    if own.uuids is not None:
        # ``copy.copy`` does the same in four times the time.
        gpus = [gpu.__copy__() for gpu in gpus]
        for gpu, uuid in zip(gpus, own.uuids, strict=True):
            _set(gpu, "uuid", uuid)
    if own.mig_devices is not None:
        pairs = zip(gpus, own.mig_devices, strict=True)
        gpus = [msgspec.structs.replace(gpu, mig_devices=devices) for gpu, devices in pairs]
    shared: Any = model
    found: NodeTopology = shared.__copy__()
    _set(found, "gpus", tuple(gpus))
    _set(found, "boot_id", own.boot_id)
    return found


# The parts that are left out, in this order, until the rest fits: the least important for placement first.
_OPTIONAL_PARTS = (
    ("gpus", "mig_devices"),
    ("gpus", "c2c"),
    ("gpus", "cpu_affinity"),
    ("numa_nodes", None),
    ("nics", None),
    ("gpus", "numa_affinity"),
    ("degraded", "why"),
)


def _leave_out(wire: _Wire, name: str, column: str | None) -> bool:
    table: _Table | None = getattr(wire, name)
    if table is None:
        return False
    if column is None:
        setattr(wire, name, None)
        wire.left_out.append(name)
        return True
    if column not in table.columns:
        return False
    if (name, column) == ("degraded", "why"):
        table.columns[column] = [""]  # the degraded parts themselves are kept
    else:
        del table.columns[column]
    wire.left_out.append(f"{name}.{column}")
    return True


def _to_wire(topology: NodeTopology) -> _Wire:
    body = msgspec.to_builtins(topology)
    nvlink, nics = topology.nvlink, body.get("nics", [])
    for nic, row in zip(topology.nics, nics, strict=True):
        row["distances"] = _letters(nic.distances)
    return _Wire(
        v=VERSION,
        node={name: value for name, value in body.items() if not isinstance(value, tuple | list | dict)},
        gpus=_table(body.get("gpus", [])),
        links=None if nvlink is None else _Table(0) if not nvlink.links else _table(body["nvlink"]["links"]),
        uplinks=None if nvlink is None else _table(body["nvlink"].get("uplinks", [])),
        unknown_links=[] if nvlink is None else list(nvlink.unknown),
        pcie=_triangle(topology.pcie) if topology.pcie else None,
        nics=_table(nics),
        numa_nodes=_table(body.get("numa_nodes", [])),
        degraded=_table(body.get("degraded", [])),
    )


def _from_wire(wire: _Wire) -> NodeTopology:
    gpus = _rows(wire.gpus)
    body: dict[str, Any] = dict(wire.node)
    body |= {"gpus": gpus, "pcie": _matrix(wire.pcie, len(gpus)), "numa_nodes": _rows(wire.numa_nodes)}
    body |= {"degraded": _rows(wire.degraded), "problems": _left_out(wire)}
    body["nics"] = _rows(wire.nics)
    for row in body["nics"]:
        row["distances"] = [_distance(letter) for letter in str(row.get("distances", ""))]
    if wire.links is not None:
        rows = {"links": _rows(wire.links), "uplinks": _rows(wire.uplinks)}
        body["nvlink"] = rows | {"unknown": wire.unknown_links}
    return convert(body, NodeTopology)


def _left_out(wire: _Wire) -> list[dict[str, str]]:
    why = "left out of the annotation to keep it small; ask the node itself"
    return [msgspec.to_builtins(Problem(name, ProblemKind.INCOMPLETE, why)) for name in wire.left_out]


def _table(rows: list[dict[str, Any]]) -> _Table | None:
    if not rows:
        return None
    names = sorted({name for row in rows for name in row})
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return _Table(len(rows), {name: column for name, column in columns.items() if column not in ([None], [{}])})


def _column(values: list[Any]) -> list[Any] | _Coded:
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if len(distinct) == 1:
        return distinct
    if len(msgspec.json.encode(distinct)) > 4 * len(distinct) and 2 * len(distinct) <= len(values):
        return _Coded(distinct, [distinct.index(value) for value in values])
    return values


def _rows(table: _Table | None) -> list[dict[str, Any]]:
    if table is None:
        return []
    if not 0 <= table.n <= _MAX_ROWS:
        raise msgspec.ValidationError(f"a table of {table.n} rows")
    if table.n * len(table.columns) > _MAX_CELLS:
        raise msgspec.ValidationError(f"a table of {table.n} rows and {len(table.columns)} columns")
    columns = {name: _values(name, column, table.n) for name, column in table.columns.items()}
    rows = [{name: values[i] for name, values in columns.items()} for i in range(table.n)]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def _values(name: str, column: list[Any] | _Coded, rows: int) -> list[Any]:
    if isinstance(column, _Coded):
        if not all(0 <= place < len(column.of) for place in column.at):
            raise msgspec.ValidationError(f"column {name!r} points outside of its values")
        column = [column.of[place] for place in column.at]
    if len(column) == 1:
        return column * rows
    if len(column) != rows:
        raise msgspec.ValidationError(f"column {name!r} has {len(column)} values for {rows} rows")
    return column


def _letters(distances: Sequence[PcieDistance | None]) -> str:
    return "".join(_LETTERS[distance] for distance in distances)


def _distance(letter: str) -> str | None:
    if letter not in _DISTANCES:
        raise msgspec.ValidationError(f"{letter!r} is not a PCIe distance")
    distance = _DISTANCES[letter]
    return None if distance is None else distance.value


def _triangle(matrix: Sequence[Sequence[PcieDistance | None]]) -> str:
    return _letters([matrix[i][j] for i, j in combinations(range(len(matrix)), 2)])


def _matrix(letters: str | None, size: int) -> list[list[str | None]]:
    """Return the symmetric matrix of an upper triangle given row by row."""
    if letters is None:
        return []
    if len(letters) != size * (size - 1) // 2:
        raise msgspec.ValidationError(f"{len(letters)} PCIe distances for {size * (size - 1) // 2} pairs of GPUs")
    matrix: list[list[str | None]] = [[None] * size for _ in range(size)]
    for (i, j), letter in zip(combinations(range(size), 2), letters, strict=True):
        matrix[i][j] = matrix[j][i] = _distance(letter)
    return matrix
