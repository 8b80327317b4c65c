"""The search of pods to evict."""

from __future__ import annotations

from gputopo.crd.reservations import HeldCapacity, PlannedEviction, Preemption
from scheduler_core.planner.preemption.model import NoPreemption, PreemptionPlan
from scheduler_core.planner.preemption.search import FITS_ALREADY, NEVER_FITS, NO_UNITS, search_preemption
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.packing.member_groups import crew
from tests.scheduler_core.planner.preemption.tasks import task, unit, victim

H100 = MACHINES["hgx_h100"]()
BUSY = {name: record(name, H100, pods=[occupant(f"on-{name}", 8)], held={f"on-{name}": range(8)}) for name in "abc"}


def names(found: PreemptionPlan | NoPreemption) -> list[str]:
    """The units that are evicted."""
    assert isinstance(found, PreemptionPlan), found
    return sorted(each.name for each in found.units)


def test_the_cheapest_single_pod_is_evicted() -> None:
    units = [unit(victim(f"on-{name}", name, hours=hours)) for name, hours in (("a", 3.0), ("b", 1.0), ("c", 2.0))]

    found = search_preemption(task(crew(1, 8), units, *BUSY.values()))

    assert names(found) == ["team/on-b"]
    assert isinstance(found, PreemptionPlan)
    assert found.held == (HeldCapacity("b", 8),)
    assert found.intent(60.0) == Preemption(
        (PlannedEviction("uid-on-b", "team", "on-b", "b", "team/on-b", 8),),
        rule="",
        reason="evicts 1 pod of team/on-b; 1.0 GPU-hours of work are lost",
        gpu_hours=1.0,
        timeout_s=60.0,
    )


def test_a_gang_is_evicted_as_a_whole() -> None:
    both = unit(victim("on-a", "a", hours=0.1), victim("on-b", "b", hours=0.1), name="pair")

    found = search_preemption(task(crew(1, 8), [both, unit(victim("on-c", "c", hours=5))], *BUSY.values()))

    assert isinstance(found, PreemptionPlan)
    assert [each.name for each in found.pods] == ["on-a", "on-b"]


def test_two_pods_whose_gpus_are_in_different_islands_are_not_evicted_in_vain() -> None:
    pairs = MACHINES["a100_bridged"]()
    held = {"p": [0], "q": [1], "r": [2], "s": [3]}
    node = record("n", pairs, pods=[occupant(name, 1) for name in held], held=held)
    cheap = [unit(victim(name, "n", 1, hours)) for name, hours in (("p", 0.1), ("r", 0.2), ("q", 3.0), ("s", 1.0))]

    found = search_preemption(task(crew(1, 2, island="required"), cheap, node))

    assert names(found) == ["team/r", "team/s"]


def test_a_result_needs_units_a_lack_of_room_and_a_fit() -> None:
    one = [unit(victim("on-a", "a"))]

    assert search_preemption(task(crew(1, 8), [], *BUSY.values())) == NoPreemption(task(crew(1, 8), []).gang, NO_UNITS)
    free = search_preemption(task(crew(1, 8), one, *BUSY.values(), record("d", H100, held={})))
    assert isinstance(free, NoPreemption)
    assert free.reason == FITS_ALREADY
    vain = search_preemption(task(crew(2, 8), one, *BUSY.values()))
    assert isinstance(vain, NoPreemption)
    assert (vain.reason, vain.gave_up) == (NEVER_FITS, False)
