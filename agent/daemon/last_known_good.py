"""Completes a snapshot with the last good facts of sources and calls that failed. Pure.

Facts that were true a minute ago are better than missing ones: a label that vanishes for one pass wakes every watcher
of nodes, and a link whose state could not be read is not down. Whole sources are completed first, then single calls.
A lost GPU is not completed: that it does not answer is the fact to publish. ``failures`` names the sources that were
completed, for the log, the metrics and the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from agent.snapshot import ABSENT_ERRORS, HANDLE, LOST_ERRORS, Nvml, NvmlGpu, Output, Snapshot

Record = TypeVar("Record")


class CompletedSnapshot(NamedTuple):
    """A completed snapshot. ``failures``: source -> why it holds facts of an earlier pass."""

    snapshot: Snapshot
    failures: Mapping[str, str]


def fill_from_last_good(current: Snapshot, previous: Snapshot | None) -> CompletedSnapshot:
    """Complete ``current`` from ``previous``, which was completed the same way."""
    last_smi = None if previous is None else previous.smi
    failures = {"nvml": _nvml_failure(current), "smi": _smi_failure(current, last_smi)}
    failures |= {source: current.errors.get(source) for source in ("sysfs", "host")}
    failed_sources = {source: why for source, why in failures.items() if why is not None}
    if previous is None:
        return CompletedSnapshot(current, failed_sources)
    kept: dict[str, Any] = {
        source: getattr(previous, source) for source in ("nvml", "sysfs", "host") if source in failed_sources
    }
    if "nvml" not in failed_sources and current.nvml is not None and previous.nvml is not None:
        kept["nvml"] = _fill_nvml(current.nvml, previous.nvml)
    # The error of a completed source would become a problem of the topology and change the published value.
    errors = {source: why for source, why in current.errors.items() if getattr(previous, source, None) is None}
    smi = _fill_outputs(current.smi, last_smi, keep_all="nvml" in failed_sources)
    return CompletedSnapshot(replace(current, **kept, smi=smi, errors=errors), failed_sources)


def _nvml_failure(snapshot: Snapshot) -> str | None:
    """Return why NVML as a whole cannot be used in this pass; None where it can.

    A process whose devices were taken away (``systemctl daemon-reload`` under cgroup v2) is refused every handle, or
    every call. These GPUs are not lost: a lost GPU fails with GPU_IS_LOST.
    """
    if "nvml" in snapshot.errors:
        return snapshot.errors["nvml"]
    nvml = snapshot.nvml
    if nvml is None:
        return None
    if nvml.error is not None:
        return nvml.error
    if nvml.device_count is None:
        return f"nvmlDeviceGetCount_v2: {nvml.errors.get('nvmlDeviceGetCount_v2', 'no answer')}"
    refused = {gpu.access_error for gpu in nvml.gpus}
    if refused and None not in refused and not refused & LOST_ERRORS:
        call = HANDLE if any(gpu.handle_error for gpu in nvml.gpus) else "nvmlDeviceGetUUID"
        return f"{call}: {' '.join(sorted(str(error) for error in refused))} for every GPU"
    return None


def _smi_failure(snapshot: Snapshot, previous: Mapping[str, Output] | None) -> str | None:
    """Return the commands that fail and worked before. Some containers and drivers never had a given command."""
    if "smi" in snapshot.errors:
        return snapshot.errors["smi"]
    good = {command for command, output in (previous or {}).items() if not output.exit_code}
    failed = {command: output.exit_code for command, output in (snapshot.smi or {}).items() if output.exit_code}
    return ", ".join(f"{command}: exit status {failed[command]}" for command in failed if command in good) or None


def _fill_outputs(
    current: Mapping[str, Output] | None, previous: Mapping[str, Output] | None, *, keep_all: bool
) -> dict[str, Output] | None:
    """Return the last good output of each command; all earlier outputs where NVML is completed from them too."""
    if previous is None or current is None or keep_all:
        return None if current is None and previous is None else dict(previous or current or {})
    good = {command: output for command, output in current.items() if not output.exit_code}
    return {**current, **previous, **good}


def _fill_nvml(current: Nvml, previous: Nvml) -> Nvml:
    last = {name: gpu for gpu in previous.gpus for name in (gpu.bus_id, gpu.uuid) if name is not None}
    last |= {str(gpu.index): gpu for gpu in previous.gpus}  # for a GPU that reports neither
    known = [(gpu, last.get(gpu.identity)) for gpu in current.gpus]
    moved = any(gpu.index != was.index for gpu, was in known if was is not None)
    pairs = {} if moved else {(pair.a, pair.b): pair for pair in previous.pairs}
    return replace(
        _fill_record(current, previous),
        gpus=tuple(gpu if was is None else _fill_gpu(gpu, was) for gpu, was in known),
        pairs=tuple(_fill_record(pair, pairs.get((pair.a, pair.b))) for pair in current.pairs),
    )


def _fill_gpu(current: NvmlGpu, previous: NvmlGpu) -> NvmlGpu:
    if current.access_error is not None:
        return current
    filled = _fill_record(current, previous)
    ports = {link.link: link for link in previous.nvlinks}
    return replace(filled, nvlinks=tuple(_fill_record(link, ports.get(link.link)) for link in filled.nvlinks))


def _fill_record(current: Record, previous: Record | None) -> Record:
    """Fill the fields that failed calls left empty from the record before.

    A call that failed in the previous pass too stays failed, so that the same machine gives the same snapshot.
    """
    record, last = cast("Any", current), cast("Any", previous)
    failed = {call for call, error in record.errors.items() if error not in ABSENT_ERRORS}
    if last is None or not failed - set(last.errors):
        return current
    holes = {name: getattr(last, name) for name in record.__struct_fields__ if getattr(record, name) in (None, ())}
    errors = {call: why for call, why in record.errors.items() if call not in failed or call in last.errors}
    filled: Record = replace(record, **holes, errors=errors)
    return filled
