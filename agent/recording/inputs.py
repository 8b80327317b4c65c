"""The input of `--from`: detects its kind and derives a topology. Pure.

A snapshot, a pasted ``topo -m``, ``nvidia-smi -q`` and an NCCL topology go through the same ``discover`` as the live
machine; a Node of the cluster has a topology already, which is decoded.

    DocumentError(ValueError)   an unknown kind of input, or a damaged one; the message says which and what to do
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec

from agent.recording.topology import Observation, observe_snapshot
from agent.snapshot import Output, Snapshot, SnapshotError
from agent.sources.errors import ParseError
from gputopo.model import FactGroup, ModelError, Problem, ProblemKind
from gputopo.process.decoding import decode

ACCEPTED = (
    "`nvidia-smi topo -m` (also `-L`, `nvlink -s`, `-q` or `-q -x`), a recording of `gputopo record`, "
    "`kubectl get node NAME -o json` (or yaml), an NCCL or hwloc topology XML file, or the name of a bundled "
    "example machine (`gputopo machines` lists them)"
)


class InputError(ValueError):
    """The input is not of a known kind, or is damaged."""


def decode_text(data: bytes) -> str:
    """Return the text of a file in UTF-8 or in the UTF-16 of PowerShell."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="replace")


def read_observation(text: str) -> Observation:
    """Return the observation in an input of any accepted kind. Raises ``DocumentError``."""
    try:
        return _reader_for(text)(text)
    except (ParseError, SnapshotError, ModelError) as error:
        raise InputError(str(error)) from error


# Each reader imports its own parser, to keep start-up short.


def _reader_for(text: str) -> Callable[[str], Observation]:
    start = text.lstrip()[:4096]
    if not start:
        raise InputError(f"the input is empty; expected one of: {ACCEPTED}")
    if start.startswith("{"):
        return _from_json
    if start.startswith("<") and "<system" in start:
        return _from_nccl
    if start.startswith("<") and "<topology" in start:
        return _from_lstopo
    if "<nvidia_smi_log" in start or re.search(_QUERY, text):
        return _from_query
    if re.match(_YAML, start):
        return _from_yaml
    return _from_paste


def _has_matrix(text: str) -> bool:
    """Return whether a line names a GPU and has the X of a diagonal."""
    return any("GPU" in line and "X" in line.split() for line in text.splitlines())


_FAILED = r"\s*(?:Failed to initialize NVML|NVIDIA-SMI has failed|NVIDIA-SMI couldn't find|No devices (?:were )?found)"
# Compiled (and cached by ``re``) only when an input needs them.
_QUERY = r"(?m)^=+NVSMI LOG=+\s*$"
_TABLE = r"(?m)^[|\s]*\|\s*NVIDIA-SMI\s+\d"  # the first row of the table, below "+-----" and perhaps a date
_YAML = r"(?:---\s*\n)?(?:#[^\n]*\n)*(?:apiVersion|kind|metadata|items):"


def _from_paste(text: str) -> Observation:
    """Read a paste of one or several commands. Without a matrix, every line must be of ``-L`` or ``nvlink -s``."""
    from agent.recording.paste import split_commands  # noqa: PLC0415

    if not _has_matrix(text) and re.search(_TABLE, text):
        raise InputError(
            "this is the table of `nvidia-smi` without arguments, which has no topology; "
            "use { nvidia-smi -L; nvidia-smi topo -m; }"
        )
    smi, rest = split_commands(text)
    if smi and not _has_matrix(rest):
        from agent.sources.smi.listing import parse_listing  # noqa: PLC0415
        from agent.sources.smi.nvlink import parse_nvlink_status  # noqa: PLC0415

        parse_listing(f"{smi['-L'].stdout}{rest}")
        parse_nvlink_status(smi["nvlink -s"].stdout if "nvlink -s" in smi else "")
        return _without_end(observe_snapshot(Snapshot(smi=smi)))
    from agent.sources.smi.topo import parse_topo  # noqa: PLC0415

    try:
        parse_topo(rest)
    except ParseError as error:
        from agent.sources.smi.failure import classify_failure  # noqa: PLC0415  only without a matrix

        if classify_failure(text) is not None:  # nvidia-smi's error message instead of a matrix
            return observe_snapshot(Snapshot(smi={"topo -m": Output(text)}))
        raise InputError(f"{error}\nAccepted: {ACCEPTED}") from error
    _refuse_failure_before_matrix(rest)
    return observe_snapshot(Snapshot(smi={"topo -m": Output(rest), **smi}))


