"""A round checks a committed plan again only after a change that may lead to a write, and once a second."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gputopo.crd.reservations import ReservationState
from gputopo.labels import keys
from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.planner.commit.actions import Action, UngateAndPin, WriteLedger, WriteStatus
from scheduler_core.planner.gang.gang import DeclaredSize, DeclaredSizes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import JobSizes
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer, pinned
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

RolledBack = ReservationState.ROLLING_BACK


class Ungated:
    """A planner with the ungated gangs a and b of two members each. Nothing is bound, and no time passes."""

    def __init__(self) -> None:
        self.server = ApiServer({"n1": 8, "n2": 8})
        self.uids = {name: [self.server.create_pod(name, 1, name, 2) for _ in range(2)] for name in "ab"}
        self.planner = FakePlanner(self.server)
        self.planner.run()
        self.settle()
        self.planner.writes.clear()

    def settle(self) -> None:
        """Run until nothing is left to do. No time passes."""
        while self.planner.run_once() or self.planner.run_once():
            pass

    def bind(self, name: str) -> None:
        """Bind the members of a gang."""
        for uid in self.uids[name]:
            self.server.bind(uid, pinned(self.server.pods[uid]) or "")

    def active(self) -> list[str]:
        """Return the gangs with active reservations."""
        view = self.planner.term.view
        return [view.reservations[uid].spec.gang for uid in view.reservation_index.active]

    def states_written(self) -> list[tuple[str, ReservationState | None]]:
        """Return the gangs whose status was written, with their states."""
        writes = (each for each in self.planner.writes if isinstance(each, WriteStatus))
        return [(each.reservation.spec.gang, each.status.state) for each in writes]


def test_plans_that_wait_for_their_pods_are_not_checked() -> None:
    cluster = Ungated()
    assert cluster.active() == []

    cluster.server.bind(cluster.uids["a"][0], pinned(cluster.server.pods[cluster.uids["a"][0]]) or "")
    cluster.planner.apply_events()

    assert cluster.active() == ["a"]
    cluster.settle()
    assert (cluster.active(), cluster.planner.writes) == ([], [])


def test_a_plan_whose_pods_are_bound_ends() -> None:
    cluster = Ungated()

    cluster.bind("a")
    cluster.settle()

    assert cluster.states_written() == [("a", ReservationState.BOUND)]
    assert any(isinstance(each, WriteLedger) for each in cluster.planner.writes)


def test_a_plan_for_single_pods_ends_when_they_are_bound_or_deleted() -> None:
    cluster = Ungated()
    server, uids = cluster.server, [cluster.server.create_pod(name, 1, name, 1) for name in "xyz"]
    for uid in uids:
        server.pods[uid]["metadata"]["annotations"] = {keys.POD_PLANNED.key: "true"}
    cluster.planner.run()
    cluster.settle()
    assert len(server.reservations) == 3
    assert cluster.active() == []

    for uid in uids[:2]:
        server.bind(uid, pinned(server.pods[uid]) or "")
    server.delete_pod(uids[2])
    cluster.settle()

    assert len(server.reservations) == 2


def test_a_plan_is_rolled_back_when_a_pod_is_deleted() -> None:
    cluster = Ungated()

    cluster.server.delete_pod(cluster.uids["a"][0])
    cluster.settle()

    assert cluster.states_written()[0] == ("a", RolledBack)


@pytest.mark.parametrize("is_full_list", [False, True])
def test_a_plan_is_rolled_back_when_its_node_is_removed(*, is_full_list: bool) -> None:
    cluster = Ungated()
    nodes = {pinned(cluster.server.pods[uid]) or "" for uid in cluster.uids["a"] + cluster.uids["b"]}
    removed = () if is_full_list else tuple(nodes)

    cluster.planner.term.apply_batch(Batch(NodeUpdate, (), removed, is_full_list=is_full_list))
    cluster.planner.term.run_round()
    cluster.settle()

    assert sorted(cluster.states_written()[:2]) == [("a", RolledBack), ("b", RolledBack)]


def test_a_plan_whose_gang_gets_another_size_is_checked() -> None:
    cluster = Ungated()
    sizes = DeclaredSizes("job", (DeclaredSize(GangName(SPACE, "b"), 3, 1),))

    cluster.planner.term.apply_batch(Batch(JobSizes, (sizes,)))

    assert cluster.active() == ["b"]


def test_a_plan_whose_status_was_changed_is_continued() -> None:
    cluster = Ungated()
    (plan,) = (each for each in cluster.server.reservations.values() if each.spec.gang == "a")

    cluster.server.write_status(plan, msgspec.structs.replace(plan.status, state=RolledBack, reason="by hand"))
    cluster.settle()

    assert not set(cluster.uids["a"]) & cluster.server.pods.keys()


def test_a_plan_that_is_removed_from_the_ledger_is_listed_again() -> None:
    cluster = Ungated()
    ledger = cluster.server.ledger
    assert ledger is not None

    cluster.server.write_ledger(ledger, msgspec.structs.replace(ledger.spec, entries=ledger.spec.entries[:1]))
    cluster.settle()

    assert (cluster.server.ledger or ledger).spec.entries == ledger.spec.entries


@pytest.mark.parametrize("outcome", [WriteOutcome.CONFLICT, WriteOutcome.GONE, WriteOutcome.UNANSWERED])
def test_a_plan_is_checked_when_a_write_of_its_pod_failed(outcome: WriteOutcome) -> None:
    server = ApiServer()
    uid = server.create_pod("a", 1, "a", 1)
    planner, tries = FakePlanner(server), list[str]()

    def refuse_first(action: Action) -> WriteOutcome | None:
        if not isinstance(action, UngateAndPin):
            return None
        tries.append(action.member.uid)
        return outcome if len(tries) == 1 else None

    def run() -> None:
        for _ in range(20):
            planner.run_round()
            planner.term.run_round()  # before the answers
            planner.run_once()

    planner.refuses = refuse_first
    run()
    assert tries == [uid]

    planner.now += 3.0  # the back-off is over
    run()

    assert tries == [uid, uid]


def _pass_timeout(planner: FakePlanner) -> None:
    planner.now += 901.0


def _shorten_timeout(planner: FakePlanner) -> None:
    planner.policies = BUILT_IN._replace(limits=BUILT_IN.limits._replace(max_timeout_s=1.0))
    planner.now += 1.0


@pytest.mark.parametrize("change", [_pass_timeout, _shorten_timeout])
def test_all_plans_are_checked_once_a_second(change: Callable[[FakePlanner], None]) -> None:
    cluster = Ungated()

    change(cluster.planner)
    cluster.planner.run_round()
    assert cluster.active() == []
    cluster.planner.term.tick()
    assert sorted(cluster.active()) == ["a", "b"]
    cluster.settle()

    assert sorted(cluster.states_written()[:2]) == [("a", RolledBack), ("b", RolledBack)]
