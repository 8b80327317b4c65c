"""Recorded machines for tests of the agent, and functions that make faults."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from agent.recording.bundled import bundled_directory, find_recording
from agent.recording.io import load_snapshot
from agent.snapshot import Nvml, NvmlGpu, Snapshot

HANDLE = "nvmlDeviceGetHandleByIndex_v2"


@cache
def load_machine(name: str) -> Snapshot:
    """A machine of ``fixtures/machines``, by name or alias."""
    found = find_recording(name, bundled_directory())
    assert found is not None, name
    return load_snapshot(Path(found).read_bytes())


def nvml_of(snapshot: Snapshot) -> Nvml:
    """The NVML source, which must be present."""
    assert snapshot.nvml is not None
    return snapshot.nvml


def with_gpu(snapshot: Snapshot, index: int, gpu: NvmlGpu) -> Snapshot:
    """The machine with another GPU at that index."""
    nvml = nvml_of(snapshot)
    gpus = tuple(gpu if each.index == index else each for each in nvml.gpus)
    return replace(snapshot, nvml=replace(nvml, gpus=gpus))


def gpu_lost(snapshot: Snapshot, index: int, error: str = "GPU_IS_LOST") -> Snapshot:
    """The machine after a GPU was lost: nvidia-smi fails, too."""
    changed = with_gpu(snapshot, index, NvmlGpu(index=index, errors={HANDLE: error}))
    nvml = nvml_of(changed)
    pairs = tuple(pair for pair in nvml.pairs if index not in (pair.a, pair.b))
    smi = {command: replace(output, exit_code=15) for command, output in (snapshot.smi or {}).items()}
    return replace(changed, nvml=replace(nvml, pairs=pairs), smi=smi or None)


def gpu_removed(snapshot: Snapshot, index: int) -> Snapshot:
    """The machine after a GPU left the driver's list and the bus: later GPUs have lower indices."""
    nvml = nvml_of(snapshot)
    gone = next(gpu for gpu in nvml.gpus if gpu.index == index)
    gpus = tuple(replace(gpu, index=gpu.index - (gpu.index > index)) for gpu in nvml.gpus if gpu.index != index)
    pairs = tuple(
        replace(pair, a=pair.a - (pair.a > index), b=pair.b - (pair.b > index))
        for pair in nvml.pairs
        if index not in (pair.a, pair.b)
    )
    place = (gone.bus_id or "").lower()[4:]
    sysfs = snapshot.sysfs
    if sysfs is not None:
        sysfs = replace(sysfs, files={path: text for path, text in sysfs.files.items() if place not in path})
    return replace(snapshot, nvml=replace(nvml, device_count=len(gpus), gpus=gpus, pairs=pairs), sysfs=sysfs, smi=None)


def ports_down(snapshot: Snapshot, index: int, *ports: int) -> Snapshot:
    """The machine with some NVLink ports of a GPU inactive."""
    gpu = next(gpu for gpu in nvml_of(snapshot).gpus if gpu.index == index)
    links = tuple(
        replace(link, active=False, remote_type=None, remote_bus_id=None, speed_mbps=None, version=None)
        if link.link in ports
        else link
        for link in gpu.nvlinks
    )
    return with_gpu(snapshot, index, replace(gpu, nvlinks=links))


def nvml_failed(snapshot: Snapshot, error: str) -> Snapshot:
    """The machine while NVML fails to initialise."""
    return replace(snapshot, nvml=Nvml(error=f"nvmlInit_v2: {error}"))
