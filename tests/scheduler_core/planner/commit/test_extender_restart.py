"""A gang waits no longer than needed after the container of an extender restarted. Real code, virtual time."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import EntryPhase
from gputopo.timing import ASSUMED_POD_LIFETIME_S, EXTENDER_ENDED_S, EXTENDER_RESTART_S
from scheduler_core.planner.commit.actions import ProbeExtenderPod
from scheduler_core.planner.commit.state import CommitTerms
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.commit.commit_model import hear_all
from tests.scheduler_core.planner.commit.processes import Answering, Flags, Planner

COMMITTED = EntryPhase.COMMITTED


class Cluster:
    """A planner and one extender, whose container may restart."""

    def __init__(self) -> None:
        self.server = ApiServer()
        self.planner = Planner(self.server, "p1", CommitTerms(settle_s=0.0))
        self.extender: Answering | None = Answering(self.server, "e1", Flags())

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.server.now += 1.0
            for _ in range(4):
                self._exchange()

    def _exchange(self) -> None:
        extender = self.extender
        if extender is not None:
            hear_all(extender)
            extender.look()
            while extender.said:
                self.server.apply(extender.me, extender.said.pop(0))
        if self.planner.watcher is not None:
            hear_all(self.planner)
        for each in self.planner.writes():
            if isinstance(each, ProbeExtenderPod):
                self.planner.heard_of(each, gone=extender is None or extender.pod != each.pod)
            else:
                self.planner.answered(each, self.planner.send(each))

    def restart(self, me: str, pod: str) -> None:
        self.extender = Answering(self.server, me, Flags(), pod)

    @property
    def committed(self) -> bool:
        ledger = self.server.ledger
        return ledger is not None and any(each.phase is COMMITTED for each in ledger.spec.entries)

    def seconds_until_committed(self) -> float:
        began = self.server.now
        while not self.committed:
            assert self.server.now - began < 300.0
            self.pass_time(1)
        return self.server.now - began


@pytest.mark.parametrize("gang_first", [True, False], ids=["gang before the crash", "gang after the restart"])
def test_the_waits_after_a_restart_run_in_parallel(gang_first: bool) -> None:
    cluster = Cluster()
    cluster.pass_time(ASSUMED_POD_LIFETIME_S + 5)
    for number in range(2 * gang_first):
        cluster.server.create_pod(f"m{number}", 1, "g", 2)

    cluster.restart("e2", f"{SPACE}/e1")
    cluster.pass_time(0 if gang_first else 2)
    for number in range(2 * (not gang_first)):
        cluster.server.create_pod(f"m{number}", 1, "g", 2)

    assert cluster.seconds_until_committed() <= EXTENDER_RESTART_S
    assert set(cluster.server.ledger.extenders) == {"e2"}  # type: ignore[union-attr]


def test_the_registration_of_the_previous_process_is_kept_while_its_admissions_may_be_under_way() -> None:
    cluster = Cluster()
    cluster.pass_time(ASSUMED_POD_LIFETIME_S + 5)
    cluster.restart("e2", f"{SPACE}/e1")

    cluster.pass_time(EXTENDER_ENDED_S - 1)

    assert set(cluster.server.ledger.extenders) == {"e1", "e2"}  # type: ignore[union-attr]
    cluster.pass_time(5)
    assert set(cluster.server.ledger.extenders) == {"e2"}  # type: ignore[union-attr]


def test_a_crash_loop_leaves_no_registrations() -> None:
    cluster = Cluster()
    for number in range(2, 12):
        cluster.pass_time(10)
        cluster.restart(f"e{number}", f"{SPACE}/e1")

    cluster.pass_time(EXTENDER_RESTART_S)

    assert set(cluster.server.ledger.extenders) == {"e11"}  # type: ignore[union-attr]


def test_an_extender_in_another_pod_replaces_nothing() -> None:
    cluster = Cluster()
    cluster.pass_time(ASSUMED_POD_LIFETIME_S + 5)
    cluster.restart("e2", f"{SPACE}/e2")

    cluster.pass_time(EXTENDER_RESTART_S)

    assert set(cluster.server.ledger.extenders) == {"e1", "e2"}  # type: ignore[union-attr]
