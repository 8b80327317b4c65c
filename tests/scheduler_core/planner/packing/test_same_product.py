"""One job, one GPU product: preferred by default, required on request."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gputopo.crd.reservations import PlannedMember
from scheduler_core.planner.packing.gang_planner import GangPlanner
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions, Unplaced
from scheduler_core.planner.packing.plan import plan_gang
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.planner.packing.member_groups import RACK, crew, member, view

V100, A100, MIXED = MACHINES["dgx1"](), MACHINES["dgx_a100"](), MACHINES["mixed"]()


def _view(v100: Iterable[str], a100: Iterable[str], **labels: dict[str, str]) -> NodeView:
    records = [record(name, V100, held={}) for name in v100] + [record(name, A100, held={}) for name in a100]
    return view(*records, labels=labels)


def _nodes(found: GangPlan | Unplaced) -> list[str]:
    assert isinstance(found, GangPlan), found
    return sorted(seat.node or "" for seat in found.seats)


@pytest.mark.parametrize("wish", [{}, {"same_product": "preferred"}, {"same_product": "required"}])
def test_a_gang_takes_two_v100_nodes_rather_than_one_of_each(wish: dict[str, str]) -> None:
    """A single A100 node would score better, and it is in a rack with a V100 node."""
    racks = {"a": {RACK: "r1"}, "v1": {RACK: "r1"}, "v2": {RACK: "r2"}}

    assert _nodes(plan_gang(crew(2, 8, **wish), _view(["v1", "v2"], ["a"], **racks))) == ["v1", "v2"]


def test_a_gang_that_ignores_products_takes_the_narrower_domain() -> None:
    racks = {"a": {RACK: "r1"}, "v1": {RACK: "r1"}, "v2": {RACK: "r2"}}
    seen = _view(["v1", "v2"], ["a"], **racks)

    assert _nodes(plan_gang(crew(2, 8, same_product="ignore"), seen)) == ["a", "v1"]


def test_a_preference_never_keeps_a_gang_waiting_and_a_requirement_does() -> None:
    seen = _view(["v"], ["a"])

    assert _nodes(plan_gang(crew(2, 8), seen)) == ["a", "v"]
    for found in (
        plan_gang(crew(2, 8, same_product="required"), seen),
        GangPlanner().plan_gang(crew(2, 8, same_product="required"), seen, PlanOptions()),
    ):
        assert isinstance(found, Unplaced)
        assert found.reason == "1 of 2 members fits at once on GPUs of one product"
        assert found.best == 1
        assert found.missing == (("w-1", "fits on other nodes, but all members do not fit on GPUs of one product"),)


def test_a_node_with_several_products_is_not_one_product() -> None:
    seen = view(record("m", MIXED, held={}))

    assert isinstance(plan_gang(crew(1, 4, same_product="required"), seen), Unplaced)
    assert _nodes(plan_gang(crew(1, 4), seen)) == ["m"]


def test_a_late_member_follows_the_product_of_its_placed_siblings() -> None:
    running = occupant("w-0", 8)
    seen = view(
        record("v1", V100, held={"w-0": range(8)}, pods=[running]),
        record("v2", V100, held={}),
        record("a", A100, held={}),
        labels={"v1": {RACK: "r1"}, "a": {RACK: "r1"}, "v2": {RACK: "r2"}},
    )
    placed = (PlannedMember(running.uid, "w-0", "v1"),)

    assert _nodes(plan_gang([member("w-1", 8, size=2)], seen, PlanOptions(placed=placed))) == ["v2"]
