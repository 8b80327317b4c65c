"""The search of pods to evict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import HeldCapacity, PlannedEviction, Preemption
from scheduler_core.planner.preemption.model import EvictionUnit, NoPreemption, PreemptionPlan
from scheduler_core.planner.preemption.search import FITS_ALREADY, NEVER_FITS, NO_UNITS, search_preemption
from scheduler_core.request.node_load import NodeLoad
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.packing.member_groups import RACK, crew, view, with_allocatable
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
        (PlannedEviction("uid-on-b", "team", "on-b", "b", "team/on-b", 8, grace_s=30),),
        rule="",
        reason="evicts 1 pod of team/on-b; 1.0 GPU-hours of work are lost",
        gpu_hours=1.0,
        timeout_s=60.0,
    )


SMALL = [with_allocatable(each, cpu_milli=16_000) for each in BUSY.values()]


def test_no_pod_is_evicted_where_pods_without_gpus_would_keep_the_gang_from_the_node() -> None:
    """The cheapest pod runs on such a node, and a free node is one."""
    units = [unit(victim(f"on-{name}", name, hours=hours)) for name, hours in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    free = with_allocatable(record("free", H100, held={}), cpu_milli=16_000)
    pods = [each._replace(load=NodeLoad(8000, pods=1)) for each in crew(1, 8)]
    full = view(*SMALL, free, others=dict.fromkeys(("a", "free"), NodeLoad(9000, pods=1)))
    fuller = full._replace(others=dict.fromkeys(full.rules, NodeLoad(9000, pods=1)))

    assert names(search_preemption(task(pods, units)._replace(view=full))) == ["team/on-b"]
    none = search_preemption(task(pods, units)._replace(view=fuller))
    assert isinstance(none, NoPreemption)
    assert (none.reason, none.plans) == (NEVER_FITS, 0)


def test_what_evicted_pods_request_becomes_free_with_their_gpus() -> None:
    there = [each._replace(load=NodeLoad(9000, pods=1)) for each in SMALL[0].pods]
    node = msgspec.structs.replace(SMALL[0], pods=tuple(there))
    pods = [each._replace(load=NodeLoad(8000, pods=1)) for each in crew(1, 8)]

    assert names(search_preemption(task(pods, [unit(victim("on-a", "a"))], node))) == ["team/on-a"]


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


def test_an_elastic_gang_gives_its_spare_pods_first() -> None:
    elastic = unit(*(victim(f"on-{name}", name, hours=1.0) for name in "abc"), name="elastic", spare=1)

    one = search_preemption(task(crew(1, 8), [elastic], *BUSY.values()))
    two = search_preemption(task(crew(2, 8), [elastic], *BUSY.values()))

    assert isinstance(one, PreemptionPlan)
    assert isinstance(two, PreemptionPlan)
    assert [len(each.pods) for each in one.units] == [1]
    assert [len(each.pods) for each in two.units] == [3]


def test_a_pod_that_its_elastic_gang_needs_is_not_evicted_alone() -> None:
    master = victim("on-a", "a", hours=0.1)._replace(is_spare=False)
    elastic = unit(master, victim("on-b", "b"), victim("on-c", "c"), name="elastic", spare=2)

    one = search_preemption(task(crew(1, 8), [elastic], *BUSY.values()))
    there = search_preemption(task(crew(1, 8), [elastic], BUSY["a"]))

    assert isinstance(one, PreemptionPlan)
    assert [each.name for each in one.pods] == ["on-b"]
    assert isinstance(there, PreemptionPlan)
    assert len(there.pods) == 3  # the gang needs the node of the master


def test_a_gang_that_is_too_large_gives_its_spare_pods_only() -> None:
    """Whichever of its pods come first by price: the two that the gang needs are on given nodes."""
    large = unit(*(victim(f"on-{name}", name, hours=1.0) for name in "abc"), name="large", spare=2)
    large = large._replace(only_spare=True)

    two = search_preemption(task(crew(2, 8), [large], *BUSY.values()))
    three = search_preemption(task(crew(3, 8), [large], *BUSY.values()))

    assert isinstance(two, PreemptionPlan)
    assert [len(each.pods) for each in two.units] == [2]
    assert isinstance(three, NoPreemption)
    assert three.reason == NEVER_FITS


def test_the_cheapest_mix_of_whole_gangs_and_spare_pods() -> None:
    elastic = unit(victim("on-a", "a", hours=3.0), victim("on-b", "b", hours=3.0), name="elastic", spare=1)
    single = unit(victim("on-c", "c", hours=4.0))

    found = search_preemption(task(crew(2, 8), [elastic, single], *BUSY.values()))

    assert isinstance(found, PreemptionPlan)
    assert sorted(each.name for each in found.pods) == ["on-a", "on-b"]  # 6 hours, instead of 3 + 4


def test_victims_are_in_one_domain_of_the_required_topology() -> None:
    costs = {"a": 9.0, "b": 9.0, "c": 1.0, "d": 1.0}
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r3"}
    nodes = [record(name, H100, pods=[occupant(f"on-{name}", 8)], held={f"on-{name}": range(8)}) for name in costs]
    units = [unit(victim(f"on-{name}", name, hours=hours)) for name, hours in costs.items()]
    seen = view(*nodes, labels={name: {RACK: rack} for name, rack in racks.items()})

    found = search_preemption(task(crew(2, 8, required="rack"), units, *nodes, view=seen))

    assert names(found) == ["team/on-a", "team/on-b"]


def test_money_decides_where_it_is_known_for_all() -> None:
    cheap, costly = victim("on-a", "a", hours=2.0), victim("on-b", "b", hours=1.0)
    priced = [unit(cheap._replace(cost=1.0)), unit(costly._replace(cost=5.0))]

    assert names(search_preemption(task(crew(1, 8), priced, *BUSY.values()))) == ["team/on-a"]
    unknown = [priced[0], unit(costly)]
    assert names(search_preemption(task(crew(1, 8), unknown, *BUSY.values()))) == ["team/on-b"]


def test_the_price_of_the_rule_and_the_deletion_cost_decide() -> None:
    one, other = victim("on-a", "a", hours=1.0), victim("on-b", "b", hours=2.0)

    def chosen(first: EvictionUnit, second: EvictionUnit) -> list[str]:
        return names(search_preemption(task(crew(1, 8), [first, second], *BUSY.values())))

    assert chosen(unit(one, price=3.0), unit(other)) == ["team/on-b"]
    assert chosen(unit(one, deletion_cost=5), unit(other._replace(gpu_hours=1.0), deletion_cost=-5)) == ["team/on-b"]


def test_pods_that_terminate_already_are_not_evicted_for() -> None:
    ending = (victim("on-a", "a"),)
    one = [unit(victim("on-b", "b"))]

    waits = search_preemption(task(crew(1, 8), one, *BUSY.values(), ending=ending))
    both = search_preemption(task(crew(2, 8), one, *BUSY.values(), ending=ending))

    assert isinstance(waits, NoPreemption)
    assert waits.reason == FITS_ALREADY
    assert names(both) == ["team/on-b"]


def test_capacity_that_is_reserved_for_others_is_not_used() -> None:
    reserved = occupant("held", 8)
    a = record("a", H100, pods=[occupant("on-a", 8), reserved], held={"on-a": range(8)})
    a = msgspec.structs.replace(a, reserved=(reserved.uid,))
    units = [unit(victim("on-a", "a", hours=0.1)), unit(victim("on-b", "b", hours=5.0))]

    found = search_preemption(task(crew(1, 8), units, a, BUSY["b"]))

    assert names(found) == ["team/on-b"]


@pytest.mark.parametrize(
    ("changed", "plans"),
    [
        pytest.param({"max_plans": 1}, 1, id="number of plans"),
        pytest.param({"is_out_of_time": lambda: True}, 0, id="time"),
    ],
)
def test_a_search_says_that_it_gave_up(changed: dict[str, Any], plans: int) -> None:
    held = {"p": [0], "q": [1], "r": [2], "s": [3]}
    node = record("n", MACHINES["a100_bridged"](), pods=[occupant(name, 1) for name in held], held=held)
    units = [unit(victim(name, "n", 1, hours)) for name, hours in (("p", 0.1), ("r", 0.2), ("q", 3.0), ("s", 1.0))]

    found = search_preemption(task(crew(1, 2, island="required"), units, node, **changed))

    assert isinstance(found, NoPreemption)
    assert (found.gave_up, found.plans) == (True, plans)
    assert found.reason == f"gave up after {plans} plan{'' if plans == 1 else 's'}"


def test_a_result_that_gave_up_is_proved_all_the_same() -> None:
    units = [unit(victim(f"on-{name}", name)) for name in "abc"]

    found = search_preemption(task(crew(1, 8), units, *BUSY.values(), max_plans=1))

    assert isinstance(found, PreemptionPlan)
    assert (found.gave_up, found.exact) == (True, False)
    assert "gave up after" in found.reason


def test_elastic_gangs_on_more_nodes_than_are_planned_on_are_searched_too() -> None:
    """The search raised KeyError, which ended the planner: pods of a gang were choices, and the whole gang was not."""
    names_of = [f"{at:03}" for at in range(288)]
    nodes = [record(f"n{at}", MACHINES["rtx4090"](), pods=[occupant(f"p{at}", 8)], held=None) for at in names_of]
    pods = [victim(f"p{at}", f"n{at}", hours=1.0 + int(at) // 16) for at in names_of]
    gangs = [unit(*pods[at : at + 16], name=f"g{at}", spare=6) for at in range(0, len(pods), 16)]

    found = search_preemption(task(crew(2, 8, interconnect="nvswitch"), gangs, *nodes, max_plans=40))

    assert isinstance(found, NoPreemption)
    assert found.reason == "gave up after 40 plans"


def test_a_result_without_all_units_says_that_it_gave_up() -> None:
    units = [unit(victim(f"on-{name}", name)) for name in "ab"]

    found = search_preemption(task(crew(1, 8), units, *BUSY.values(), has_all_units=False))
    none = search_preemption(task(crew(1, 8), [], *BUSY.values(), has_all_units=False))

    assert isinstance(found, PreemptionPlan)
    assert (found.gave_up, found.exact) == (True, False)
    assert isinstance(none, NoPreemption)
    assert (none.reason, none.gave_up) == ("gave up after 0 plans", True)


def test_a_pod_that_is_named_like_a_gang_hides_neither() -> None:
    """Units were known by their names, so only one of two with the same name was evicted."""
    units = [unit(victim("on-a", "a"), name="same"), unit(victim("on-b", "b"), name="same")]

    found = search_preemption(task(crew(2, 8), units, BUSY["a"], BUSY["b"]))

    assert isinstance(found, PreemptionPlan)
    assert sorted(each.name for each in found.pods) == ["on-a", "on-b"]
