"""The observation of a machine: its topology, and advice where it has no GPU. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from agent.discover import discover
from agent.snapshot import Nvml, Snapshot
from gputopo.model import NodeTopology

if TYPE_CHECKING:
    from agent.failures import Failure

_NVML_ERROR = re.compile(r"(?:\w+: )?[A-Z_0-9]+")  # "nvmlInit_v2: DRIVER_NOT_LOADED"


class Observation(msgspec.Struct, frozen=True):
    """A topology and the snapshot that it was derived from; a topology read from a Node has no snapshot."""

    topology: NodeTopology
    snapshot: Snapshot | None = None

    @property
    def advice(self) -> str:
        """The failure and what to do about it, in a few sentences; for an observation without a GPU."""
        from agent.failures import Failure  # noqa: PLC0415  only without a GPU

        found = None if self.snapshot is None else find_failure(self.snapshot)
        if found is None and not self._driver_answered:
            return "no GPU found: the input describes no NVIDIA GPU."
        found = found or Failure.NO_DEVICE
        cards = None if self.snapshot is None or self.snapshot.sysfs is None else _count_cards(self.snapshot)
        bus = "" if cards is None else f"; NVIDIA GPUs on the PCI bus: {cards or 'none'}"
        error = None if self.snapshot is None or self.snapshot.nvml is None else self.snapshot.nvml.error
        if error is not None and not _NVML_ERROR.fullmatch(error):
            return f"no GPU found: {error}{bus}."  # not an answer of the driver: it says itself what to do
        return f"no GPU found: {found.headline}{bus}.\n{found.advice}"

    @property
    def _driver_answered(self) -> bool:
        """Return whether the input is what a driver answered about its GPUs: NVML, or a command that counts them."""
        smi = (self.snapshot and self.snapshot.smi) or {}
        return self.snapshot is not None and (self.snapshot.nvml is not None or "-q -x" in smi)


def observe_snapshot(snapshot: Snapshot) -> Observation:
    """Return the topology of a snapshot, live or recorded."""
    return Observation(discover(snapshot), snapshot)


def find_failure(snapshot: Snapshot) -> Failure | None:
    """Return why no GPU could be read: from NVML's error codes first, then from nvidia-smi's messages."""
    from agent.failures import failure_from_nvml  # noqa: PLC0415  only without a GPU
    from agent.sources.smi.failure import classify_failure  # noqa: PLC0415

    error = None if snapshot.nvml is None else _nvml_error(snapshot.nvml)
    if error is not None:
        return failure_from_nvml(error)
    outputs = (snapshot.smi or {}).values()
    failures = (classify_failure(f"{output.stdout}\n{output.stderr}", output.exit_code) for output in outputs)
    return next((each for each in failures if each is not None), None)


def _nvml_error(nvml: Nvml) -> str | None:
    """Return the error that ended NVML, else one that prevents access to every GPU."""
    of_gpus = (gpu.access_error for gpu in nvml.gpus)
    errors = (nvml.error, nvml.errors.get("nvmlDeviceGetCount_v2"), *of_gpus)
    return next((error for error in errors if error is not None), None)


def _count_cards(snapshot: Snapshot) -> int:
    """Count the NVIDIA GPUs on the PCI bus, independent of the driver."""
    from agent.sources.pci import find_gpus  # noqa: PLC0415  only without a GPU

    return 0 if snapshot.sysfs is None else len(find_gpus(snapshot.sysfs))
