"""Deadlines of pods and of the Jobs that created them."""

from __future__ import annotations

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from tests.scheduler_core.builders import occupant, owned_by


def pod(name: str, gpus: int = 1, owner: str | None = None) -> Occupant:
    held = occupant(name, gpus)
    return owned_by(held, owner) if owner else held


def test_deadlines_are_updated_and_removed_with_their_objects() -> None:
    deadlines = PodDeadlines()
    deadlines.apply_pod_deadlines(
        Batch(PodDeadline, (PodDeadline("uid-a", 100.0), PodDeadline("uid-b", 300.0)), is_full_list=True)
    )
    deadlines.apply_pod_deadlines(Batch(PodDeadline, (PodDeadline("uid-a", 150.0),), removed=("uid-b", "stranger")))
    deadlines.apply_job_deadlines(Batch(DeclaredSizes, (DeclaredSizes("job", (), 200.0),)))
    deadlines.apply_job_deadlines(Batch(DeclaredSizes, (DeclaredSizes("job", ()),)))

    before = deadlines.copy()
    pods = (pod("a"), pod("b"), pod("c", owner="job"))
    assert [deadlines.deadline_of(each) for each in pods] == [150.0, None, None]
    deadlines.apply_pod_deadlines(Batch(PodDeadline, (), is_full_list=True))
    assert (deadlines.deadline_of(pod("a")), before.deadline_of(pod("a"))) == (None, 150.0)


def test_a_full_list_of_another_kind_keeps_deadlines_of_jobs() -> None:
    class JobSetSizes(DeclaredSizes):
        pass

    deadlines = PodDeadlines()
    deadlines.apply_job_deadlines(Batch(DeclaredSizes, (DeclaredSizes("job", (), 200.0),), is_full_list=True))
    deadlines.apply_job_deadlines(Batch(JobSetSizes, (), (), is_full_list=True))

    assert deadlines.deadline_of(pod("p", owner="job")) == 200.0
