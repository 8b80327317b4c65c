"""Removes from a snapshot what identifies a machine, so that it can be shared. Pure.

Always: serial numbers and hardware identities, host names, and the processes that nvidia-smi lists. On request: UUIDs,
each replaced by the same generated UUID everywhere, so that references by UUID still match.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agent.snapshot import NvmlGpu, Output, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

_REMOVED = "N/A"  # nvidia-smi's text for a missing serial number
# <serial>, <board_serial>, <chassis_serial_number>, <board_id>, <pdi>, <gpu_fabric_guid>, ... of `-q -x`
_XML_IDENTITY = re.compile(r"<(\w*(?:serial|serial_number|board_id|pdi|guid))>[^<]*</\1>")
# "Chassis Serial Number : 1234" of `-q`
_TEXT_IDENTITY = re.compile(r"^([\w \t]*(?:Serial Number|GUID|Board ID|PDI)[ \t]*: ).*$", re.MULTILINE)
_XML_PROCESSES = re.compile(r"<(processes|accounted_processes)>.*?</\1>", re.DOTALL)
_NCCL_HOST = re.compile(r'\bhost_hash="[^"]*"')
# /sys files with identities only. gputopo does not record them, but snapshots are also written by hand.
_IDENTITY_FILES = re.compile(r"(?:_serial|_uuid|_asset_tag|_guid|/gids/.*|/address)$")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NO_UUID = "00000000-0000-0000-0000-000000000000"  # NVML's value for "no multi-node fabric", not an identity
_SHORTEST_NAME = 4  # shorter host names are also ordinary words: "gpu", "h1"


def scrub_snapshot(snapshot: Snapshot, *, uuids: bool = False) -> Snapshot:
    """Return the snapshot without identities; ``scrubbed`` lists what was removed. Scrubbing twice changes nothing."""
    done = {*snapshot.scrubbed, "hostname", "processes", "serial", *(["uuid"] if uuids else [])}
    cleaned = _map_texts(snapshot, _cleaner(snapshot))
    document = msgspec.to_builtins(cleaned)
    document.get("host", {}).pop("name", None)
    document["scrubbed"] = sorted(done)
    return msgspec.convert(_map_strings(document, _pseudonyms()) if uuids else document, Snapshot)


def _cleaner(snapshot: Snapshot) -> Callable[[str], str]:
    full = (snapshot.host and snapshot.host.name) or ""
    names = [name for name in (full, full.split(".")[0]) if len(name) >= _SHORTEST_NAME]
    # Whole names only: "node1" does not match in "node12" or "my-node1".
    host = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in names) or r"(?!)")

    def clean(text: str) -> str:
        text = _XML_PROCESSES.sub(r"<\1></\1>", text)
        text = _XML_IDENTITY.sub(rf"<\1>{_REMOVED}</\1>", text)
        text = _TEXT_IDENTITY.sub(rf"\g<1>{_REMOVED}", text)
        return host.sub("host", _NCCL_HOST.sub('host_hash="0x0"', text))

    return clean


def _map_texts(snapshot: Snapshot, clean: Callable[[str], str]) -> Snapshot:
    """Clean the output of other programs. Of the other fields, only the chassis of a GPU is an identity."""
    changes: dict[str, Any] = {}
    if snapshot.smi is not None:
        changes["smi"] = {
            command: Output(clean(output.stdout), output.exit_code, clean(output.stderr))
            for command, output in snapshot.smi.items()
        }
    if snapshot.nvml is not None:
        changes["nvml"] = replace(snapshot.nvml, gpus=tuple(_without_chassis(gpu) for gpu in snapshot.nvml.gpus))
    if snapshot.sysfs is not None:
        files = {
            path: clean(text) for path, text in snapshot.sysfs.files.items() if _IDENTITY_FILES.search(path) is None
        }
        changes["sysfs"] = replace(snapshot.sysfs, files=files)
    if snapshot.nccl is not None:
        changes["nccl"] = clean(snapshot.nccl)
    return replace(snapshot, **changes)


def _without_chassis(gpu: NvmlGpu) -> NvmlGpu:
    return gpu if gpu.platform is None else replace(gpu, platform=replace(gpu.platform, chassis=None))


def _pseudonyms() -> Callable[[str], str]:
    """Return a function that replaces UUIDs by numbered ones, in the order of their appearance."""
    known = {_NO_UUID: _NO_UUID}

    def pseudonym(match: re.Match[str]) -> str:
        return known.setdefault(match[0].lower(), f"00000000-0000-0000-0000-{len(known):012x}")

    return lambda text: _UUID.sub(pseudonym, text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_strings(each, change) for key, each in value.items()}
    return [_map_strings(each, change) for each in value] if isinstance(value, list | tuple) else value
