"""A gang whose members ask for it ends as a whole when one of them fails."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.labels import keys
from scheduler_core.planner.commit.actions import EndPod
from tests.scheduler_core.planner.commit.apiserver import ApiServer, pinned
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

END = {"metadata": {"annotations": {keys.POD_ON_MEMBER_FAILURE.key: "end-gang"}}}


class Gang:
    """A running gang of three on two nodes."""

    def __init__(self, *more: dict[str, Any]) -> None:
        self.server = ApiServer()
        self.uids = [
            self.server.create_pod(f"w{at}", 1, "train", 3, each) for at, each in enumerate(more or (END,) * 3)
        ]
        self.planner = FakePlanner(self.server)
        self.planner.run()
        self.bind(self.uids)

    def bind(self, uids: list[str]) -> None:
        """Bind ungated members to their pinned nodes."""
        for uid in uids:
            pod = self.server.pods[uid]
            node = pinned(pod)
            assert node is not None
            self.server.bind(uid, node)
        self.planner.run()

    def set_phase(self, uid: str, phase: str) -> None:
        pod = self.server.pods[uid]
        self.server._put_pod({**pod, "status": {"phase": phase}})

    def recreate(self, number: int) -> list[str]:
        """Create members as their controller does."""
        return [self.server.create_pod(f"n{at}", 1, "train", 3, END) for at in range(number)]


def test_the_other_members_are_deleted_and_a_new_gang_starts_once() -> None:
    gang = Gang()
    gang.set_phase(gang.uids[0], "Failed")

    gang.planner.run()

    assert set(gang.server.pods) == {gang.uids[0]}
    assert gang.server.reservations == {}
    failed = gang.server.pods[gang.uids[0]]["metadata"]["name"]
    assert {each.message for each in gang.planner.events if each.reason == "GangEnded"} == {
        f"deleted, because {failed} of its gang failed (gputopo.io/on-member-failure: end-gang)"
    }
    again = gang.recreate(3)
    gang.planner.run()
    gang.bind(again)
    assert set(gang.server.pods) == {gang.uids[0], *again}  # the failed pod of before ends no other gang


def test_a_replacement_is_not_planned_while_the_gang_ends() -> None:
    gang = Gang()
    gang.set_phase(gang.uids[0], "Failed")
    (replacement,) = gang.recreate(1)
    for _ in range(3):
        gang.planner.run_once()
        assert not pinned(gang.server.pods[replacement])
    gang.planner.run()

    assert set(gang.server.pods) == {gang.uids[0], replacement}
    assert gang.server.pods[replacement]["spec"]["schedulingGates"]


@pytest.mark.parametrize("writes", range(1, 6))
def test_a_planner_that_is_killed_after_any_write_is_continued(writes: int) -> None:
    gang = Gang()
    gang.set_phase(gang.uids[0], "Failed")
    before = len(gang.planner.writes)
    for _ in range(50):
        if len(gang.planner.writes) - before >= writes:
            break
        gang.planner.run_once()
    gang.planner = FakePlanner(gang.server, "two")

    gang.planner.run()

    assert set(gang.server.pods) == {gang.uids[0]}
    assert gang.server.reservations == {}


def test_the_failure_of_a_replacement_ends_the_whole_gang() -> None:
    gang = Gang()
    gang.server.delete_pod(gang.uids[0])
    (late,) = gang.recreate(1)
    gang.planner.run()
    gang.bind([late])
    gang.set_phase(late, "Failed")

    gang.planner.run()

    assert set(gang.server.pods) == {late}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(({}, {}, {}), id="no member asks for it"),
        pytest.param((END, END, {}), id="one member does not ask for it"),
    ],
)
def test_otherwise_the_other_members_run_on(more: tuple[dict[str, Any], ...]) -> None:
    gang = Gang(*more)
    gang.set_phase(gang.uids[0], "Failed")

    gang.planner.run()

    assert set(gang.server.pods) == set(gang.uids)
    (late,) = gang.recreate(1)
    gang.planner.run()
    assert pinned(gang.server.pods[late])


def test_success_ends_nothing() -> None:
    gang = Gang()
    gang.set_phase(gang.uids[0], "Succeeded")

    gang.planner.run()

    assert not any(isinstance(each, EndPod) for each in gang.planner.writes)
