"""A source that fails keeps its last good facts. Pure.

Facts of a machine that were true a minute ago are better than holes: a label that vanishes for one pass makes every
watcher of nodes work, and a link whose state could not be asked is not a link that is down. So a snapshot is completed
from the one before, whole sources first, then single calls. A GPU that is lost is not completed: that it does not
answer is the fact. ``failures`` says what was kept, for the log, the metrics and the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from agent.snapshot import HANDLE, Nvml, NvmlGpu, Output, Snapshot

_LOST = "GPU_IS_LOST"
# Answers, not failures: the thing is not there, now as before.
_ABSENT = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NOT_FOUND"})

Record = TypeVar("Record")


class Remembered(NamedTuple):
    """A snapshot with the holes filled. ``failures``: source -> why its facts are those of an earlier pass."""

    snapshot: Snapshot
    failures: Mapping[str, str]


def remember(now: Snapshot, before: Snapshot | None) -> Remembered:
    """``now``, completed from ``before``, which was completed itself."""
    last_smi = None if before is None else before.smi
    failures = {"nvml": _nvml_failure(now), "smi": _smi_failure(now, last_smi)}
    failures |= {source: now.errors.get(source) for source in ("sysfs", "host")}
    told = {source: why for source, why in failures.items() if why is not None}
    if before is None:
        return Remembered(now, told)
    kept: dict[str, Any] = {source: getattr(before, source) for source in ("nvml", "sysfs", "host") if source in told}
    if "nvml" not in told and now.nvml is not None and before.nvml is not None:
        kept["nvml"] = _nvml(now.nvml, before.nvml)
    # Errors whose source is kept would be noted as problems of the topology and change what is published.
    errors = {source: why for source, why in now.errors.items() if getattr(before, source, None) is None}
    smi = _outputs(now.smi, last_smi, keep_all="nvml" in told)
    return Remembered(replace(now, **kept, smi=smi, errors=errors), told)


def _nvml_failure(snapshot: Snapshot) -> str | None:
    """Why NVML as a whole cannot be believed in this pass; None where it can.

    A process whose devices were taken away (``systemctl daemon-reload`` under cgroup v2) is refused every handle. That
    is no machine of lost GPUs: those answer GPU_IS_LOST.
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
    refused = {gpu.refused for gpu in nvml.gpus}
    if refused and None not in refused and _LOST not in refused:
        return f"{HANDLE}: {' '.join(sorted(str(error) for error in refused))} for every GPU"
    return None


def _smi_failure(snapshot: Snapshot, before: Mapping[str, Output] | None) -> str | None:
    """Why nvidia-smi fails that did not before: many containers have none, and not every driver knows every command."""
    if "smi" in snapshot.errors:
        return snapshot.errors["smi"]
    good = {command for command, output in (before or {}).items() if not output.exit_code}
    failed = {command: output.exit_code for command, output in (snapshot.smi or {}).items() if output.exit_code}
    return ", ".join(f"{command}: exit status {failed[command]}" for command in failed if command in good) or None


def _outputs(
    now: Mapping[str, Output] | None, before: Mapping[str, Output] | None, *, keep_all: bool
) -> dict[str, Output] | None:
    """Each command's last good output; all of the earlier ones where the driver's own facts are the earlier ones."""
    if before is None or now is None or keep_all:
        return None if now is None and before is None else dict(before or now or {})
    good = {command: output for command, output in now.items() if not output.exit_code}
    return {**now, **before, **good}


def _nvml(now: Nvml, before: Nvml) -> Nvml:
    last = {name: gpu for gpu in before.gpus for name in (gpu.bus_id, gpu.uuid) if name is not None}
    known = [(gpu, last.get(gpu.uuid or gpu.bus_id or "")) for gpu in now.gpus]
    moved = any(gpu.index != was.index for gpu, was in known if was is not None)
    pairs = {} if moved else {(pair.a, pair.b): pair for pair in before.pairs}
    return replace(
        _filled(now, before),
        gpus=tuple(gpu if was is None else _gpu(gpu, was) for gpu, was in known),
        pairs=tuple(_filled(pair, pairs.get((pair.a, pair.b))) for pair in now.pairs),
    )


def _gpu(now: NvmlGpu, before: NvmlGpu) -> NvmlGpu:
    if _LOST in now.errors.values():
        return now
    filled = _filled(now, before)
    ports = {link.link: link for link in before.nvlinks}
    return replace(filled, nvlinks=tuple(_filled(link, ports.get(link.link)) for link in filled.nvlinks))


def _filled(now: Record, before: Record | None) -> Record:
    """A record of NVML's answers, with those from before that a call failed to give this time.

    A call that failed the last time too stays failed, so that the same machine gives the same snapshot.
    """
    record, last = cast("Any", now), cast("Any", before)
    failed = {call for call, error in record.errors.items() if error not in _ABSENT}
    if last is None or not failed - set(last.errors):
        return now
    holes = {name: getattr(last, name) for name in record.__struct_fields__ if getattr(record, name) in (None, ())}
    errors = {call: why for call, why in record.errors.items() if call not in failed or call in last.errors}
    filled: Record = replace(record, **holes, errors=errors)
    return filled
