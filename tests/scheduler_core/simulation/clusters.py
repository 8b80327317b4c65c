"""Small clusters and workloads."""

from __future__ import annotations

from random import Random
from typing import Any

from scheduler_core.simulation.assumed_machines import islands, machine_of
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.workload import JobKind, SimulatedJob, WorkloadRecipe, generate_jobs

QUADS = [SimulatedNode(f"n{number}", islands("X", (4, 4))) for number in range(6)]
MIXED = [
    *(SimulatedNode(f"big-{number}", machine_of("G2", 8), 96_000, 400_000) for number in range(3)),
    *(SimulatedNode(f"small-{number}", machine_of("T4", 2), 104_000, 500_000) for number in range(3)),
]
MIXED_JOBS = [
    SimulatedJob("whole", JobKind(1, 0, 11_000, 8_000)),
    SimulatedJob("pair", JobKind(2, 0, 20_000, 8_000)),
    SimulatedJob("all", JobKind(8, 0, 88_000, 8_000)),
    SimulatedJob("half", JobKind(0, 460, 8_000, 8_000)),
    SimulatedJob("little", JobKind(0, 200, 3_000, 8_000, frozenset({"T4", "G2"}))),
    SimulatedJob("none", JobKind(0, 0, 16_000, 8_000)),
]


def jobs(seed: int = 1, count: int = 150, **more: Any) -> list[SimulatedJob]:
    """Jobs of 1 to 5 GPUs for ``QUADS``."""
    recipe = WorkloadRecipe({1: 45, 2: 25, 3: 8, 4: 15, 5: 7}, jobs=count)._replace(**more)
    return generate_jobs(recipe, 48, Random(seed))
