"""One look at a machine: its topology, and why there is none where there is none. Pure."""

from __future__ import annotations

from typing import NamedTuple

from agent.discover import discover
from agent.failures import Failure, from_nvml
from agent.snapshot import Snapshot
from agent.sources.pci import gpus_of
from agent.sources.smi.failure import classify
from gputopo.model import NodeTopology


class Observation(NamedTuple):
    """A topology; ``failure`` says why it has no GPU, where a source told."""

    topology: NodeTopology
    failure: Failure | None = None
    cards: int | None = None  # NVIDIA GPUs on the PCI bus, whatever the driver says; None: the bus was not read

    @property
    def advice(self) -> str:
        """What is wrong and what to do about it, in a few sentences, where there is no GPU."""
        failure = self.failure or Failure.NO_DEVICE
        count = self.cards or "no"
        bus = "" if self.cards is None else f"; NVIDIA GPUs on the PCI bus: {count}"
        return f"no GPU can be read here: {failure.headline}{bus}.\n{failure.advice}"


def observe(snapshot: Snapshot) -> Observation:
    """The topology of a snapshot, live or recorded, and the failure in it."""
    return Observation(
        topology=discover(snapshot),
        failure=_failure(snapshot),
        cards=None if snapshot.sysfs is None else len(gpus_of(snapshot.sysfs)),
    )


def _failure(snapshot: Snapshot) -> Failure | None:
    """What NVML says ended it, which is exact, before what nvidia-smi says in prose."""
    if snapshot.nvml is not None and snapshot.nvml.error is not None:
        return from_nvml(snapshot.nvml.error)
    outputs = (snapshot.smi or {}).values()
    told = (classify(f"{output.stdout}\n{output.stderr}", output.exit_code) for output in outputs)
    return next((failure for failure in told if failure is not None), None)
