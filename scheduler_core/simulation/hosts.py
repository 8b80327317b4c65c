"""The simulated cluster: what is free where. What changes while time passes is here, and nowhere else."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from gputopo.model import NodeTopology
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.simulation.assumed_machines import machine_of
from scheduler_core.simulation.workload import JobKind

UNLIMITED = 1 << 40  # CPU milli and MiB of a node of which neither is known


class ClusterError(ValueError):
    """A file that is no cluster; the text quotes what is wrong."""


class SimulatedNode(NamedTuple):
    """A node, idle."""

    name: str
    topology: NodeTopology
    cpu_milli: int = UNLIMITED
    memory_mib: int = UNLIMITED


class Placement(NamedTuple):
    """Where a pod went."""

    host: int  # its number
    gpus: int  # set of GPUs, by place; of a share the one GPU


class SimulatedHost:
    """A node and what is free on it."""

    def __init__(self, number: int, spec: SimulatedNode) -> None:
        self.number = number
        self.spec = spec
        self.shape: MachineShape = shape_of(spec.topology)
        products = {gpu.product for gpu in self.shape.gpus}
        self.product = products.pop() if len(products) == 1 else None
        self.cpu_milli = spec.cpu_milli
        self.memory_mib = spec.memory_mib
        self.free_fractions = [WHOLE_GPU * (self.shape.whole >> place & 1) for place in range(len(self.shape.gpus))]
        self.gpus = self.shape.whole.bit_count()

    @property
    def free(self) -> int:
        """The GPUs that are free as a whole, as a set of places."""
        return sum(1 << place for place, left in enumerate(self.free_fractions) if left == WHOLE_GPU)

    @property
    def free_milli(self) -> int:
        """Thousandths of GPUs that are free."""
        return sum(self.free_fractions)

    def fits(self, kind: JobKind) -> bool:
        """Whether a pod of that kind has room, as kube-scheduler and the device plugins count."""
        if kind.cpu_milli > self.cpu_milli or kind.memory_mib > self.memory_mib:
            return False
        if not kind.demand:
            return True
        if kind.products is not None and self.product not in kind.products:
            return False
        return (
            max(self.free_fractions) >= kind.share if kind.share else self.free_fractions.count(WHOLE_GPU) >= kind.gpus
        )

    def allocate(self, kind: JobKind, gpus: int, sign: int = 1) -> None:
        """Give those GPUs to a pod of that kind; with ``sign`` -1 they come back."""
        self.cpu_milli -= sign * kind.cpu_milli
        self.memory_mib -= sign * kind.memory_mib
        for place in member_places(gpus):
            self.free_fractions[place] -= sign * (kind.share or WHOLE_GPU)


class SimulatedCluster:
    """All nodes, and which of them changed, in order."""

    def __init__(self, specs: Sequence[SimulatedNode]) -> None:
        self.all = [SimulatedHost(number, spec) for number, spec in enumerate(specs)]
        self.capacity = WHOLE_GPU * sum(host.gpus for host in self.all)  # thousandths of GPUs
        self.allocated = 0
        self.changed: list[int] = []  # numbers

    def start_pod(self, kind: JobKind, placement: Placement) -> None:
        """A pod starts."""
        self.all[placement.host].allocate(kind, placement.gpus)
        self.allocated += kind.demand
        self.changed.append(placement.host)

    def end_pod(self, kind: JobKind, placement: Placement) -> None:
        """A pod ends."""
        self.all[placement.host].allocate(kind, placement.gpus, -1)
        self.allocated -= kind.demand
        self.changed.append(placement.host)


def read_nodes(text: str) -> list[SimulatedNode]:
    """Nodes from CSV in the format of the public "openb" traces: sn, cpu_milli, memory_mib, gpu, model."""
    specs = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 1):
        try:
            gpus = int(row["gpu"])
            cpu_milli, memory_mib = int(row["cpu_milli"]), int(row["memory_mib"])
            specs.append(SimulatedNode(row["sn"], machine_of(row["model"], gpus), cpu_milli, memory_mib))
        except (KeyError, TypeError, ValueError) as error:
            raise ClusterError(f"node {number}: {error!r} in {dict(row)!r}; there must be sn, cpu_milli, ...") from None
    return specs
