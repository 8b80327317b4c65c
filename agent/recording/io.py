"""Snapshots as JSON documents: decode, encode, and say what is wrong with one.

Decoding is on the start-up path of the command line, so it is msgspec's; pydantic (0.2 s to import and build) is
loaded only to encode, and to name every fault of a document that msgspec refused.
Keys that this version does not know are ignored: within ``v1`` the format only grows.

    SnapshotError(ValueError)   see ``agent.snapshot``
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from agent.snapshot import FORMAT, Snapshot, SnapshotError
from gputopo.process.decoding import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import TypeAdapter

READABLE = (FORMAT,)  # the formats that this version reads, oldest first
MAX_FAULTS = 20  # faults listed of one document; the rest is counted


def load_snapshot(text: str | bytes) -> Snapshot:
    """Decode a snapshot document.

    Raises ``SnapshotError``: no JSON, no snapshot, a format of another version, or values of the wrong kind (every
    one is listed with its JSON path, the value found and what was expected).
    """
    return snapshot_of(_decode(text))


def snapshot_of(document: Any) -> Snapshot:
    """The snapshot in a decoded document, which it changes. Raises ``SnapshotError`` as ``load_snapshot`` does."""
    _check_format(document)
    for holder, key in _texts(document):
        holder[key] = _joined(holder[key])
    try:
        return convert(document, Snapshot)
    except msgspec.ValidationError as error:
        # The two readers have no known difference; should they, the terse message is better than none.
        raise SnapshotError(_explain(document) or f"this is not a snapshot: {error}") from error


def dump_snapshot(snapshot: Snapshot) -> str:
    """Encode a snapshot: sorted keys, two spaces, no field that equals its default, texts as lists of lines.

    The same snapshot gives the same bytes, and ``load_snapshot`` gives the same snapshot. Raises ``SnapshotError``
    listing every field that holds a value of the wrong kind.
    """
    faults = _explain(msgspec.to_builtins(snapshot))
    if faults:
        raise SnapshotError(faults)
    document = msgspec.to_builtins(snapshot) | {"format": snapshot.format}
    for holder, key in _texts(document):
        holder[key] = _split(holder[key])
    packed = msgspec.json.encode(document, order="sorted")
    return msgspec.json.format(packed, indent=2).decode() + "\n"


def snapshot_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a snapshot document."""
    schema = _adapter().json_schema()
    schema["properties"]["format"] = {"const": FORMAT}
    schema["required"] = ["format"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": FORMAT, **schema}


def _decode(text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SnapshotError(f"this is not a JSON document: {error}") from error


def _check_format(document: Any) -> None:
    """Other versions are refused before their fields are looked at: faults there would mislead."""
    if not isinstance(document, dict):
        raise SnapshotError(f"this is not a snapshot: got {_quoted(document)}; expected an object with a 'format'")
    if "format" not in document:
        raise SnapshotError(f"this is not a snapshot: it has no 'format'; expected \"format\": {_quoted(FORMAT)}")
    if document["format"] not in READABLE:
        raise SnapshotError(
            f"this snapshot has the format {_quoted(document['format'])}, and this gputopo reads "
            f"{', '.join(READABLE)}: read it with the gputopo that wrote it, or with a newer one"
        )


def _texts(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a document holds a ``Text``. Tolerant: what has the wrong shape is left to the validation."""
    yield from _keys(document, ("nccl", "lstopo").__contains__)
    yield from _keys(_object(document.get("sysfs")).get("files"), lambda _: True)
    for output in _object(document.get("smi")).values():
        yield from _keys(output, ("stdout", "stderr").__contains__)


def _keys(value: Any, wanted: Callable[[str], bool]) -> Iterator[tuple[dict[str, Any], str]]:
    holder = _object(value)
    return ((holder, key) for key in holder if wanted(key))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _joined(text: Any) -> Any:
    lines = isinstance(text, list) and all(isinstance(line, str) for line in text)
    return "\n".join(text) if lines else text


def _split(text: str | None) -> str | list[str] | None:
    return text.split("\n") if text is not None and "\n" in text.removesuffix("\n") else text


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    from pydantic import TypeAdapter  # noqa: PLC0415  0.2 s that decoding must not pay

    return TypeAdapter(Snapshot)


def _explain(document: Any) -> str | None:
    """Every fault of a document, one per line; None where pydantic finds none."""
    from pydantic import ValidationError  # noqa: PLC0415  see _adapter

    try:
        _adapter().validate_json(msgspec.json.encode(document), strict=True)
    except ValidationError as error:
        faults = [_fault(each) for each in error.errors(include_url=False)]
        more = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        return "\n".join(["this is not a snapshot:", *faults[:MAX_FAULTS], *more])
    return None


def _fault(error: Any) -> str:
    """``$.nvml.gpus[2].index: got "x"; input should be a valid integer``."""
    path = "$" + "".join(_step(step) for step in error["loc"])
    if error["type"] == "missing":
        return f"{path}: is missing"
    expected = error["msg"].replace("Input should be", "expected")
    return f"{path}: got {_quoted(error['input'])}; {expected}"


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{_quoted(step)}]"


def _quoted(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
