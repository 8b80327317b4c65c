"""Takes out of a snapshot what identifies a machine, so that it can be shown to strangers. Pure.

Always: serial numbers and hardware identities, host names, and the processes that nvidia-smi lists (what others run
is nobody's business). On request: UUIDs, each replaced by a made-up one, the same one wherever it stands, so that
what relates by UUID still does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agent.snapshot import Output, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

_GONE = "N/A"  # what nvidia-smi prints for a serial number that a board does not have
# <serial>, <board_serial>, <chassis_serial_number>, <board_id>, <pdi>, <gpu_fabric_guid>, ... of `-q -x`
_XML_IDENTITY = re.compile(r"<(\w*(?:serial|serial_number|board_id|pdi|guid))>[^<]*</\1>")
# "Chassis Serial Number : 1234" of `-q`
_TEXT_IDENTITY = re.compile(r"^([\w \t]*(?:Serial Number|GUID|Board ID|PDI)[ \t]*: ).*$", re.MULTILINE)
_XML_PROCESSES = re.compile(r"<(processes|accounted_processes)>.*?</\1>", re.DOTALL)
_NCCL_HOST = re.compile(r'\bhost_hash="[^"]*"')
# /sys files that hold nothing else. gputopo does not record them, but snapshots are also made by hand.
_IDENTITY_FILES = re.compile(r"(?:_serial|_uuid|_asset_tag|_guid|/gids/.*|/address)$")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NO_UUID = "00000000-0000-0000-0000-000000000000"  # a word of NVML ("no multi-node fabric"), not an identity
_SHORTEST_NAME = 4  # a host name below this is a word that stands in the texts for other reasons: "gpu", "h1"


def scrub(snapshot: Snapshot, *, uuids: bool = False) -> Snapshot:
    """The snapshot without identities; ``scrubbed`` says what was taken out. Scrubbing twice changes nothing."""
    done = {*snapshot.scrubbed, "hostname", "processes", "serial", *(["uuid"] if uuids else [])}
    cleaned = _map_texts(snapshot, _cleaner(snapshot))
    document = msgspec.to_builtins(cleaned)
    document.get("host", {}).pop("name", None)
    document["scrubbed"] = sorted(done)
    return msgspec.convert(_map_strings(document, _pseudonyms()) if uuids else document, Snapshot)


def _cleaner(snapshot: Snapshot) -> Callable[[str], str]:
    full = (snapshot.host and snapshot.host.name) or ""
    names = [name for name in (full, full.split(".")[0]) if len(name) >= _SHORTEST_NAME]
    # A name's letters end where a host name does: "node1" is not in "node12", nor in "my-node1".
    host = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in names) or r"(?!)")

    def clean(text: str) -> str:
        text = _XML_PROCESSES.sub(r"<\1></\1>", text)
        text = _XML_IDENTITY.sub(rf"<\1>{_GONE}</\1>", text)
        text = _TEXT_IDENTITY.sub(rf"\g<1>{_GONE}", text)
        return host.sub("host", _NCCL_HOST.sub('host_hash="0x0"', text))

    return clean


def _map_texts(snapshot: Snapshot, clean: Callable[[str], str]) -> Snapshot:
    """Clean what other programs printed. The fields of our own are known not to hold such things."""
    changes: dict[str, Any] = {}
    if snapshot.smi is not None:
        changes["smi"] = {
            command: Output(clean(output.stdout), output.exit_code, clean(output.stderr))
            for command, output in snapshot.smi.items()
        }
    if snapshot.sysfs is not None:
        files = {
            path: clean(text) for path, text in snapshot.sysfs.files.items() if _IDENTITY_FILES.search(path) is None
        }
        changes["sysfs"] = replace(snapshot.sysfs, files=files)
    if snapshot.nccl is not None:
        changes["nccl"] = clean(snapshot.nccl)
    return replace(snapshot, **changes)


def _pseudonyms() -> Callable[[str], str]:
    """Replaces UUIDs by counting them, in the order in which they are met."""
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
