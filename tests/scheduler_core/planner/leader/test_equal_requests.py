"""Gangs with equal requests of which one may fit where another one does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from gputopo.crd.reservations import ReservationSpec, spec_hash
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.equal_requests import may_differ
from scheduler_core.planner.leader.hold_limits import CapacityHold
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.gang.gang_pods import members, queued
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner


def hold(gang: str, priority: int) -> CapacityHold:
    spec = ReservationSpec(gang, priority=priority)
    return CapacityHold(ReservationUpdate(f"uid-{gang}", "team", gang, spec, spec_hash(spec)), GangName("team", gang))


BOUNDED = queued("llm", ready=tuple(each._replace(bounded_s=(60.0, 5.0)) for each in members(2)))


@pytest.mark.parametrize(
    ("gang", "holds", "avoiding", "may_backfill", "differs"),
    [
        pytest.param(queued("llm"), (), (), True, False, id="no holds"),
        pytest.param(queued("llm"), (), ("llm",), True, True, id="avoids nodes"),
        pytest.param(queued("llm"), (), ("other",), True, False, id="another gang avoids nodes"),
        pytest.param(queued("llm", priority=5), (hold("a", 5), hold("b", 9)), (), True, False, id="holds of others"),
        pytest.param(queued("llm", priority=5), (hold("llm", 5),), (), True, True, id="its own hold"),
        pytest.param(queued("llm", priority=5), (hold("a", 4),), (), True, True, id="a hold of a lower priority"),
        pytest.param(queued("llm"), (hold("a", 5),), ("llm",), True, True, id="avoids nodes beside a hold"),
        pytest.param(BOUNDED, (hold("a", 5),), (), True, True, id="may end before the holder starts"),
        pytest.param(BOUNDED, (hold("a", 5),), (), False, False, id="may end in time, without backfill"),
        pytest.param(BOUNDED, (), (), True, False, id="may end in time, without holds"),
    ],
)
def test_which_gangs_may_fit_where_others_with_an_equal_request_do_not(
    gang: Gang, holds: Collection[CapacityHold], avoiding: Collection[str], may_backfill: bool, differs: bool
) -> None:
    names = [GangName("team", each) for each in avoiding]

    assert may_differ(holds, names, may_backfill=may_backfill)(gang) is differs


def test_a_gang_with_its_own_hold_starts_though_the_first_gang_with_an_equal_request_does_not_fit() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    running = {node: server.create_pod("other", 2) for node in ("n0", "n1")}
    for node, uid in running.items():
        server.bind(uid, node)
    planner = FakePlanner(server)
    for gang in ("first", "second"):  # each namespace gets a hold
        space: dict[str, Any] = {"metadata": {"namespace": gang}}
        for _ in range(2):
            server.create_pod(gang, 1, gang, 2, more=space)
    planner.run()
    planner.now += 20.0  # the next plan finds all reasons again; for some seconds, later ones try only the first gang
    planner.run()
    held = {each.spec.gang: each.spec.held[0].node for each in server.reservations.values() if each.spec.held}
    assert held.keys() == {"first", "second"}

    server.delete_pod(running[held["second"]])
    planner.run()

    assert {each.spec.gang for each in server.reservations.values() if each.spec.seats} == {"second"}
