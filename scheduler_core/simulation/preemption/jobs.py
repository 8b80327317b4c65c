"""Jobs of several tiers: gangs with priorities, durations and checkpoints. Pure, but for ``random``.

TieredWorkloadError(ValueError)    the file is not such a workload; the message quotes the fault
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from scheduler_core.policy.preemption import CRITICAL_PRIORITY, NORMAL_PRIORITY
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.simulation.rows import Row, RowsError, csv_columns, is_json, parse_number, parse_text, read_rows

_QUOTED = 300  # characters of a faulty row
_MAX_PODS, _MAX_GPUS, _MAX_JOBS = 4096, 64, 200_000
_MAX_S = 366 * 86_400.0
_MAX_PRIORITY = 2**31 - 1
_COLUMNS = ("name", "pods", "num_gpu", "arrival_s", "duration_s")
COLUMNS = (*_COLUMNS, "priority", "workload", "island", "checkpoint_s", "restart_s", "deadline_s")
_CHECKPOINT_S = (900.0, 1_800.0, 7_200.0, None)


class TieredWorkloadError(ValueError):
    """The file is not a workload of tiers."""


class TieredJob(NamedTuple):
    """A gang: all pods run, or none does."""

    name: str
    pods: int
    gpus: int  # of each pod
    arrival: float  # seconds
    duration: float  # seconds of work
    priority: int = 0
    workload: WorkloadClass = WorkloadClass.DEFAULT
    island: bool = False  # each pod requires one NVLink island
    checkpoint_s: float | None = None  # interval; None: it saves no checkpoints
    restart_s: float = 300.0
    deadline_s: float | None = None  # activeDeadlineSeconds of its pods, at least ``duration``; None: it has none

    @property
    def tier(self) -> str:
        """Return the tier by which waits are listed."""
        if self.priority >= CRITICAL_PRIORITY:
            return "critical"
        if self.priority >= NORMAL_PRIORITY:
            return "normal"
        return "scavenger" if self.priority < 0 or self.workload is WorkloadClass.SCAVENGER else "low"

    @property
    def all_gpus(self) -> int:
        """Return the GPUs of all pods."""
        return self.pods * self.gpus


def has_tiers(text: str) -> bool:
    """Return whether a workload file has the column ``pods``, so that it is one of tiers."""
    try:
        return '"pods"' in text.lstrip()[:2_000] if is_json(text) else "pods" in csv_columns(text)
    except RowsError:
        return False  # said where the rows are read


def read_tiered_jobs(text: str) -> list[TieredJob]:
    """Parse jobs from CSV, or from JSON (a list of objects with these keys). Raises ``TieredWorkloadError``."""
    try:
        rows = read_rows(text)
    except RowsError as error:
        raise TieredWorkloadError(f"invalid workload: {error}; expected the columns {', '.join(COLUMNS)}") from None
    if not 0 < len(rows) <= _MAX_JOBS:
        raise TieredWorkloadError(f"{len(rows)} jobs; expected 1 to {_MAX_JOBS}, with the columns {', '.join(COLUMNS)}")
    jobs = [_job(number, row) for number, row in enumerate(rows, 1)]
    if twice := next((name for name, number in Counter(job.name for job in jobs).items() if number > 1), None):
        raise TieredWorkloadError(f"two jobs have the name {twice!r:.80}; give each job a name of its own")
    return jobs


def draw_tiered_jobs(gpus: int, days: float, load: float, random: Random) -> list[TieredJob]:
    """Draw jobs of three tiers that request ``load`` of the GPUs over the days.

    Of the requested GPU-hours, about a tenth is critical, half normal training and inference, the rest scavengers.
    """
    jobs: list[TieredJob] = []
    left, end = load * gpus * days * 86_400.0, days * 86_400.0
    while left > 0:
        draw = random.random()
        make = _critical if draw < 0.08 else _training if draw < 0.40 else _inference if draw < 0.55 else _scavenger
        job = make(f"job-{len(jobs)}", random.uniform(0.0, end), random)
        left -= job.all_gpus * job.duration
        jobs.append(job)
    return sorted(jobs, key=lambda job: (job.arrival, job.name))


def _critical(name: str, at: float, random: Random) -> TieredJob:
    hours, pods = random.choice((1, 2, 4, 8)), random.choice((1, 2, 4, 8))
    island = random.choice((4, 4, 8))
    return TieredJob(
        name, pods, island, at, hours * 3600.0, CRITICAL_PRIORITY, WorkloadClass.TRAINING, island == 4, 1_800.0
    )


def _training(name: str, at: float, random: Random) -> TieredJob:
    gpus = random.choice((2, 4, 8))
    pods = random.choice((1, 1, 2, 4, 8)) if gpus == 8 else 1
    hours = random.choice((4, 12, 24, 72))
    saves, priority = random.choice(_CHECKPOINT_S), random.choice((0, NORMAL_PRIORITY))
    return TieredJob(name, pods, gpus, at, hours * 3600.0, priority, WorkloadClass.TRAINING, gpus == 4, saves, 600.0)


def _inference(name: str, at: float, random: Random) -> TieredJob:
    hours, gpus = random.choice((24, 72, 168)), random.choice((1, 2, 4))
    return TieredJob(name, 1, gpus, at, hours * 3600.0, NORMAL_PRIORITY, WorkloadClass.INFERENCE, False, 60.0, 120.0)


def _scavenger(name: str, at: float, random: Random) -> TieredJob:
    gpus, hours = random.choice((1, 2, 4, 8)), random.choice((2, 8, 24))
    return TieredJob(name, 1, gpus, at, hours * 3600.0, -10, WorkloadClass.SCAVENGER, False, 1_800.0, 300.0)


def _job(number: int, row: Row) -> TieredJob:
    missing = [column for column in _COLUMNS if row.get(column) in (None, "")]
    quoted = str(dict(row))[:_QUOTED]
    if missing:
        raise TieredWorkloadError(f"job {number} has no {missing[0]}; expected {', '.join(COLUMNS)}: {quoted}")
    if unknown := [str(column) for column in row if column not in COLUMNS]:
        named = "a value without a column" if unknown[0] == "None" else f"the unknown column {unknown[0]!r:.80}"
        raise TieredWorkloadError(f"job {number} has {named}; expected {', '.join(COLUMNS)}: {quoted}")
    try:
        return TieredJob(
            name=parse_text(row, "name")[:253],
            pods=_whole(row, "pods", 1, _MAX_PODS),
            gpus=_whole(row, "num_gpu", 1, _MAX_GPUS),
            arrival=_bounded(row, "arrival_s", 0, _MAX_S),
            duration=_bounded(row, "duration_s", 1, _MAX_S),
            priority=_whole(row, "priority", -_MAX_PRIORITY, _MAX_PRIORITY, 0),
            workload=WorkloadClass(_word(row, "workload", [each.value for each in WorkloadClass]) or "default"),
            island=_word(row, "island", ("required", "preferred", "ignore")) == "required",
            checkpoint_s=_bounded(row, "checkpoint_s", 1, _MAX_S) if row.get("checkpoint_s") else None,
            restart_s=_bounded(row, "restart_s", 0, 86_400.0, 300.0),
            deadline_s=_deadline(row),
        )
    except (TypeError, ValueError) as error:
        raise TieredWorkloadError(f"job {number}: {error}: {quoted}") from None


def _deadline(row: Row) -> float | None:
    """Return the deadline; one before the end of the work is refused."""
    return _bounded(row, "deadline_s", parse_number(row["duration_s"]), _MAX_S) if row.get("deadline_s") else None


def _bounded(row: Row, column: str, least: float, most: float, default: float | None = None) -> float:
    """Return a number within limits; nan is refused."""
    value = row.get(column)
    try:
        found = parse_number(default if value in (None, "") and default is not None else value)
    except ValueError as error:
        raise ValueError(f"{column} {error}") from None
    if not least <= found <= most:
        raise ValueError(f"{column} {value!r:.80} is not between {least:g} and {most:g}")
    return found


def _whole(row: Row, column: str, least: int, most: int, default: int | None = None) -> int:
    found = _bounded(row, column, least, most, default)
    if not found.is_integer():
        raise ValueError(f"{column} {row.get(column)!r:.80} is not a whole number")
    return int(found)


def _word(row: Row, column: str, words: Sequence[str]) -> str:
    """Return one of these words, or an empty text if the row has none."""
    found = str(row.get(column) or "")
    if found and found not in words:
        raise ValueError(f"{column} {found!r:.80} is not {', '.join(words)}, or empty")
    return found
