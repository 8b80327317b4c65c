"""Encodes and decodes snapshots as JSON documents, and lists the faults of a document.

Decoding is on the start-up path of the command line, so msgspec does it; pydantic (0.2 s to import and build) is
imported only to encode, and to list every fault of a document that msgspec rejected. Unknown keys are ignored: within
``v1`` the format only grows. ``digest`` is of the other keys, so that a damaged recording is recognized; a recording
that was written by hand has none.

    SnapshotError(ValueError)   see ``agent.snapshot``
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from agent.snapshot import FORMAT, Snapshot, SnapshotError
from gputopo.process.decoding import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import TypeAdapter

READABLE = (FORMAT,)  # formats that this version reads, oldest first
MAX_FAULTS = 20  # listed faults per document; the rest is counted


def load_snapshot(text: str | bytes) -> Snapshot:
    """Decode a snapshot document.

    Raises ``SnapshotError`` for invalid JSON, another kind of document, a format of another version, or values of the
    wrong type; the message lists each with its JSON path, the value found and the expected type.
    """
    return convert_snapshot(_decode(text))


def convert_snapshot(document: Any) -> Snapshot:
    """Return the snapshot in a decoded document, which is modified. Raises ``SnapshotError`` like ``load_snapshot``."""
    _check_format(document)
    _check_digest(document)
    for holder, key in _text_places(document):
        holder[key] = _join_lines(holder[key])
    try:
        return convert(document, Snapshot)
    except msgspec.ValidationError as error:
        # msgspec and pydantic accept the same documents as far as known; otherwise msgspec's short message is used.
        raise SnapshotError(_list_faults(document) or f"not a recording: {error}") from error


def dump_snapshot(snapshot: Snapshot) -> str:
    """Encode a snapshot: sorted keys, two spaces, no field that equals its default, texts as lists of lines.

    The same snapshot gives the same bytes, and ``load_snapshot`` restores it. Raises ``SnapshotError`` that lists every
    field of the wrong type.
    """
    faults = _list_faults(msgspec.to_builtins(snapshot))
    if faults:
        raise SnapshotError(faults)
    document = msgspec.to_builtins(snapshot) | {"format": snapshot.format}
    for holder, key in _text_places(document):
        holder[key] = _split_lines(holder[key])
    document["digest"] = _digest(document)
    packed = msgspec.json.encode(document, order="sorted")
    return msgspec.json.format(packed, indent=2).decode() + "\n"


def snapshot_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a snapshot document."""
    schema = _adapter().json_schema()
    schema["properties"] |= {"format": {"const": FORMAT}, "digest": {"type": "string"}}
    schema["required"] = ["format"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": FORMAT, **schema}


def _decode(text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SnapshotError(f"invalid JSON: {error}") from error


def _check_format(document: Any) -> None:
    """Check the format first: faults in the fields of another version would be misleading."""
    if not isinstance(document, dict):
        raise SnapshotError(f"not a recording: got {_quoted(document)}; expected an object with the key 'format'")
    if "format" not in document:
        raise SnapshotError(f"not a recording: the key 'format' is missing; expected \"format\": {_quoted(FORMAT)}")
    if document["format"] not in READABLE:
        raise SnapshotError(
            f"the recording has the format {_quoted(document['format'])}; this version of gputopo reads "
            f"{', '.join(READABLE)}: use the version that wrote it, or a newer version"
        )


def _check_digest(document: dict[str, Any]) -> None:
    digest = document.pop("digest", None)
    if digest is not None and digest != _digest(document):
        raise SnapshotError(
            "the recording was damaged or edited after it was written: its digest is that of other content. Record "
            "the machine again, or delete the key 'digest' to read it as it is"
        )


def _digest(document: dict[str, Any]) -> str:
    """Return a digest of all keys but ``digest``, independent of their order and of white space."""
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()[:16]


def _text_places(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where a document has a ``Text``. Parts of the wrong type are left to the validation."""
    yield from _wanted_keys(document, ("nccl", "lstopo").__contains__)
    yield from _wanted_keys(_as_object(document.get("sysfs")).get("files"), lambda _: True)
    for output in _as_object(document.get("smi")).values():
        yield from _wanted_keys(output, ("stdout", "stderr").__contains__)


def _wanted_keys(value: Any, wanted: Callable[[str], bool]) -> Iterator[tuple[dict[str, Any], str]]:
    holder = _as_object(value)
    return ((holder, key) for key in holder if wanted(key))


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _join_lines(text: Any) -> Any:
    lines = isinstance(text, list) and all(isinstance(line, str) for line in text)
    return "\n".join(text) if lines else text


def _split_lines(text: str | None) -> str | list[str] | None:
    return text.split("\n") if text is not None and "\n" in text.removesuffix("\n") else text


@cache
def _adapter() -> TypeAdapter[Snapshot]:
    from pydantic import TypeAdapter  # noqa: PLC0415  0.2 s, not needed to decode

    return TypeAdapter(Snapshot)


def _list_faults(document: Any) -> str | None:
    """Return every fault of a document, one per line; None where pydantic finds none."""
    from pydantic import ValidationError  # noqa: PLC0415  see _adapter

    try:
        _adapter().validate_json(msgspec.json.encode(document), strict=True)
    except ValidationError as error:
        faults = [_fault_text(each) for each in error.errors(include_url=False)]
        more = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        return "\n".join(["not a recording:", *faults[:MAX_FAULTS], *more])
    return None


def _fault_text(error: Any) -> str:
    """``$.nvml.gpus[2].index: got "x"; input should be a valid integer``."""
    path = "$" + "".join(_path_step(step) for step in error["loc"])
    if error["type"] == "missing":
        return f"{path}: is missing"
    expected = error["msg"].replace("Input should be", "expected")
    return f"{path}: got {_quoted(error['input'])}; {expected}"


def _path_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{_quoted(step)}]"


def _quoted(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
