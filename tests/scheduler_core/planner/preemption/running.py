"""Running pods and gangs, and what they tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler_core.cache.events import Batch
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.planner.gang.disruption import Disruptions, OwnerDisruption, PodDisruption
from scheduler_core.planner.gang.gang import DeclaredSizes, Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.preemption import DEFAULT_PREEMPTION
from scheduler_core.request.disruption import DisruptionFacts
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import GANG, crew, member

H100 = MACHINES["hgx_h100"]()
HOUR = 3_600.0


class RunningJob(NamedTuple):
    """Pods of 8 GPUs, one for each node; several are a gang."""

    name: str
    nodes: str  # names of one letter
    workload: str = "batch"  # or "scavenger"
    priority: int = 0
    hours: float = 10.0  # since its start
    minimum: int | None = None
    facts: DisruptionFacts = DisruptionFacts()
    changed: Mapping[str, Any] = {}  # fields of ``PodDisruption``
    owner: str | None = None  # UID of the controller

    @property
    def pods(self) -> list[str]:
        return [self.name] if len(self.nodes) == 1 else [f"{self.name}-{at}" for at in range(len(self.nodes))]


def inputs(
    jobs: Iterable[RunningJob], priority: int = 100_000, *, cost_per_hour: str = "", **changed: Any
) -> UnitInputs:
    """Return the inputs for a beneficiary of this priority, on nodes with 8 GPUs."""
    nodes: dict[str, NodeRecord] = {}
    gangs, states = [], []
    for job in jobs:
        for name, node in zip(job.pods, job.nodes, strict=True):
            labels = {"node-cost-per-hour": cost_per_hour} if cost_per_hour else None
            nodes[node] = record(node, H100, pods=[_pod(name, job)], held={name: range(8)}, labels=labels)
            state = PodDisruption(f"uid-{name}", job.facts, job.priority, NOW - job.hours * HOUR)
            states.append(state._replace(**job.changed))
        if len(job.nodes) > 1:
            gangs.append(_gang(job))
    disruptions = Disruptions()
    disruptions.apply_pods(Batch(PodDisruption, tuple(states)))
    found = UnitInputs(
        Gang(GANG, GangPhase.QUEUED, "", ready=tuple(crew(1, 8)), size=1, priority=priority),
        snapshot_of(nodes.values(), NOW, Policy()),
        tuple(gangs),
        disruptions,
        PodDeadlines(),
        DEFAULT_PREEMPTION,
        NOW,
    )
    return found._replace(**changed)


def owners(facts: Mapping[str, OwnerDisruption], disruptions: Disruptions) -> Disruptions:
    """Return the disruptions with what owners tell, by UID."""
    found = disruptions.copy()
    found.apply_owners(Batch(DeclaredSizes, ()), facts)
    return found


def deadlines(**at: float) -> PodDeadlines:
    """Return deadlines by pod name."""
    found = PodDeadlines()
    found.apply_pod_deadlines(Batch(PodDeadline, tuple(PodDeadline(f"uid-{name}", each) for name, each in at.items())))
    return found


def _pod(name: str, job: RunningJob) -> Any:
    if job.workload != "scavenger":
        return occupant(name, 8, workload=job.workload)._replace(owner=job.owner)
    found = occupant(name, 8)
    return found._replace(profile=found.profile._replace(scavenger=True), owner=job.owner)


def _gang(job: RunningJob) -> Gang:
    placed: list[Member] = []
    for name, node in zip(job.pods, job.nodes, strict=True):
        placed.append(member(name, 8)._replace(node=node, phase="Running", started=True))
    size = len(placed)
    return Gang(
        GangName("team", job.name),
        GangPhase.RUNNING,
        "",
        placed=tuple(placed),
        size=size,
        minimum=job.minimum,
        priority=job.priority,
    )
