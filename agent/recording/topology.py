"""One look at a machine: its topology, and why there is none where there is none. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.discover import discover
from agent.snapshot import Nvml, Snapshot
from gputopo.model import NodeTopology

if TYPE_CHECKING:
    from agent.failures import Failure


class Observation(msgspec.Struct, frozen=True):
    """A topology and what it was made from; a Node of the cluster has its topology and no snapshot."""

    topology: NodeTopology
    snapshot: Snapshot | None = None

    @property
    def advice(self) -> str:
        """What is wrong and what to do about it, in a few sentences; for an observation without a GPU."""
        from agent.failures import Failure  # noqa: PLC0415  only where there is no GPU

        found = (None if self.snapshot is None else failure(self.snapshot)) or Failure.NO_DEVICE
        cards = None if self.snapshot is None or self.snapshot.sysfs is None else _cards(self.snapshot)
        bus = "" if cards is None else f"; NVIDIA GPUs on the PCI bus: {cards or 'none'}"
        return f"no GPU can be read here: {found.headline}{bus}.\n{found.advice}"


def observe(snapshot: Snapshot) -> Observation:
    """The topology of a snapshot, live or recorded."""
    return Observation(discover(snapshot), snapshot)


def failure(snapshot: Snapshot) -> Failure | None:
    """Why no GPU could be read: what NVML says, which is exact, before what nvidia-smi says in prose."""
    from agent.failures import from_nvml  # noqa: PLC0415  only where there is no GPU
    from agent.sources.smi.failure import classify  # noqa: PLC0415

    error = None if snapshot.nvml is None else _nvml_error(snapshot.nvml)
    if error is not None:
        return from_nvml(error)
    outputs = (snapshot.smi or {}).values()
    told = (classify(f"{output.stdout}\n{output.stderr}", output.exit_code) for output in outputs)
    return next((each for each in told if each is not None), None)


def _nvml_error(nvml: Nvml) -> str | None:
    """The error that ended NVML, or else one of those that kept it from every GPU."""
    of_gpus = (gpu.refused for gpu in nvml.gpus)
    said = (nvml.error, nvml.errors.get("nvmlDeviceGetCount_v2"), *of_gpus)
    return next((error for error in said if error is not None), None)


def _cards(snapshot: Snapshot) -> int:
    """NVIDIA GPUs on the PCI bus, whatever the driver says."""
    from agent.sources.pci import gpus_of  # noqa: PLC0415  only where there is no GPU

    return 0 if snapshot.sysfs is None else len(gpus_of(snapshot.sysfs))
