"""Workloads: parsed, drawn and generated."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from scheduler_core.simulation.workload import (
    JobKind,
    SimulatedJob,
    WorkloadError,
    WorkloadRecipe,
    draw_jobs,
    generate_jobs,
    read_jobs,
)

HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,arrival_s,duration_s\n"


@pytest.mark.parametrize(
    ("row", "job"),
    [
        pytest.param("a,1000,2,2,1000,,,", SimulatedJob("a", JobKind(2, 0, 1000, 2), 1.0), id="whole GPUs"),
        pytest.param("a,1000,2,1,460,,,", SimulatedJob("a", JobKind(0, 460, 1000, 2), 1.0), id="a share"),
        pytest.param("a,1000,2,0,0,,,", SimulatedJob("a", JobKind(0, 0, 1000, 2), 1.0), id="no GPU"),
        pytest.param(
            "a,1,2,1,1000,T4|A10,,",
            SimulatedJob("a", JobKind(1, 0, 1, 2, frozenset({"T4", "A10"})), 1.0),
            id="of two products",
        ),
        pytest.param("a,1,2,1,1000,,7.5,60", SimulatedJob("a", JobKind(1, 0, 1, 2), 7.5, 60.0), id="with times"),
    ],
)
def test_csv(row: str, job: SimulatedJob) -> None:
    assert read_jobs(HEAD + row) == [job]


def test_json() -> None:
    text = '[{"name": "a", "cpu_milli": 1, "memory_mib": 2, "num_gpu": 4, "gpu_milli": 1000, "island": "required"}]'

    assert read_jobs(text) == [SimulatedJob("a", JobKind(4, 0, 1, 2, None, island=True), 1.0, inf)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(HEAD + "a,1,2,,1000,,,", "job 1 has no num_gpu", id="a column is empty"),
        pytest.param(HEAD + "a,much,2,1,1000,,,", "'much'", id="no number"),
        pytest.param(
            HEAD + "a,1,2,1e9,1000,,,",
            "job 1: num_gpu '1e9' is not an integer in decimal digits, such as 8000: {",
            id="float",
        ),
        pytest.param(
            HEAD + "a,1,2,1,1000,,soon,", "job 1: arrival_s 'soon' is not a time in seconds, such as 3600", id="no time"
        ),
        pytest.param(
            HEAD + "a,1,2,1,1000,,1e13,", r"job 1: arrival_s 1e\+13 is more than 1e\+11: are these mill", id="late"
        ),
        pytest.param(HEAD + "a" * 200_000, "invalid CSV: field larger than field limit", id="a long cell"),
        pytest.param("[1]", "invalid workload", id="no objects"),
    ],
)
def test_invalid_workload(text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        read_jobs(text)


def test_all_jobs_are_drawn_before_any_is_drawn_again() -> None:
    kinds = [SimulatedJob(f"j{number}", JobKind(1)) for number in range(10)]

    found = draw_jobs(kinds, 10_000, 1.3, Random(1))

    assert len(found) == 13
    assert {job.name.split("-")[0] for job in found[:10]} == {job.name for job in kinds}
    assert found == draw_jobs(kinds, 10_000, 1.3, Random(1))
    assert found != draw_jobs(kinds, 10_000, 1.3, Random(2))


def test_generated_load_is_the_requested_load() -> None:
    """GPU seconds over the time of arrivals, next to what 100 GPUs have: 90 % within a few."""
    found = generate_jobs(WorkloadRecipe({1: 1, 4: 1}, 0.9, 4000), 100, Random(1))

    asked = sum(job.kind.gpus * job.duration for job in found)
    assert asked / (100 * found[-1].arrival) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("load", [1e-9, 1e-300, 5e-324])
def test_jobs_that_would_arrive_over_centuries_are_refused(load: float) -> None:
    with pytest.raises(
        WorkloadError, match=r"with a load of .*e-.*, the last of 4000 jobs would arrive after more than"
    ):
        generate_jobs(WorkloadRecipe({1: 1}, load, 4000), 1, Random(1))
