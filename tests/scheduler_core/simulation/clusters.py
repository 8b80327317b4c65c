"""Small clusters and workloads."""

from __future__ import annotations

from random import Random
from typing import Any

from scheduler_core.simulation.assumed_machines import islands, machine_of
from scheduler_core.simulation.hosts import NodeSpec
from scheduler_core.simulation.workload import Job, Kind, Recipe, generated

QUADS = [NodeSpec(f"n{number}", islands("X", (4, 4))) for number in range(6)]
MIXED = [
    *(NodeSpec(f"big-{number}", machine_of("G2", 8), 96_000, 400_000) for number in range(3)),
    *(NodeSpec(f"small-{number}", machine_of("T4", 2), 104_000, 500_000) for number in range(3)),
]
MIXED_JOBS = [
    Job("whole", Kind(1, 0, 11_000, 8_000)),
    Job("pair", Kind(2, 0, 20_000, 8_000)),
    Job("all", Kind(8, 0, 88_000, 8_000)),
    Job("half", Kind(0, 460, 8_000, 8_000)),
    Job("little", Kind(0, 200, 3_000, 8_000, frozenset({"T4", "G2"}))),
    Job("none", Kind(0, 0, 16_000, 8_000)),
]


def jobs(seed: int = 1, count: int = 150, **more: Any) -> list[Job]:
    """Jobs of 1 to 5 GPUs for ``QUADS``."""
    recipe = Recipe({1: 45, 2: 25, 3: 8, 4: 15, 5: 7}, jobs=count)._replace(**more)
    return generated(recipe, 48, Random(seed))