def _refuse_failure_before_matrix(text: str) -> None:
    """Raise ``InputError`` where nvidia-smi failed before the matrix: the first machine of the paste has none."""
    before = list(takewhile(lambda line: not ("GPU" in line and "X" in line.split()), text.splitlines()))
    failed = [line for line in before if re.match(_FAILED, line, re.IGNORECASE)]
    if failed:
        raise InputError(
            f"{failed[0].strip()[:120]!r} comes before the matrix, which may be of another machine; paste one machine's"
        )


def _without_end(found: Observation) -> Observation:
    """Return an observation of a list that may go on: a list that was cut at the end of a line looks complete."""
    why = "nothing in this text shows that the list of GPUs is complete; paste `nvidia-smi topo -m` with it"
    uncertain = tuple(group for group in FactGroup if group is FactGroup.GPUS or group in found.topology.uncertain)
    problems = (*found.topology.problems, Problem("gpus", ProblemKind.UNKNOWN, why))
    topology = msgspec.structs.replace(found.topology, uncertain=uncertain, problems=problems)
    return msgspec.structs.replace(found, topology=topology)


def _from_query(text: str) -> Observation:
    from agent.sources.smi.query import parse_query  # noqa: PLC0415

    found = parse_query(text)
    if found.attached and not found.gpus:
        raise InputError(f"the driver has {found.attached} GPUs, and the text describes none: it was cut or edited")
    smi = {"-q -x": Output(text)}
    if _has_matrix(text):  # a bug report with `-q` as text
        from agent.recording.paste import split_commands  # noqa: PLC0415

        others, rest = split_commands(text)
        smi |= {"topo -m": Output(rest), **others}
    return observe_snapshot(Snapshot(smi=smi))


def _from_nccl(text: str) -> Observation:
    from agent.sources.nccl import parse_nccl  # noqa: PLC0415

    parse_nccl(text)
    return observe_snapshot(Snapshot(nccl=text))


def _from_lstopo(text: str) -> Observation:
    from agent.sources.lstopo import parse_lstopo  # noqa: PLC0415

    if not parse_lstopo(text).gpus:
        raise InputError(
            "no NVIDIA GPU in this hwloc topology (a PCIDev of class 03 and vendor 10de); if the machine has one, "
            "lstopo left it out: use `lstopo --of xml --whole-io`"
        )
    return observe_snapshot(Snapshot(lstopo=text))


def _from_json(text: str) -> Observation:
    try:
        document: dict[str, Any] = decode(text, dict)
    except msgspec.DecodeError as error:
        raise InputError(f"invalid JSON: {error}") from error
    if document.get("kind") in ("Node", "List", "NodeList"):
        from agent.recording.node_input import observation_from_node  # noqa: PLC0415

        return observation_from_node(document)
    if document.get("kind") == "NodeTopology":
        raise InputError("the output of `gputopo show -o json` is not accepted; give the input that it was made from")
    if "format" in document:
        from agent.recording.io import convert_snapshot  # noqa: PLC0415

        return observe_snapshot(convert_snapshot(document))
    raise InputError(f"unknown JSON object with the keys {sorted(document)[:8]}; expected one of: {ACCEPTED}")


def _from_yaml(text: str) -> Observation:
    import yaml  # noqa: PLC0415  30 ms, only for YAML

    from gputopo.process.yaml_loader import load_yaml  # noqa: PLC0415

    try:
        document = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an invalid date
        raise InputError(f"invalid YAML: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"unexpected YAML {type(document).__name__}; expected one of: {ACCEPTED}")
    from agent.recording.node_input import observation_from_node  # noqa: PLC0415

    return observation_from_node(document)
