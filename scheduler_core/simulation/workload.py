"""Workloads: jobs with arrivals and durations. Pure, but for ``random``, which the caller seeds.

WorkloadError(ValueError)    the file is not a valid workload; the message quotes the fault
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any, NamedTuple

import msgspec

from gputopo.process.decoding import decode
from scheduler_core.policy.demand_mix import WHOLE_GPU

_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class WorkloadError(ValueError):
    """The file is not a valid workload."""


class JobKind(NamedTuple):
    """Everything that decides which nodes suit a job."""

    gpus: int = 0  # whole GPUs
    share: int = 0  # thousandths of a shared GPU
    cpu_milli: int = 0
    memory_mib: int = 0
    products: frozenset[str] | None = None  # accepted GPU models; None: all
    island: bool = False  # requires one NVLink island

    @property
    def demand(self) -> int:
        """The requested thousandths of GPUs."""
        return self.share or WHOLE_GPU * self.gpus


class SimulatedJob(NamedTuple):
    """A job of one pod."""

    name: str
    kind: JobKind
    arrival: float = 0.0  # seconds
    duration: float = inf  # seconds; inf: it never ends


def read_jobs(text: str) -> list[SimulatedJob]:
    """Parse jobs from CSV in the format of the public "openb" traces, or from JSON (a list of objects with these keys).

    ``arrival_s`` and ``duration_s`` are optional; without them jobs arrive one after the other and never end.
    """
    rows: Sequence[Mapping[str, Any]] = (
        _json(text) if text.lstrip().startswith("[") else list(csv.DictReader(io.StringIO(text)))
    )
    return [_job(number, row) for number, row in enumerate(rows, 1)]


def draw_jobs(kinds: Sequence[SimulatedJob], capacity: int, ratio: float, random: Random) -> list[SimulatedJob]:
    """Draw jobs in random order until they request ``ratio`` of the capacity (thousandths of GPUs).

    If all jobs together request less, jobs are drawn again. They arrive one by one and never end, as in "Beware of
    Fragmentation" (USENIX ATC 2023).
    """
    order = random.sample(list(kinds), len(kinds))
    chosen: list[SimulatedJob] = []
    asked = 0
    while True:
        number = len(chosen)
        job = order[number] if number < len(order) else random.choice(kinds)
        asked += job.kind.demand
        if asked > ratio * capacity:
            return chosen
        chosen.append(SimulatedJob(f"{job.name}-{number}", job.kind, float(number)))


class WorkloadRecipe(NamedTuple):
    """A workload by its distributions: sizes as given, Poisson arrivals, exponential durations."""

    sizes: Mapping[int, float]  # number of GPUs -> frequency, in any unit
    load: float = 0.9  # requested GPUs over time, as a share of the capacity
    jobs: int = 4000
    mean_duration_s: float = 3600.0
    islands: bool = False  # jobs of several GPUs require one island
    cpu_of_gpu: int = 0  # milli, for each GPU
    memory_of_gpu: int = 0  # MiB, for each GPU


def generate_jobs(recipe: WorkloadRecipe, gpus: int, random: Random) -> list[SimulatedJob]:
    """Generate jobs for a cluster with this many GPUs."""
    sizes, weights = zip(*sorted(recipe.sizes.items()), strict=True)
    mean = sum(size * weight for size, weight in recipe.sizes.items()) / sum(weights)
    rate = recipe.load * gpus / (mean * recipe.mean_duration_s)
    jobs = []
    now = 0.0
    for number in range(recipe.jobs):
        now += random.expovariate(rate)
        size = random.choices(sizes, weights)[0]
        kind = JobKind(
            size, 0, recipe.cpu_of_gpu * size, recipe.memory_of_gpu * size, None, island=recipe.islands and size > 1
        )
        jobs.append(SimulatedJob(f"job-{number}", kind, now, random.expovariate(1 / recipe.mean_duration_s)))
    return jobs


def _json(text: str) -> Sequence[Mapping[str, Any]]:
    try:
        return decode(text, list[dict[str, Any]])
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"invalid workload: {error}") from None


def _job(number: int, row: Mapping[str, Any]) -> SimulatedJob:
    missing = [column for column in _COLUMNS if row.get(column) in (None, "")]
    if missing:
        raise WorkloadError(f"job {number} has no {missing[0]}: {dict(row)!r}")
    try:
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        kind = JobKind(
            gpus=gpus if milli >= WHOLE_GPU else 0,
            share=milli if gpus and milli < WHOLE_GPU else 0,
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            products=frozenset(str(row["gpu_spec"]).split("|")) if row.get("gpu_spec") else None,
            island=str(row.get("island", "")) == "required",
        )
        arrival = float(row.get("arrival_s") or number)
        return SimulatedJob(str(row["name"]), kind, arrival, float(row.get("duration_s") or inf))
    except ValueError as error:
        raise WorkloadError(f"job {number}: {error}: {dict(row)!r}") from None
