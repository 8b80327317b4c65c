"""What people hand to `--from`: told apart by what it looks like, turned into a topology. Pure.

A snapshot, a pasted ``topo -m``, ``nvidia-smi -q`` and an NCCL topology go through the same ``discover`` as the live
machine; a Node of the cluster carries a topology already and is decoded.

    DocumentError(ValueError)   none of these, or one of them and damaged; the message says which and what to do
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Any

import msgspec

from agent.observe import Observation, observe
from agent.snapshot import Output, Snapshot, SnapshotError
from agent.sources.smi.errors import ParseError

ACCEPTED = (
    "`nvidia-smi topo -m` (also `-L`, `-q` or `-q -x`), a snapshot that `gputopo record` wrote, "
    "`kubectl get node NAME -o json` (or yaml), an NCCL or hwloc topology XML file, or the name of a machine "
    "(`gputopo machines` lists them)"
)


class DocumentError(ValueError):
    """The document is not one that gputopo reads."""


def text_of(data: bytes) -> str:
    """The text of a file, whatever a terminal or PowerShell made of it."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def read(text: str) -> Observation:
    """The observation in a document of any accepted kind. Raises ``DocumentError``."""
    try:
        return _reader(text)(text)
    except (ParseError, SnapshotError) as error:
        raise DocumentError(str(error)) from error


# Each reader imports its own parser: a paste pays for the one that it needs.


def _reader(text: str) -> Callable[[str], Observation]:
    start = text.lstrip()[:4096]
    if not start:
        raise DocumentError(f"there is nothing in it; give one of: {ACCEPTED}")
    if start.startswith("{"):
        return _from_json
    if start.startswith("<") and "<system" in start:
        return _from_nccl
    if "<nvidia_smi_log" in start or _QUERY.search(start):
        return _from_query
    if _YAML.match(start):
        return _from_yaml
    if _LISTING.search(text) and not _MATRIX.search(text):
        return _from_listing
    return _from_topo


_QUERY = re.compile(r"^=+NVSMI LOG=+\s*$", re.MULTILINE)
_YAML = re.compile(r"(?:---\s*\n)?(?:#[^\n]*\n)*(?:apiVersion|kind|metadata|items):")
_LISTING = re.compile(r"^\s*GPU \d+: .*\(UUID: ", re.MULTILINE)
_MATRIX = re.compile(r"GPU\d+.*\bX\b")


def _from_topo(text: str) -> Observation:
    from agent.sources.smi.topo import parse_topo  # noqa: PLC0415

    try:
        parse_topo(text)
    except ParseError as error:
        from agent.sources.smi.failure import classify  # noqa: PLC0415  only where it is no matrix

        if classify(text) is not None:  # what nvidia-smi says instead of a matrix: the advice for it is known
            return observe(Snapshot(smi={"topo -m": Output(text)}))
        raise DocumentError(f"{error}\nWhat is read here: {ACCEPTED}") from error
    smi = {"topo -m": Output(text)}
    listing = "\n".join(line for line in text.splitlines() if _LISTING.match(line))
    return observe(Snapshot(smi=smi | ({"-L": Output(listing)} if listing else {})))


def _from_listing(text: str) -> Observation:
    from agent.sources.smi.listing import parse_listing  # noqa: PLC0415

    parse_listing(text)
    return observe(Snapshot(smi={"-L": Output(text)}))


def _from_query(text: str) -> Observation:
    from agent.sources.smi.query import parse_query  # noqa: PLC0415

    parse_query(text)
    return observe(Snapshot(smi={"-q -x": Output(text)}))


def _from_nccl(text: str) -> Observation:
    from agent.sources.nccl import parse_nccl  # noqa: PLC0415

    parse_nccl(text)
    return observe(Snapshot(nccl=text))


def _from_json(text: str) -> Observation:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentError(f"this begins like JSON and is not: {error}") from error
    if document.get("kind") in ("Node", "List", "NodeList"):
        return _from_node(document)
    if document.get("kind") == "NodeTopology":
        raise DocumentError("this is what `gputopo show -o json` prints; give the input that it was made from instead")
    if "format" in document:
        from agent.snapshot_io import load_snapshot  # noqa: PLC0415

        return observe(load_snapshot(text))
    raise DocumentError(f"a JSON object with the keys {sorted(document)[:8]} is none of: {ACCEPTED}")


def _from_yaml(text: str) -> Observation:
    import yaml  # noqa: PLC0415  30 ms that only a YAML document needs

    try:
        # Not libyaml: nesting ends the Python loader with a RecursionError, and libyaml's with the process.
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that there is not
        raise DocumentError(f"this begins like YAML and is not: {error}") from error
    if not isinstance(document, dict):
        raise DocumentError(f"a YAML {type(document).__name__} is none of: {ACCEPTED}")
    return _from_node(document)


class _Metadata(msgspec.Struct):
    name: str = "?"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Node(msgspec.Struct):
    kind: str
    metadata: _Metadata


class _NodeList(msgspec.Struct):
    items: list[_Node]


def _from_node(document: dict[str, Any]) -> Observation:
    """A Node, or a list that holds one."""
    try:
        nodes = (
            msgspec.convert(document, _NodeList).items if "items" in document else [msgspec.convert(document, _Node)]
        )
    except msgspec.ValidationError as error:
        raise DocumentError(f"this is not a Node as `kubectl get node NAME -o json` prints it: {error}") from error
    if len(nodes) != 1 or nodes[0].kind != "Node":
        names = ", ".join(f"{node.kind} {node.metadata.name}" for node in nodes[:8]) or "nothing"
        raise DocumentError(f"one Node is wanted, and this holds {len(nodes)} objects ({names}); name one to kubectl")
    from gputopo.labels import AnnotationError, NoTopologyError, decode  # noqa: PLC0415

    try:
        return Observation(decode(nodes[0].metadata.labels, nodes[0].metadata.annotations))
    except (AnnotationError, NoTopologyError) as error:
        raise DocumentError(f"Node {nodes[0].metadata.name}: {error}") from error
