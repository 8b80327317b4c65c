"""Workloads: jobs with arrivals and durations. Pure, but for ``random``, which the caller seeds.

WorkloadError(ValueError)    the file is not a valid workload; the message quotes the fault
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import NamedTuple

from scheduler_core.policy.demand_mix import WHOLE_GPU
from scheduler_core.simulation.rows import Row, RowsError, parse_integer, parse_number, parse_text, read_rows

_MAX_COUNT = 2**40
_MAX_ARRIVAL_S = 1e11  # the policies keep times as dates, and these end with the year 9999
_MAX_EXPECTED_S = 5e9  # of the last random job: one arrives at most 37 times as late
_QUOTED = 300  # characters of a faulty row
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
    try:
        rows = read_rows(text)
    except RowsError as error:
        raise WorkloadError(f"invalid workload: {error}; expected the columns {', '.join(_COLUMNS)}") from None
    jobs = [_job(number, row) for number, row in enumerate(rows, 1)]
    if not jobs:
        raise WorkloadError(
            f"no job found; expected a row for each job, with the columns {', '.join(_COLUMNS)}, "
            "or, for preemption, pods and the other columns of docs/preemption.md"
        )
    return jobs


def draw_jobs(kinds: Sequence[SimulatedJob], capacity: int, ratio: float, random: Random) -> list[SimulatedJob]:
    """Draw jobs in random order until they request ``ratio`` of the capacity (thousandths of GPUs).

    If all jobs together request less, jobs are drawn again. They arrive one by one and never end, as in "Beware of
    Fragmentation" (USENIX ATC 2023). Raises ``WorkloadError`` if the first one requests more already.
    """
    if not any(job.kind.demand for job in kinds):
        raise WorkloadError(
            "no job requests a GPU, so no number of jobs makes up the load; add times, or jobs with GPUs"
        )
    order = random.sample(list(kinds), len(kinds))
    chosen: list[SimulatedJob] = []
    asked = 0
    while True:
        number = len(chosen)
        job = order[number] if number < len(order) else random.choice(kinds)
        asked += job.kind.demand
        if asked > ratio * capacity:
            if not chosen:
                raise WorkloadError(
                    f"job {job.name!r} requests {asked / WHOLE_GPU:g} GPUs, more than the whole load of "
                    f"{ratio * capacity / WHOLE_GPU:g} GPUs; remove it, add times, or simulate a larger cluster"
                )
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
    """Generate jobs for a cluster with this many GPUs. Raises ``WorkloadError`` if they arrive over centuries."""
    sizes, weights = zip(*sorted(recipe.sizes.items()), strict=True)
    mean = sum(size * weight for size, weight in recipe.sizes.items()) / sum(weights)
    rate = recipe.load * gpus / (mean * recipe.mean_duration_s)
    if recipe.jobs > rate * _MAX_EXPECTED_S:
        raise WorkloadError(
            f"with a load of {recipe.load:g}, the last of {recipe.jobs} jobs would arrive after more than "
            f"{_MAX_EXPECTED_S / 31_557_600:.0f} years; simulate a higher load, or fewer jobs"
        )
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


def _job(number: int, row: Row) -> SimulatedJob:
    missing = [column for column in _COLUMNS if row.get(column) in (None, "")]
    if missing:
        raise WorkloadError(f"job {number} has no {missing[0]}: {str(dict(row))[:_QUOTED]}")
    try:
        gpus, milli = _count(row, "num_gpu"), _count(row, "gpu_milli")
        kind = JobKind(
            gpus=gpus if milli >= WHOLE_GPU else 0,
            share=milli if gpus and milli < WHOLE_GPU else 0,
            cpu_milli=_count(row, "cpu_milli"),
            memory_mib=_count(row, "memory_mib"),
            products=frozenset(str(row["gpu_spec"]).split("|")) if row.get("gpu_spec") else None,
            island=str(row.get("island", "")) == "required",
        )
        return SimulatedJob(parse_text(row, "name"), kind, _arrival(row, number), _seconds(row, "duration_s", inf))
    except ValueError as error:
        raise WorkloadError(f"job {number}: {error}: {str(dict(row))[:_QUOTED]}") from None


def _arrival(row: Row, default: float) -> float:
    found = _seconds(row, "arrival_s", default)
    if found > _MAX_ARRIVAL_S:
        raise ValueError(f"arrival_s {found:g} is more than {_MAX_ARRIVAL_S:g}: are these milliseconds?")
    return found


def _count(row: Row, column: str) -> int:
    try:
        found = parse_integer(row[column])
    except ValueError as error:
        raise ValueError(f"{column} {error}") from None
    if not 0 <= found <= _MAX_COUNT:
        raise ValueError(f"{column} {found} is not between 0 and {_MAX_COUNT}")
    return found


def _seconds(row: Row, column: str, default: float) -> float:
    """Return a time; an empty cell is the default, nan and negative numbers are refused."""
    try:
        found = default if row.get(column) in (None, "") else parse_number(row[column])
    except ValueError:
        raise ValueError(f"{column} {row[column]!r:.80} is not a time in seconds, such as 3600 or 0.5") from None
    if not found >= 0 or (found == inf != default):
        raise ValueError(f"{column} {found} is not a time in seconds")
    return found
