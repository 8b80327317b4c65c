"""The simulated cluster: the free capacity of each node. All mutable state of the cluster is here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputopo.identity import SameObjects
from gputopo.model import MAX_GPUS, NodeTopology
from gputopo.quantities import parse_mib, parse_quantity
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.cache.kube_scheduler_filters import rejection
from scheduler_core.cache.list_once import ListedCluster
from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.full_pod import FullPodSpec, Toleration
from scheduler_core.simulation.assumed_facts import CompletedMachine, MissingFact, complete_machine
from scheduler_core.simulation.assumed_machines import machine_of
from scheduler_core.simulation.rows import RowsError, parse_integer, parse_text, read_rows
from scheduler_core.simulation.workload import JobKind

_EXPECTED = "expected columns: sn, cpu_milli, memory_mib, gpu, model"
UNLIMITED = 1 << 40  # CPU milli and MiB of a node if unknown
# Device plugins and clouds taint GPU nodes with the name of the resource, and pods that request it tolerate the taint.
_ORDINARY_POD = FullPodSpec(tolerations=(Toleration(key=WHOLE, operator="Exists"),))


class ClusterError(ValueError):
    """The file is not a valid cluster; the message quotes the fault."""


class SimulatedNode(NamedTuple):
    """An idle node."""

    name: str
    topology: NodeTopology
    cpu_milli: int = UNLIMITED
    memory_mib: int = UNLIMITED
    missing: frozenset[MissingFact] = frozenset()  # ``topology`` has assumed values for them, or none


class Placement(NamedTuple):
    """The placement of a pod."""

    host: int  # its number
    gpus: int  # set of GPUs, by place; a single GPU for a share


class SimulatedHost:
    """A node and its free capacity."""

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
        """The GPUs that are entirely free, as a set of places."""
        return sum(1 << place for place, left in enumerate(self.free_fractions) if left == WHOLE_GPU)

    @property
    def free_milli(self) -> int:
        """The free thousandths of GPUs."""
        return sum(self.free_fractions)

    def fits(self, kind: JobKind) -> bool:
        """Return True if a pod of this kind fits, as kube-scheduler and the device plugins count."""
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
        """Allocate the GPUs to a pod of this kind; with ``sign`` -1, release them."""
        self.cpu_milli -= sign * kind.cpu_milli
        self.memory_mib -= sign * kind.memory_mib
        for place in member_places(gpus):
            self.free_fractions[place] -= sign * (kind.share or WHOLE_GPU)


class SimulatedCluster:
    """All nodes, and the log of changed nodes in order."""

    def __init__(self, specs: Sequence[SimulatedNode]) -> None:
        self.all = [SimulatedHost(number, spec) for number, spec in enumerate(specs)]
        self.capacity = WHOLE_GPU * sum(host.gpus for host in self.all)  # thousandths of GPUs
        self.allocated = 0
        self.changed: list[int] = []  # numbers

    def start_pod(self, kind: JobKind, placement: Placement) -> None:
        """Start a pod."""
        self.all[placement.host].allocate(kind, placement.gpus)
        self.allocated += kind.demand
        self.changed.append(placement.host)

    def end_pod(self, kind: JobKind, placement: Placement) -> None:
        """End a pod."""
        self.all[placement.host].allocate(kind, placement.gpus, -1)
        self.allocated -= kind.demand
        self.changed.append(placement.host)


def _whole_number(value: object) -> int:
    """Return the number of a cell; None: the line ends before it. Raises ``ValueError``."""
    if value is None:
        raise ValueError("the line has too few values")
    return parse_integer(value)


def _gpu_count(value: object) -> int:
    found = _whole_number(value)
    if not 0 <= found <= MAX_GPUS:
        raise ValueError(f"gpu {found} is not between 0 and {MAX_GPUS}")
    return found


class IdleNodes(NamedTuple):
    """The GPU nodes of a cluster without their pods."""

    nodes: list[SimulatedNode]
    left_out: dict[str, str]  # nodes that kube-scheduler rejects for an ordinary GPU pod, with the reasons


def idle_nodes(cluster: ListedCluster) -> IdleNodes:
    """Return the GPU nodes without their pods, as far as their GPUs are known."""
    found = IdleNodes([], {})
    for node in cluster.nodes:
        name = node.metadata.name
        topology = cluster.snapshot.records[name].machine.topology
        if topology is None or not topology.usable:
            continue
        if (reason := rejection(_ORDINARY_POD, node)) is not None:
            found.left_out[name] = reason
            continue
        allocatable = node.status.allocatable or {}
        cpu = parse_quantity(str(allocatable.get("cpu", "")))
        memory = parse_mib(str(allocatable.get("memory", "")))
        cpu_milli = UNLIMITED if cpu is None else int(1000 * cpu)
        found.nodes.append(SimulatedNode(name, topology, cpu_milli, memory or UNLIMITED))
    return found


def completed_nodes(specs: Iterable[SimulatedNode]) -> list[SimulatedNode]:
    """Return the nodes with the facts that a simulation can assume. Nodes that share a topology still share one."""
    by_topology: dict[SameObjects, CompletedMachine] = {}
    completed = []
    for spec in specs:
        same = SameObjects((spec.topology,))
        machine = by_topology.get(same) or by_topology.setdefault(same, complete_machine(spec.topology))
        completed.append(spec._replace(topology=machine.topology, missing=machine.missing))
    return completed


def read_nodes(text: str) -> list[SimulatedNode]:
    """Parse nodes from CSV in the format of the public "openb" traces: sn, cpu_milli, memory_mib, gpu, model."""
    specs = []
    try:
        rows = read_rows(text)
    except RowsError as error:
        raise ClusterError(f"{error}; {_EXPECTED}") from None
    for number, row in enumerate(rows, 1):
        try:
            gpus = _gpu_count(row["gpu"])
            cpu_milli, memory_mib = _whole_number(row["cpu_milli"]), _whole_number(row["memory_mib"])
            specs.append(
                SimulatedNode(parse_text(row, "sn"), machine_of(parse_text(row, "model"), gpus), cpu_milli, memory_mib)
            )
        except KeyError as error:
            raise ClusterError(f"there is no column {error.args[0]}; {_EXPECTED}") from None
        except ValueError as error:
            values = ", ".join(f"{key}={value}" for key, value in row.items())[:300]
            raise ClusterError(f"node {number} ({values}): {error}; {_EXPECTED}") from None
    if not specs:
        raise ClusterError(f"no node found; {_EXPECTED}")
    return specs
