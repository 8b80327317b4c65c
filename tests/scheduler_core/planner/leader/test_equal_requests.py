"""Gangs with equal requests of which one may fit where another one does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from gputopo.crd.reservations import ReservationSpec, spec_hash
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader import plan_task
from scheduler_core.planner.leader.equal_requests import sharing_keys
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.plan_task import PlanResult
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy
from scheduler_core.policy.policy import FilterUse
from scheduler_core.policy.preemption import PreemptionMode, PreemptionPolicy
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.gang.gang_pods import members, queued
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner


def hold(gang: str, priority: int) -> CapacityHold:
    spec = ReservationSpec(gang, priority=priority)
    return CapacityHold(ReservationUpdate(f"uid-{gang}", "team", gang, spec, spec_hash(spec)), GangName("team", gang))


BOUNDED = queued("llm", ready=tuple(each._replace(bounded_s=(60.0, 5.0)) for each in members(2)))


LOW, EQUAL, HIGH, OWN = hold("a", 4), hold("b", 5), hold("c", 9), hold("llm", 5)


@pytest.mark.parametrize(
    ("gang", "holds", "avoiding", "may_backfill", "key"),
    [
        pytest.param(queued("llm"), (), (), True, set(), id="no holds"),
        pytest.param(queued("llm"), (), ("llm",), True, None, id="avoids nodes"),
        pytest.param(queued("llm"), (), ("other",), True, set(), id="another gang avoids nodes"),
        pytest.param(queued("llm", priority=5), (EQUAL, HIGH), (), True, set(), id="holds of others"),
        pytest.param(queued("llm", priority=5), (HIGH, OWN), (), True, {"uid-llm"}, id="its own hold"),
        pytest.param(queued("llm", priority=5), (LOW, EQUAL), (), True, {"uid-a"}, id="a hold of a lower priority"),
        pytest.param(queued("llm", priority=5), (LOW, OWN, HIGH), (), True, {"uid-a", "uid-llm"}, id="both"),
        pytest.param(queued("llm"), (EQUAL,), ("llm",), True, None, id="avoids nodes beside a hold"),
        pytest.param(BOUNDED, (EQUAL,), (), True, None, id="may end before the holder starts"),
        pytest.param(BOUNDED, (EQUAL,), (), False, set(), id="may end in time, without backfill"),
        pytest.param(BOUNDED, (), (), True, set(), id="may end in time, without holds"),
    ],
)
def test_results_count_for_gangs_that_ignore_the_same_holds(
    gang: Gang, holds: Collection[CapacityHold], avoiding: Collection[str], may_backfill: bool, key: set[str] | None
) -> None:
    names = [GangName("team", each) for each in avoiding]

    assert sharing_keys(holds, names, may_backfill=may_backfill)(gang) == key


def gang(server: ApiServer, name: str, size: int, gpus: int, space: str, **more: Any) -> None:
    """Create a gang in a namespace of its own."""
    fields = {"metadata": {"namespace": space, "labels": {"app": "train"}}}
    if more.pop("apart", False):  # from other pods of its namespace
        term = {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "kubernetes.io/hostname"}
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        fields |= {"spec": {"affinity": {"podAntiAffinity": rule}}}
    for _ in range(size):
        server.create_pod(name, gpus, name, size, more=fields, **more)


def full(**gpus: int) -> tuple[ApiServer, dict[str, str]]:
    """Return nodes that one pod each uses completely, and these pods by node."""
    server = ApiServer(gpus)
    pods = {node: server.create_pod("other", number) for node, number in gpus.items()}
    for node, uid in pods.items():
        server.bind(uid, node)
    return server, pods


def planner(server: ApiServer, patience_s: float = 1e6, **policies: Any) -> FakePlanner:
    """Return a planner that has tried all gangs. For some seconds, it tries only the first of equal requests again."""
    made = FakePlanner(server, pace=QueueTiming(patience_s=patience_s))
    made.policies = BUILT_IN._replace(preemption=PreemptionPolicy(PreemptionMode.OFF), **policies)
    made.run()
    made.now += 20.0
    made.run()
    return made


def order(of: FakePlanner) -> list[str]:
    """Return the gangs in the order in which they got places."""
    return [each.spec.gang for each in of.writes if isinstance(each, CreateReservation) and each.spec.seats]


def test_a_gang_with_its_own_hold_starts_though_the_first_gang_with_an_equal_request_does_not_fit() -> None:
    server, running = full(n0=2, n1=2)
    for each in ("first", "second"):  # each namespace gets a hold
        gang(server, each, 2, 1, each)
    leader = planner(server, patience_s=0.0)
    held = {each.spec.gang: each.spec.held[0].node for each in server.reservations.values() if each.spec.held}
    assert held.keys() == {"first", "second"}

    server.delete_pod(running[held["second"]])
    leader.run()

    assert order(leader) == ["second"]


def test_a_gang_that_ends_in_time_uses_held_capacity_though_a_gang_with_an_equal_request_may_not() -> None:
    server, running = full(n1=2)
    server.change_node("n0", 2)
    gang(server, "big", 2, 2, "holder")
    leader = planner(server, patience_s=0.0, backfill=BackfillPolicy(BackfillMode.DEADLINE))
    gang(server, "long", 1, 2, "long")
    short = {"metadata": {"namespace": "short"}, "spec": {"activeDeadlineSeconds": 600}}
    server.create_pod("short", 2, "short", 1, more=short)
    leader.run()
    leader.now += 20.0
    leader.run()
    assert order(leader) == []  # nothing says when the holder starts

    server.delete_pod(running["n1"])
    ends = {
        "spec": {"activeDeadlineSeconds": 7200},
        "status": {"phase": "Running", "startTime": format_timestamp(leader.now)},
    }
    server.bind(server.create_pod("other", 2, more=ends), "n1")
    leader.run()

    assert order(leader) == ["short"]


def test_requests_that_differ_since_a_gang_was_placed_are_not_equal() -> None:
    """Two of three gangs with equal requests are in one namespace, and refuse to share a node."""
    server, running = full(n0=4)
    for name, space in (("a1", "x"), ("a2", "x"), ("b", "y")):
        gang(server, name, 1, 2, space, apart=True, priority=10)
    gang(server, "low", 1, 1, "z", apart=True)
    leader = planner(server)

    server.delete_pod(running["n0"])
    leader.run()

    assert order(leader) == ["a1", "b"]


def test_requests_that_differ_under_a_new_policy_are_not_equal() -> None:
    server, running = full(n0=2)
    for space in "xy":
        gang(server, space, 1, 2, space, priority=10)
    gang(server, "low", 1, 1, "z")
    leader = planner(server)
    strict = BUILT_IN.node_policy._replace(filters=(FilterUse("missing"),))  # refuses all nodes
    refusing = PolicyProfile(strict, ProfileMatch(namespaces=frozenset({"x"})))
    leader.policies = Policies((refusing, *BUILT_IN.profiles), preemption=leader.policies.preemption)

    server.delete_pod(running["n0"])
    leader.run()

    assert order(leader) == ["y"]


def test_new_reasons_reach_all_gangs_with_equal_requests_also_if_no_pass_has_time_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, running = full(n0=4, n1=4, n2=1)
    for number in range(12):
        gang(server, f"g{number:02}", 3, 4, "x")
    leader = planner(server)
    plan_gang = plan_task._plan_gang

    def slow(*inputs: Any, **more: Any) -> PlanResult:
        leader.now += 0.1  # a pass has 0.5 s for gangs that did not fit before
        return plan_gang(*inputs, **more)

    monkeypatch.setattr(plan_task, "_plan_gang", slow)
    server.delete_pod(running["n0"])  # one of three members fits now
    for _ in range(10):  # pods come and go on a node that is too small
        server.delete_pod(running["n2"])
        leader.run()
        running["n2"] = server.create_pod("other", 1)
        server.bind(running["n2"], "n2")
        leader.run()

    assert [each.best for each in leader.term.backlog.unplaced.values()] == [1] * 12
