"""Evictions for a gang that does not fit, from the term to the ledger."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from gputopo.labels.keys import GATE, POD_RESERVATION
from gputopo.labels.workloads import DELETION_COST
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import Action, CheckBudgets, CreateReservation, EvictPod, WriteStatus
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.eviction_history import EvictedFrom, EvictionHistory, EvictionLimit
from scheduler_core.planner.leader.forbidden_units import MOST_UNITS
from scheduler_core.planner.leader.hold_search import HoldResult
from scheduler_core.planner.leader.preemption_search import PreemptionSearch, run_preemption_search
from scheduler_core.planner.leader.preemptions import Preemptions
from scheduler_core.planner.leader.writer import WriteOutcome
from scheduler_core.planner.preemption.inputs import EvictedDevices
from scheduler_core.planner.preemption.model import MAX_IDLE_PODS
from scheduler_core.planner.status import planner_status
from scheduler_core.policy.preemption import (
    PreemptionMatch,
    PreemptionMode,
    PreemptionWindow,
)
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import SPACE, ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import (
    POLICY,
    RULE,
    RUNNING,
    annotate,
    bind_all,
    committed,
    evicted,
    full,
    gang_of_two,
    intents,
    planner,
    run,
    urgent,
)


def test_a_pod_of_a_lower_priority_is_evicted_and_the_gang_gets_its_places() -> None:
    server, pods = full(n0=2, n1=2)
    (gang,) = urgent(server)
    leader = planner(server)

    run(leader)

    assert len(evicted(leader)) == 1
    assert set(evicted(leader)) <= set(pods.values())
    (check,) = (each for each in leader.writes if isinstance(each, CheckBudgets))
    node = next(node for node, uid in pods.items() if uid in evicted(leader))
    assert [(each.uid, each.node) for each in check.seats] == [(gang, node)]  # where it needs CPU and memory
    assert committed(server) == {"urgent"}


def test_a_preemption_is_won_once_the_gang_is_bound() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server)

    run(leader, 10)
    assert (committed(server), leader.preemptions) == ({"urgent"}, ["planned", "begun"])
    bind_all(leader)

    assert leader.preemptions == ["planned", "begun", "won"]


@pytest.mark.parametrize("name", ["urgent", ""])
def test_a_preemption_is_in_vain_if_the_gang_is_rolled_back(name: str) -> None:
    """And the gang waits before pods are evicted for it again, but not the other gangs of its namespace."""
    server, _ = full(n0=2, n1=2)
    gate = {"spec": {"schedulingGates": [{"name": GATE}]}}
    uid = urgent(server)[0] if name else server.create_pod("single", 2, more=gate, priority=100)
    leader = planner(server)

    while server.pods.get(uid) and leader.now < START + 100.0:
        run(leader, 2)
    run(leader, 4)

    assert leader.preemptions == ["planned", "begun", "in-vain"]
    assert leader.term.preemptions._history.may_search(f"{SPACE}/other", leader.now - START)


def test_a_gang_that_failed_does_not_count_as_starting() -> None:
    """Its owner could protect the pods that run by one that no node takes."""
    server = ApiServer({"n0": 2, "n1": 2})
    bare: dict[str, Any] = {"metadata": {"ownerReferences": []}}  # a failed start leaves them
    first, _ = (server.create_pod("stuck", 2, "stuck", 2, bare) for _ in range(2))
    leader = planner(server)
    leader.run()
    node = next(seat.node for each in server.reservations.values() for seat in each.spec.seats if seat.uid == first)
    server.bind(first, str(node))
    server._put_pod({**server.pods[first], "status": {"phase": "Running", "startTime": format_timestamp(leader.now)}})
    urgent(server, size=2)

    run(leader, 20)
    assert evicted(leader) == []
    run(leader, 120)

    assert evicted(leader) == [first]
    assert "urgent" in committed(server)


def test_in_dry_run_mode_nothing_is_evicted_and_the_same_units_are_reported_once() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)

    run(leader, 200)

    assert evicted(leader) == []
    assert set(pods.values()) <= server.pods.keys()
    assert leader.preemptions == ["dry-run"]
    assert all(each.spec.preemption is None for each in server.reservations.values())
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    ((name, plan),) = ((each.gang.name.name, each.dry_run) for each in gangs if each.dry_run is not None)
    assert (name, len(plan.pods)) == ("urgent", 1)
    assert {each.uid for each in plan.pods} <= set(pods.values())


def test_a_dry_run_counts_the_budgets_and_finds_other_pods() -> None:
    """With ``mode: evict`` these pods are not evicted either."""
    server, pods = full(n0=2, n1=2)
    names = {node: f"{SPACE}/{server.pods[uid]['metadata']['name']}" for node, uid in pods.items()}
    (member,) = urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    leader.blocked = {names["n0"]: "the budget allows none"}

    run(leader, 200)

    assert evicted(leader) == []
    assert leader.preemptions == ["dry-run"]
    assert leader.not_evicted == [("urgent", f"{names['n0']} is not evicted: the budget allows none")]
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    (plan,) = (each.dry_run for each in gangs if each.dry_run is not None)
    assert [each.uid for each in plan.pods] == [pods["n1"]]
    check = next(each for each in leader.writes if isinstance(each, CheckBudgets))
    assert [(each.uid, each.node) for each in check.seats] == [(member, "n0")]  # where it needs CPU and memory


def test_a_dry_run_with_other_pods_follows_at_once_where_budgets_forbid_the_first_ones() -> None:
    """Its check was not sent, because a check for the same gang had just been answered: the next one took a minute."""
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    leader.blocked = {f"{SPACE}/{server.pods[pods['n0']]['metadata']['name']}": "the budget allows none"}

    for _ in range(8):
        leader.run_once()
    leader.now += 0.6
    for _ in range(8):
        leader.run_once()

    assert leader.preemptions == ["dry-run"]


def test_where_budgets_forbid_all_a_dry_run_finds_no_pods() -> None:
    server, pods = full(n0=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    leader.blocked = {f"{SPACE}/{server.pods[pods['n0']]['metadata']['name']}": "the budget allows none"}

    run(leader, 200)

    assert (leader.preemptions, leader.dry_runs) == ([], [])
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    assert [each.dry_run for each in gangs if each.dry_run is not None] == []
    assert len(leader.not_evicted) > 0


def test_the_lost_work_of_a_dry_run_counts_once_while_the_gang_waits() -> None:
    server, _ = full(n0=2, n1=2)
    (waiting,) = urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    run(leader, 200)
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    (plan,) = (each.dry_run for each in gangs if each.dry_run is not None)
    assert leader.dry_runs == [(plan.gpu_hours, plan.cost)]

    annotate(server, plan.pods[0].uid, "gputopo.io/preemptible", "never")  # the other pod is the next result
    run(leader, 200)
    assert leader.preemptions == ["dry-run", "dry-run"]
    assert len(leader.dry_runs) == 1

    server.delete_pod(waiting)
    run(leader, 20)
    urgent(server)
    run(leader, 200)
    assert len(leader.dry_runs) == 2


def test_the_result_of_a_dry_run_goes_with_the_mode() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    run(leader, 200)

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(mode=PreemptionMode.OFF))
    run(leader, 30)

    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    assert [each.dry_run for each in gangs if each.dry_run is not None] == []


@pytest.mark.parametrize("changed", [{"mode": PreemptionMode.OFF}, {"wait_s": 1e9}, {"rules": ()}])
def test_nothing_is_evicted_where_the_policy_does_not_allow_it(changed: dict[str, Any]) -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, **changed)

    run(leader)

    assert (evicted(leader), leader.preemptions) == ([], [])


def test_nothing_is_evicted_above_the_limit_of_an_hour() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server, max_evictions_per_hour=1)

    run(leader)

    assert evicted(leader) == []
    assert set(leader.preemptions) == {"over-limit"}


def test_no_pod_is_evicted_where_that_would_not_yield_the_places() -> None:
    server, _ = full(n0=2, n1=2)
    urgent(server, size=3)
    leader = planner(server)

    run(leader)

    assert evicted(leader) == []


def test_a_unit_that_a_budget_forbids_is_left_and_another_one_is_evicted() -> None:
    server, pods = full(n0=2, n1=2)
    names = {uid: server.pods[uid]["metadata"]["name"] for uid in pods.values()}
    leader = planner(server)
    urgent(server)
    spared = pods["n0"]
    leader.blocked = {f"{SPACE}/{names[spared]}": "PodDisruptionBudget team/b allows 0 more evictions"}

    run(leader, 120)

    assert evicted(leader) == [pods["n1"]]
    assert committed(server) == {"urgent"}


def test_a_tenant_with_many_cheap_pods_and_a_budget_does_not_stop_the_eviction_of_others() -> None:
    """Each search would choose the next of them, until the first may be chosen again."""
    server, pods = full(n0=2)
    cheap = {"metadata": {"namespace": "foe", "annotations": {"gputopo.io/restart-time": "1s"}}}
    server.nodes = {f"n{number}": 2 for number in range(61)}
    for number in range(1, 61):
        uid = server.create_pod(f"foe-{number}", 2, more={**RUNNING, **cheap})
        server.bind(uid, f"n{number}")
    leader = planner(server)
    urgent(server)
    foes = [pod for pod in server.pods.values() if pod["metadata"]["namespace"] == "foe"]
    leader.blocked = {f"foe/{pod['metadata']['name']}": "it allows none" for pod in foes}

    for _ in range(300):
        leader.now, server.now = leader.now + 1.0, server.now + 1.0
        leader.run_once()
        leader.term.tick(leader.watches)

    assert evicted(leader) == [pods["n0"]]
    assert len([each for each in leader.writes if isinstance(each, CheckBudgets)]) == MOST_UNITS + 1


def test_the_pods_of_a_budget_do_not_hide_another_pod_of_their_namespace() -> None:
    """One count names all pods that the budget forbids: they are not tried one after the other."""
    server, pods = full(n0=2, n1=2, n2=2, n3=2, n4=2, n5=2, n6=2)
    leader = planner(server)
    urgent(server)
    free = pods.pop("n6")
    leader.blocked = {f"{SPACE}/{server.pods[uid]['metadata']['name']}": "it allows none" for uid in pods.values()}
    leader.forbidden = frozenset(pods.values())

    run(leader, 40)

    assert evicted(leader) == [free]
    assert len([each for each in leader.writes if isinstance(each, CheckBudgets)]) <= 3
    assert committed(server) == {"urgent"}


def test_gangs_that_fit_nowhere_do_not_keep_another_gang_from_its_search() -> None:
    """A search of a large cluster takes a second, and nine times as long none is started."""
    server, _ = full(n0=2, n1=2)
    for number in range(10):
        urgent(server, f"large-{number}", size=5)
    urgent(server, "small")
    leader = planner(server)

    def start(search: PreemptionSearch) -> None:
        result = run_preemption_search(search)._replace(cpu_s=1.0)
        leader._pending.append(lambda: leader.term.apply_preemption_result(result))

    leader.start_preemption_search = start  # type: ignore[method-assign]
    run(leader, 300)

    assert committed(server) == {"small"}


def test_why_no_pod_is_evicted_is_reported_once() -> None:
    """The waiting gang, the log and `gputopo why` said nothing of it."""
    never = {"metadata": {"annotations": {"gputopo.io/preemptible": "never"}}}
    server, pods = full(n0=2, n1=2)
    server.pods[pods["n0"]]["metadata"].setdefault("annotations", {}).update(never["metadata"]["annotations"])
    server.pods[pods["n1"]]["spec"]["priority"] = 10**6
    urgent(server)
    leader = planner(server)

    run(leader, 60)

    why = "the policy allows no running pod to be evicted for the gang; units that are not evicted: "
    why += "1 because an annotation forbids it, 1 because its priority is not lower"
    assert evicted(leader) == []
    assert leader.not_evicted == [("urgent", why)]
    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    assert [each.no_eviction for each in gangs if each.gang.name.name == "urgent"] == [why]


def test_outside_of_the_time_windows_the_gang_says_so() -> None:
    server, _ = full(n0=2)
    urgent(server)
    leader = planner(server, windows=(PreemptionWindow(opens_s=0.0, closes_s=60.0),))

    run(leader, 20)

    gangs = planner_status(leader.term, True, None, (), leader.now).gangs
    assert [each.no_eviction for each in gangs] == [
        "no time window of the policy is open now (preemption.windows: every day 00:00-00:01 UTC)"
    ]


def test_a_unit_of_more_pods_than_the_limit_leaves_in_this_hour_is_not_called_too_large() -> None:
    """A gang of two was said to have more pods than may be evicted in an hour, where that were two."""
    server = ApiServer({f"n{at}": 2 for at in range(3)})
    gang_of_two(server, ("n0", "n1"))
    server.bind(server.create_pod("single", 2, more=RUNNING), "n2")
    urgent(server, "first")
    leader = planner(server, max_evictions_per_hour=2)
    run(leader, 14)
    assert committed(server) == {"first"}

    urgent(server, "second", size=2)
    run(leader, 100)

    assert len(evicted(leader)) == 1
    ((gang, why),) = leader.not_evicted
    assert gang == "second"
    assert "1 because it has more pods with GPUs than may still be evicted in this hour" in why


def test_members_without_gpus_do_not_count_against_the_limit_of_an_hour() -> None:
    """Else a tenant protects its gang by them: by their number, and by evictions of its own ones."""
    server = ApiServer({"n0": 2})
    gang_with_members_without_gpus(server, "n0", 600)
    urgent(server)
    leader = planner(server, max_evictions_per_hour=1)

    run(leader, 10)

    assert committed(server) == {"urgent"}
    assert leader.evicted == 1 + MAX_IDLE_PODS
    assert recorded(server) == [1]
    assert leader.term.preemptions.evictions_left(leader.now - START, SPACE) == 0


def test_evictions_for_the_own_namespace_leave_the_limit_of_others_as_it_is() -> None:
    server, _ = full(n0=2)
    urgent(server)
    leader = planner(server, max_evictions_per_hour=1)

    run(leader, 10)

    assert committed(server) == {"urgent"}
    now = leader.now - START
    left = [leader.term.preemptions.evictions_left(now, shared) for shared in (SPACE, None, "other")]
    assert left == [0, 1, 1]


def test_a_namespace_leaves_half_of_the_limit_of_an_hour_to_others() -> None:
    """It may begin one more preemption while it has used less than half."""
    server = ApiServer({"n0": 2})
    leader = planner(server, max_evictions_per_hour=4)
    run(leader, 1)
    preemptions, now = leader.term.preemptions, leader.now - START

    for each in range(2):
        assert preemptions.evictions_left(now, beneficiary="killer") == 4 - each
        unit = EvictedFrom(f"others/{each}", "hold")
        preemptions._history.mark_evicted(
            f"u{each}", unit, EvictedDevices(leader.now, 1), now, EvictionLimit(beneficiary="killer")
        )

    left = [preemptions.evictions_left(now, beneficiary=name) for name in ("killer", "others", None)]
    assert left == [0, 2, 2]
    assert preemptions.evictions_left(now, "killer", "killer") == 4


def gang_with_members_without_gpus(server: ApiServer, node: str, number: int) -> None:
    """Run a gang of one pod with GPUs and so many without."""
    more = {**RUNNING, "spec": {"nodeName": node}}
    for gpus in (2, *(0 for _ in range(number))):
        uid = server.create_pod("mixed", gpus, "mixed", 1 + number, more)
        server.pods[uid]["spec"]["schedulingGates"] = []


def test_the_budget_that_forbids_a_unit_is_reported() -> None:
    server, pods = full(n0=2, n1=2)
    leader = planner(server)
    urgent(server)
    name = f"{SPACE}/{server.pods[pods['n0']]['metadata']['name']}"
    leader.blocked = {name: "PodDisruptionBudget team/b allows 0 more evictions of the 1 needed"}

    run(leader, 60)

    assert leader.not_evicted == [
        ("urgent", f"{name} is not evicted: PodDisruptionBudget team/b allows 0 more evictions of the 1 needed")
    ]
    assert evicted(leader) == [pods["n1"]]


def test_where_budgets_forbid_all_nothing_is_evicted() -> None:
    server, pods = full(n0=2, n1=2)
    leader = planner(server)
    urgent(server)
    leader.blocked = {f"{SPACE}/{server.pods[uid]['metadata']['name']}": "no" for uid in pods.values()}

    run(leader, 120)

    assert evicted(leader) == []
    assert any(isinstance(each, CheckBudgets) for each in leader.writes)


@pytest.mark.parametrize("writes", range(1, 14))
def test_a_successor_finishes_or_lets_be_after_any_write(writes: int) -> None:
    """The planner is killed after each of its writes; at the end the gang has its places, and one pod was evicted."""
    server, pods = full(n0=2, n1=2)
    urgent(server)
    first = planner(server)
    for _ in range(60):
        if len(first.writes) >= writes:
            break
        first.now += 1.0
        server.now += 1.0
        first.run_once()
        first.term.tick(first.watches)

    second = planner(server, "two")
    second.now = first.now + 20.0
    run(second, 120)

    assert committed(server) == {"urgent"}
    assert len([uid for uid in pods.values() if uid not in server.pods]) == 1


def test_with_mode_off_a_preemption_that_has_not_begun_ends() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.UNANSWERED if isinstance(action, CheckBudgets) else None
    run(leader, 10)
    assert any(each.spec.preemption is not None for each in server.reservations.values())

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(mode=PreemptionMode.OFF))
    run(leader, 30)

    assert (evicted(leader), set(pods.values()) <= server.pods.keys()) == ([], True)
    assert all(each.spec.preemption is None for each in server.reservations.values())


def test_a_pod_that_does_not_end_is_evicted_once_and_counts_once() -> None:
    server, pods = full(n0=2, ends=False)
    urgent(server)
    leader = planner(server)

    run(leader, 300)

    assert evicted(leader) == [pods["n0"]]
    assert leader.evicted == 1
    assert [each.reason for each in leader.events].count("EvictedForGang") == 1


def _eviction_events(of: FakePlanner) -> dict[str, str]:
    """Return the messages by pod."""
    return {each.name: each.message for each in of.events if each.reason == "EvictedForGang"}


def test_the_events_of_each_victim_name_its_own_rule_and_why_it_was_chosen() -> None:
    """Each victim had the joined list of all rules."""
    server, pods = full(n0=2, n1=2)
    names = {node: server.pods[uid]["metadata"]["name"] for node, uid in pods.items()}
    server._put_pod({**server.pods[pods["n0"]], "spec": {**server.pods[pods["n0"]]["spec"], "priority": 50}})
    rules = (
        RULE._replace(name="important", victims=PreemptionMatch(at_least=50)),
        RULE._replace(name="unimportant", victims=PreemptionMatch(below=50)),
    )
    urgent(server, size=2)
    leader = planner(server, rules=rules)
    run(leader)

    found = _eviction_events(leader)
    assert set(found) == set(names.values())
    for node, rule in (("n0", "important"), ("n1", "unimportant")):
        assert found[names[node]].startswith("evicted for gang urgent of priority 100, reservation urgent-")
        assert found[names[node]].endswith(f" (rule {rule}: inference, no work is lost but the restart)")


def test_after_a_change_of_the_leader_the_events_have_no_reason_and_name_the_rules_of_the_hold() -> None:
    server, _ = full(n0=2)
    urgent(server)
    first = planner(server)
    first.refuses = lambda action: WriteOutcome.REFUSED if isinstance(action, EvictPod) else None
    run(first)
    second = planner(server, "two")
    run(second, 60)

    (message,) = _eviction_events(second).values()
    assert message.endswith(" (rule lower-preemptible)")


def test_a_new_leader_does_not_evict_terminating_pods_again() -> None:
    server, _ = full(n0=2, ends=False)
    urgent(server)
    run(planner(server), 100)
    second = planner(server, "two")

    run(second, 300)

    assert (evicted(second), second.evicted) == ([], 0)


def test_an_eviction_that_is_repeated_counts_once() -> None:
    """The API server accepts the eviction, and the pod does not terminate."""
    server, _ = full(n0=2)
    urgent(server)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.DONE if isinstance(action, EvictPod) else None

    run(leader, 300)

    assert len(evicted(leader)) > 1
    assert leader.evicted == 1
    assert [each.reason for each in leader.events].count("EvictedForGang") == 1


def test_a_pass_over_the_queue_that_finds_no_gang_to_search_for_is_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, _ = full(n0=2)
    leader = planner(server, mode=PreemptionMode.DRY_RUN)
    urgent(server, "first")
    run(leader, 4)  # its search is over: the next one is a minute later
    asked = list[str]()
    may_search = EvictionHistory.may_search

    def noting(history: EvictionHistory, gang_key: str, now: float) -> bool:
        asked.append(gang_key)
        return may_search(history, gang_key, now)

    monkeypatch.setattr(EvictionHistory, "may_search", noting)

    for _ in range(5):
        leader.run_round()
    at_once = len(asked)
    leader.now += 0.6
    leader.run_round()
    later = len(asked)
    urgent(server, "second", gpus=4)
    for _ in range(6):
        leader.run_once()

    assert (at_once, later) == (0, 1)
    assert len(asked) > later


def test_the_pods_of_open_intents_count_against_the_limit_of_an_hour() -> None:
    server, _ = full(n0=2, n1=2)
    leader = planner(server, max_evictions_per_hour=1)
    leader.refuses = lambda action: WriteOutcome.REFUSED if isinstance(action, EvictPod) else None
    urgent(server, "first")
    run(leader, 4)

    server.create_pod("second", 2, "second", 1, priority=200)
    run(leader, 4)

    assert leader.preemptions[:3] == ["planned", "begun", "over-limit"]
    assert leader.preemptions.count("planned") == 1


@pytest.mark.parametrize("again", ["gang", "pod of a controller"])
def test_a_gang_that_is_deleted_and_created_again_waits_after_an_eviction_in_vain(again: str) -> None:
    """The pod that is created again has another UID; a pod of a controller has another name too."""
    server, _ = full(n0=2, n1=2, ends=False)

    def create() -> str:
        if again == "gang":
            return urgent(server)[0]
        gate = {"spec": {"schedulingGates": [{"name": GATE}]}}
        return server.create_pod("single", 2, more=gate, priority=100)

    leader = planner(server)
    first = create()
    run(leader, 60)
    server.delete_pod(first)
    run(leader, 20)
    assert leader.preemptions[-1] == "in-vain"
    ended = leader.now

    create()
    while len(evicted(leader)) < 2 and leader.now - ended < 600.0:
        run(leader, 2)

    assert 60.0 < leader.now - ended < 600.0


def test_a_preemption_whose_hold_is_replaced_is_won_when_the_gang_has_its_places() -> None:
    server, pods = full(n0=2, ends=False)
    urgent(server)
    leader = planner(server)
    run(leader, 60)
    (intent,) = (each for each in server.reservations.values() if each.spec.preemption is not None)

    replace_hold(leader, intent)
    run(leader, 20)
    assert intent.key not in {each.uid for each in leader.ledgers[-1]}
    assert leader.preemptions == ["planned", "begun"]
    server.delete_pod(pods["n0"])
    run(leader, 10)
    bind_all(leader)

    assert committed(server) == {"urgent"}
    assert leader.preemptions == ["planned", "begun", "won"]


def stopped(of: FakePlanner) -> list[tuple[str, str]]:
    """Return the kind and the UID of the objects of Events."""
    return [(each.kind, each.uid) for each in of.events if each.reason == "EvictionStopped"]


def test_when_the_gang_is_deleted_the_rest_of_a_unit_is_kept_and_reported() -> None:
    server = ApiServer({"n0": 2, "n1": 2})
    pods = gang_of_two(server, ("n0", "n1"))
    members = urgent(server, size=2)
    leader = planner(server)
    leader.refuses = lambda action: (
        WriteOutcome.REFUSED if isinstance(action, EvictPod) and action.eviction.uid == pods[1] else None
    )
    run(leader, 20)
    assert (pods[0] in server.pods, pods[1] in server.pods) == (False, True)

    for each in members:
        server.delete_pod(each)
    run(leader, 60)
    leader.refuses = lambda _: None
    run(leader, 60)

    assert pods[1] in server.pods
    assert [kind for kind, _ in stopped(leader)] == ["PlacementReservation", "Pod"]
    assert stopped(leader)[1][1] == pods[1]
    assert leader.preemptions == ["planned", "begun", "in-vain"]


def test_a_hold_is_not_replaced_while_a_unit_is_not_evicted_completely() -> None:
    server = ApiServer({"n0": 2, "n1": 2, "n2": 2})
    pods = gang_of_two(server, ("n0", "n1"))
    server.bind(server.create_pod("important", 2, priority=100), "n2")
    urgent(server, size=2)
    leader = planner(server)
    refused = {pods[1]}
    leader.refuses = lambda action: (
        WriteOutcome.REFUSED if isinstance(action, EvictPod) and action.eviction.uid in refused else None
    )
    run(leader, 4)
    (intent,) = intents(server)

    server.change_node("n0", 1)  # the hold is not enough any more
    run(leader, 4)
    assert [each.key for each in intents(server)] == [intent.key]
    refused.clear()
    run(leader, 60)

    assert not set(pods) & server.pods.keys()
    assert intents(server) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": PreemptionMode.OFF},
        {"mode": PreemptionMode.DRY_RUN},
        {"windows": (PreemptionWindow(opens_s=0.0, closes_s=1.0),)},
    ],
)
def test_where_the_policy_allows_no_eviction_any_more_no_unit_is_begun(changed: dict[str, Any]) -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server, size=2)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.UNANSWERED if isinstance(action, WriteStatus) else None
    run(leader, 20)
    assert len(intents(server)) == 1

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(**changed))
    leader.refuses = lambda _: None
    run(leader, 60)

    assert (intents(server), evicted(leader)) == ([], [])
    assert set(pods.values()) <= server.pods.keys()


def test_a_pod_that_does_not_end_blocks_other_gangs_for_a_minute_and_its_devices_stay_used() -> None:
    server, pods = full(n0=2, n1=2, ends=False)
    server.deletion_timestamp = format_timestamp(START + 100.0)
    urgent(server)
    leader = planner(server, timeout_s=300.0)
    run(leader, 15)
    urgent(server, "second")
    (first,) = evicted(leader)
    run(leader, 10)
    assert (evicted(leader), leader.preemptions) == ([first], ["planned", "begun"])

    server.deletion_timestamp = format_timestamp(START + 5_000.0)
    run(leader, 25)
    assert (len(evicted(leader)), leader.preemptions) == (2, ["planned", "begun", "planned", "begun"])

    while "stuck" not in leader.preemptions and leader.now < START + 1_000.0:
        run(leader, 2)
    assert leader.now > START + 380.0
    for each in pods.values():
        server.pods[each]["metadata"]["finalizers"] = []

    assert leader.preemptions == ["planned", "begun", "planned", "begun", "stuck"]
    assert set(evicted(leader)) == set(pods.values())
    assert [each.reason for each in leader.events].count("EvictionStuck") == 1
    (stuck,) = (each for each in intents(server) if each.status.stuck)
    assert stuck.spec.gang == "urgent"
    assert stuck.status.stuck == (f"{SPACE}/{server.pods[first]['metadata']['name']}",)
    assert "did not end in time" in (stuck.status.reason or "")
    assert committed(server) == set()
    second = next(each for each in pods.values() if each != first)
    server.delete_pod(second)
    run(leader, 4)
    assert committed(server) == {"second"}
    server.delete_pod(first)
    run(leader, 4)
    assert committed(server) == {"urgent", "second"}
    bind_all(leader)
    assert leader.preemptions[-2:] == ["won", "won"]


def test_a_pod_that_ends_slowly_delays_no_preemption_of_another_namespace() -> None:
    server, pods = full(n0=2, n1=2, ends=False)
    urgent(server)
    leader = planner(server, timeout_s=300.0)
    while not evicted(leader):
        run(leader, 2)
    server.create_pod("second", 2, "second", 1, more={"metadata": {"namespace": "other"}}, priority=100)
    run(leader, 8)

    assert set(evicted(leader)) == set(pods.values())


def test_an_eviction_that_is_not_accepted_delays_preemptions_of_other_namespaces_for_ten_seconds() -> None:
    """A search for another gang would not count the pod as gone, and could have another one evicted in vain."""
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, timeout_s=300.0)
    refuse_first_victim(leader)
    while not intents(server):
        run(leader, 2)
    held_at = leader.now
    server.create_pod("second", 2, "second", 1, more={"metadata": {"namespace": "other"}}, priority=100)

    while set(pods.values()) <= server.pods.keys() and leader.now < held_at + 60.0:
        run(leader, 2)

    assert 9.0 <= leader.now - held_at <= 20.0
    run(leader, 10)
    assert len(set(pods.values()) & server.pods.keys()) == 1


def test_no_pod_is_evicted_on_a_node_of_another_hold_of_the_same_priority() -> None:
    """Holds of one priority on one node would replace each other."""
    server = ApiServer({"n0": 4, "n1": 2})
    for at, node in enumerate(("n0", "n0", "n1")):
        kept = {"finalizers": ["example.com/keep"], "annotations": {DELETION_COST: str(at)}}
        more = {"status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}, "metadata": kept}
        server.bind(server.create_pod(f"on-{node}", 2, more=more), node)
    urgent(server)
    leader = planner(server, timeout_s=100.0)
    run(leader, 20)
    urgent(server, "second")

    while len(intents(server)) < 2 and leader.now < START + 1_000.0:
        run(leader, 2)

    nodes = {each.spec.gang: [held.node for held in each.spec.held] for each in intents(server)}
    assert nodes == {"urgent": ["n0"], "second": ["n1"]}


def test_a_refused_eviction_keeps_other_pods_of_its_namespace_for_two_minutes() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, timeout_s=300.0)
    refused = refuse_first_victim(leader)

    while not committed(server) and leader.now < START + 2_000.0:
        run(leader, 10)

    assert 150.0 < leader.now - START < 240.0
    assert refused <= server.pods.keys()
    assert len(set(pods.values()) & server.pods.keys()) == 1
    bind_all(leader)
    assert leader.preemptions == ["planned", "begun", "planned", "stopped", "begun", "won"]


def replace_hold(of: FakePlanner, intent: ReservationUpdate) -> None:
    """Give the gang another hold of the same devices."""
    spec = msgspec.structs.replace(intent.spec, preemption=None)
    of.term.apply_hold_result(HoldResult(gang_of(of), CreateReservation(SPACE, "another", spec)))


def refuse_first_victim(leader: FakePlanner) -> set[str]:
    """Let the API server refuse each eviction of the first pod that is to be evicted. Return its UID, once known."""
    refused: set[str] = set()

    def refuses(action: Action) -> WriteOutcome | None:
        if isinstance(action, EvictPod) and not refused:
            refused.add(action.eviction.uid)
        return WriteOutcome.REFUSED if isinstance(action, EvictPod) and action.eviction.uid in refused else None

    leader.refuses = refuses
    return refused


def gang_of(of: FakePlanner, name: str = "urgent") -> Gang:
    found = of.term.view.gang_members.get_gang(GangName(SPACE, name))
    assert found is not None
    return found


def test_the_cache_is_bounded() -> None:
    history = EvictionHistory()
    for each in range(20_000):
        history.mark_evicted(f"uid-{each}", EvictedFrom(f"team/{each}", "hold"), EvictedDevices(START + each, 1), 0.0)
        history.mark_searched(f"team-{each}", f"team/{each}", float(each))
        history.mark_failed(f"team/{each}", float(each))

    history.forget_old(20_000.0, START + 20_000.0, cooldown_s=1e9)

    assert (len(history.evicted()), history.count_evictions((), 20_000.0)) == (10_000, 0)
    assert history.may_search("team/0", 20_000.0)
    assert not history.may_search("team/19999", 20_000.0)


def test_evictions_without_a_limit_are_recorded_and_not_counted() -> None:
    history = EvictionHistory()
    history.mark_evicted("uid", EvictedFrom("team/short", "hold"), EvictedDevices(START, 1), 0.0, None)

    assert (history.has_evicted("uid"), history.count_evictions((), 1.0)) == (True, 0)
    history.forget_old(3_600.0, START + 3_600.0, cooldown_s=0.0)
    assert not history.has_evicted("uid")


def test_the_wait_after_evictions_in_vain_is_doubled_up_to_an_hour() -> None:
    history = EvictionHistory()

    def wait() -> float:
        history.mark_failed("team/a", 0.0)
        return next(at for at in range(0, 7_200, 60) if history.may_search("team/a", at))

    assert [wait() for _ in range(8)] == [120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_workload_that_is_evicted_again_for_another_gang_is_counted_once_for_each_hold() -> None:
    history = EvictionHistory()

    def evict(uid: str, hold: str, hours: float) -> bool:
        return history.mark_evicted(
            uid, EvictedFrom("team/scrap", hold), EvictedDevices(START + hours * 3_600.0, 1), 0.0
        )

    assert [evict("a", "first", 0.0), evict("b", "first", 0.1)] == [False, False]
    assert [evict("c", "second", 2.0), evict("d", "second", 2.1)] == [True, False]
    assert evict("e", "third", 30.0) is False


def test_a_replacement_of_a_victim_that_is_evicted_again_is_counted() -> None:
    server, _ = full(n0=2)
    leader = planner(server, cooldown_s=0.0)
    first = urgent(server, "first")
    run(leader, 10)
    server.delete_pod(*first)
    run(leader, 30)
    server.bind(server.create_pod("on-n0", 2, more={"status": {"startTime": "2026-11-21T00:00:00Z"}}), "n0")
    run(leader, 10)
    urgent(server, "second")

    run(leader, 40)

    assert (leader.evicted, leader.evicted_again) == (2, 1)


def test_a_single_pod_that_the_planner_placed_is_a_unit_of_its_controller() -> None:
    """So its replacement, which has another name and UID, is protected by the cool-down."""
    server = ApiServer({"n0": 2})
    placed = {"annotations": {POD_RESERVATION.key: "pods-1"}}
    running = {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}
    uid = server.create_pod("worker", 2, more={"metadata": placed, "status": running})
    server.bind(uid, "n0")
    name = server.pods[uid]["metadata"]["name"]
    urgent(server)
    leader = planner(server)

    run(leader)

    holds = [each.spec.preemption for each in leader.writes if isinstance(each, CreateReservation)]
    assert [each.unit for hold in holds if hold is not None for each in hold.evictions] == [f"{SPACE}/{name}"]
    assert evicted(leader) == [uid]
    assert set(leader.term.preemptions.evicted()) == {f"{SPACE}/of-worker"}


def test_a_preemption_that_ends_before_the_first_eviction_is_not_in_vain() -> None:
    server, pods = full(n0=2)
    (member,) = urgent(server)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.REFUSED if isinstance(action, EvictPod) else None
    run(leader, 20)

    server.delete_pod(member)
    run(leader, 40)

    assert set(pods.values()) <= server.pods.keys()
    assert leader.preemptions == ["planned", "begun", "stopped"]
    assert stopped(leader) == []


def test_pods_that_are_not_evicted_any_more_no_longer_count_against_the_limit() -> None:
    server, pods = full(n0=2, n1=2)
    urgent(server)
    leader = planner(server, timeout_s=100.0, max_evictions_per_hour=1)
    refused = refuse_first_victim(leader)
    run(leader, 20)
    urgent(server, "second")

    while not committed(server) and leader.now < START + 1_000.0:
        run(leader, 10)

    assert set(pods.values()) - server.pods.keys() == set(pods.values()) - refused
    assert committed(server)


def recorded(server: ApiServer) -> list[int]:
    """Return the numbers of pods of the preemptions that the ledger records."""
    assert server.ledger is not None
    return [each.pods for each in server.ledger.spec.preemptions]


def successor(of: FakePlanner, **changed: Any) -> FakePlanner:
    """Return the next leader, which knows only what the API server stores."""
    made = planner(of.server, "two", **changed)
    made.now = of.now
    return made


def test_the_limit_of_an_hour_counts_the_evictions_of_earlier_leaders() -> None:
    server, pods = full(n0=2, n1=2)
    (member,) = urgent(server)
    first = planner(server, max_evictions_per_hour=1)
    run(first, 10)
    assert len(evicted(first)) == 1
    server.delete_pod(member)
    run(first, 30)
    urgent(server, "second", size=2)

    second = successor(first, max_evictions_per_hour=1)
    run(second, 400)
    assert evicted(second) == []
    assert second.term.preemptions.evictions_left(second.now) == 0

    while second.now < START + 3_700.0:
        run(second, 100)
    assert len(evicted(second)) == 1
    assert not set(pods.values()) & server.pods.keys()


@pytest.mark.parametrize(("namespace", "is_protected"), [("other", True), (SPACE, False)])
def test_the_cooldown_of_a_workload_goes_on_with_the_next_leader(namespace: str, is_protected: bool) -> None:
    """The replacement has another name and UID, the same owner, and starts after the eviction.

    Evictions for a gang of the same namespace have no cool-down: a tenant could evict its own pods to protect them.
    """
    server = ApiServer({"n0": 2})
    elsewhere = {"metadata": {"namespace": namespace}}
    pod = server.create_pod("on-n0", 2, more=RUNNING | elsewhere)
    server.bind(pod, "n0")
    (member,) = urgent(server)
    first = planner(server)
    run(first, 10)
    assert evicted(first) == [pod]
    server.delete_pod(member)
    run(first, 30)
    started = format_timestamp(first.now)
    status = {"status": {"phase": "Running", "startTime": started}}
    again = server.create_pod("on-n0", 2, more=status | elsewhere)
    server.bind(again, "n0")
    urgent(server, "second")

    second = successor(first)
    run(second, 300)
    assert evicted(second) == ([] if is_protected else [again])

    while not evicted(second) and second.now < START + 4_000.0:
        run(second, 100)
    assert evicted(second) == [again]
    assert (second.now >= START + 3_600.0) == is_protected


def test_a_preemption_that_evicted_no_pod_is_not_recorded() -> None:
    server, _ = full(n0=2)
    urgent(server)
    leader = planner(server)
    leader.refuses = lambda action: WriteOutcome.UNANSWERED if isinstance(action, CheckBudgets) else None
    run(leader, 10)
    assert recorded(server) == [1]

    leader.policies = BUILT_IN._replace(preemption=POLICY._replace(mode=PreemptionMode.OFF))
    run(leader, 20)

    assert evicted(leader) == []
    assert recorded(server) == []


def test_the_use_of_won_gpus_is_counted_while_the_gang_runs() -> None:
    server, _ = full(n0=2)
    (member,) = urgent(server)
    leader = planner(server)
    run(leader, 10)
    bind_all(leader)
    assert leader.preemptions == ["planned", "begun", "won"]
    version = server.pods[member]["metadata"]["resourceVersion"]
    server.patch_pod({"metadata": {"uid": member, "resourceVersion": version}, **RUNNING})
    run(leader, 30)
    begin, used = leader.now, leader.won_gpu_hours
    run(leader, 3_600)

    assert leader.won_gpu_hours - used == pytest.approx(2 * (leader.now - begin) / 3_600, rel=0.02)
    server.delete_pod(member)
    run(leader, 60)
    used = leader.won_gpu_hours
    run(leader, 600)
    assert leader.won_gpu_hours == used


def test_gangs_of_a_higher_priority_that_fit_nowhere_do_not_keep_others_from_preempting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each search is followed by a pause: a few such gangs would use all the time."""
    server, _ = full(n0=2, n1=2)
    for number in range(40):
        elsewhere = {"metadata": {"namespace": "other"}}
        server.create_pod(f"large-{number}", 3, f"large-{number}", 1, more=elsewhere, priority=1_000)
    urgent(server)
    leader = planner(server)
    apply_result = Preemptions.apply_result
    monkeypatch.setattr(
        Preemptions, "apply_result", lambda self, result, now: apply_result(self, result._replace(cpu_s=1.5), now)
    )

    run(leader, 100)

    assert committed(server) == {"urgent"}


def test_running_pods_that_change_their_gangs_all_the_time_stop_one_preemption() -> None:
    """Four pods are pairs, and each time that evictions are planned, other pairs."""
    server, pods = full(n0=2, n1=2, n2=2, n3=2)
    turns = count()

    def pair() -> None:
        for uid, partner in zip(
            pods.values(), ((0, 1, 1, 0), (0, 0, 1, 1), (0, 1, 0, 1))[next(turns) % 3], strict=True
        ):
            if uid in server.pods:
                annotate(server, uid, "gputopo.io/gang", f"pair-{partner}")

    def change(action: Action) -> None:
        if isinstance(action, CreateReservation) and action.spec.preemption is not None:
            pair()

    pair()
    leader = planner(server)
    leader.refuses = change
    urgent(server)
    run(leader, 40)

    assert committed(server) == {"urgent"}
    assert leader.preemptions.count("planned") == 2
