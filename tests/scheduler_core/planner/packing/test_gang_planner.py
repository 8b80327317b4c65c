"""Verdicts on gangs that did not fit, against a planner that tries every gang on every snapshot."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import SINGLE_POD_PREFIX, PlannedMember
from gputopo.kube.taints import Taint
from gputopo.labels.reasons import Reason
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord, hold_uid
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.changed_nodes import ChangedNodes, PlanState
from scheduler_core.planner.leader.plan_task import PlanMemory, PlanResult, PlanTask, ReservationNames, run_plan
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang, TrialRules, UnfitState
from scheduler_core.planner.packing import gang_planner
from scheduler_core.planner.packing.model import (
    LEVELS,
    NO_HOLDS,
    GangPlan,
    NodeView,
    PlanOptions,
    RequestId,
    TableVariant,
    ViewChanges,
)
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.planner.packing.plan import plan_groups
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import (
    KINDS,
    POLICY,
    RACK,
    WISHES,
    crew,
    member,
    node,
    random_load,
    random_others,
    selecting,
    view,
    with_allocatable,
)

TAINT = Taint("maintenance", "", "NoSchedule")
STEPS = 12


class Cluster:
    """A cluster that changes at random, and gangs that wait."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._serial = 0
        self._policies = [(policy, self._chooser(policy)) for policy in (POLICY, Policy(degraded=Handling.REFUSE))]
        self._policy = self._policies[0]
        self._records: dict[str, NodeRecord] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._taints: dict[str, list[Taint]] = {}
        self._rules: dict[str, Any] = {}
        self._before: NodeView | None = None
        self._others: dict[str, NodeLoad] = {}
        self._placed: tuple[PlacedMember, ...] = ()
        self._avoid: dict[GangName, frozenset[str]] = {}
        for _ in range(4):
            self._add_node()
        self.gangs: list[Gang] = []
        for number in range(5):
            self.gangs.append(self._gang(f"g{number}"))

    def change(self) -> None:
        """Change one thing."""
        self._random.choice(
            (
                self._add_node,
                self._replace_node,
                self._replace_node,
                self._replace_node,
                self._remove_node,
                self._label,
                self._taint,
                self._reserve,
                self._set_policy,
                self._place,
                self._set_avoided,
                self._set_others,
                self._set_others,
                self._grow,
            )
        )()

    def task(self, *, retries: Sequence[GangName]) -> PlanTask:
        """Return the task to plan all gangs. ``retries``: gangs that did not fit before."""
        seen = view(
            *self._records.values(), labels=self._labels, taints=self._taints, policy=self._policy[0]
        )  # FullNodes of nodes that did not change are the same objects, as in a ``PlannerView``
        self._rules = {
            name: self._rules[name] if self._rules.get(name) == each else each for name, each in seen.rules.items()
        }
        queued = [
            QueuedGang(each, at, unfit_state=UnfitState(1) if each.name in retries else None)
            for at, each in enumerate(self.gangs)
        ]
        before = self._before
        nodes = self._before = NodeView(seen.table, self._rules, self._policy[1], others=self._others)
        changes = ViewChanges(nodes.table, None) if before is None else changes_between(before, nodes)
        return PlanTask(
            tuple((each,) for each in queued),
            nodes._replace(changes=changes if self._random.random() < 0.9 else None),
            self._variants(nodes),
            {seat.uid: seat for each in self.gangs for seat in self._seats(each)},
            self._avoid,
            LEVELS,
            ReservationNames("team", lambda: "0"),
            lambda: False,
            self._placed,
        )

    def _variants(self, nodes: NodeView) -> dict[GangName, TableVariant]:
        """Return snapshots without some holds, for some gangs. Several may ignore the same holds."""
        found = dict[GangName, TableVariant]()
        for _ in range(self._random.choice((0, 1, 2))):
            reserved = [each for each in self._records.values() if each.reserved]
            freed = self._random.sample(reserved, self._random.randint(0, len(reserved)))
            records = [
                msgspec.structs.replace(
                    each, reserved=(), pods=tuple(one for one in each.pods if one.uid not in each.reserved)
                )
                for each in freed
            ]
            table, names = with_records(nodes.table, records, NOW, self._policy[0]), {each.name for each in freed}
            variant = TableVariant(table, frozenset(names), frozenset(map(hold_uid, names)))
            found |= {gang.name: variant for gang in self._random.sample(self.gangs, self._random.randint(1, 3))}
        return found

    def remove_gang(self, name: GangName) -> None:
        """Replace a gang that was placed."""
        self.gangs = [self._gang(f"g{self._next()}") if each.name == name else each for each in self.gangs]

    def _gang(self, name: str) -> Gang:
        """Return a gang with the request of another one, or of one kind or two, perhaps beside a placed member."""
        random = self._random
        if self.gangs and random.random() < 0.4:
            return renamed(random.choice(self.gangs), name)
        required = random.choice((None, None, "rack", "kubernetes.io/none"))
        common: dict[str, Any] = {"required": required, "refuses": random.choice(("", "", "", "a"))}
        members: list[Member] = []
        for kind in range(random.choice((1, 1, 1, 2))):
            wishes, gpus = random.choice(WISHES), random.randint(1, 4)
            rules, load = random.choice((None, None, selecting(pool="p"))), random_load(random)
            members += [
                member(f"{name}-{kind}-{at}", gpus, role=random.choice("ab"), rules=rules, **common, **wishes)._replace(
                    load=load
                )
                for at in range(random.randint(1, 4))
            ]
        placed: tuple[Member, ...] = ()
        if random.random() < 0.2:
            placed = (member(f"{name}-placed")._replace(node=random.choice(list(self._records))),)
        minimum = random.choice((None, None, max(1, len(members) - 1)))
        full_name = GangName("team", name)
        ready = tuple(
            each._replace(gang_request=each.gang_request._replace(gang=full_name, minimum=minimum)) for each in members
        )
        size = len(ready) + len(placed)
        return Gang(full_name, GangPhase.QUEUED, "", ready, placed=placed, size=size, minimum=minimum)

    def _seats(self, gang: Gang) -> list[PlannedMember]:
        return [PlannedMember(each.uid, each.name, each.node) for each in gang.placed]

    def _add_node(self) -> None:
        name = f"n{self._next()}"
        self._records[name] = node(name, MACHINES[self._random.choice(KINDS)](), self._random)
        self._labels[name] = {RACK: self._random.choice("xy"), "pool": self._random.choice("pq")}

    def _replace_node(self) -> None:
        """Let pods end and start."""
        name = self._random.choice(list(self._records))
        self._records[name] = node(name, MACHINES[self._random.choice(KINDS)](), self._random)

    def _remove_node(self) -> None:
        if len(self._records) > 1:
            del self._records[self._random.choice(list(self._records))]

    def _label(self) -> None:
        name = self._random.choice(list(self._records))
        self._labels[name] = {RACK: self._random.choice("xy"), "pool": self._random.choice("pq")}

    def _taint(self) -> None:
        name = self._random.choice(list(self._records))
        self._taints[name] = [] if self._taints.get(name) else [TAINT]

    def _reserve(self) -> None:
        """Let a reservation begin or end."""
        name = self._random.choice(list(self._records))
        known = self._records[name]
        seat = occupant("seat", 1)._replace(uid=hold_uid(name))
        pods = tuple(each for each in known.pods if each.uid != seat.uid)
        if known.reserved:
            self._records[name] = msgspec.structs.replace(known, pods=pods, reserved=())
        else:
            self._records[name] = msgspec.structs.replace(known, pods=(*pods, seat), reserved=(seat.uid,))

    def _set_policy(self) -> None:
        self._policy = self._random.choice(self._policies)

    def _place(self) -> None:
        there = member(f"placed-{self._next()}", role=self._random.choice("ab"), refuses=self._random.choice(("", "a")))
        new = PlacedMember(self._random.choice(list(self._records)), there)
        self._placed = self._random.choice(((), (new,), (*self._placed, new)))

    def _set_avoided(self) -> None:
        gang = self._random.choice(self.gangs)
        self._avoid = {gang.name: frozenset({self._random.choice(list(self._records))})}

    def _set_others(self) -> None:
        """Let pods without GPUs end and start."""
        self._others = random_others(self._random, list(self._records))

    def _grow(self) -> None:
        """Replace a gang by another one with its name."""
        at = self._random.randrange(len(self.gangs))
        self.gangs[at] = self._gang(self.gangs[at].name.name)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    @staticmethod
    def _chooser(policy: Policy) -> Any:
        return lambda _: policy


def renamed(gang: Gang, name: str) -> Gang:
    """Return a gang with an equal request."""
    full_name = GangName("team", name)

    def copy(of: Member, at: int) -> Member:
        request = of.gang_request._replace(gang=full_name)
        return of._replace(name=f"{name}-{at}", uid=f"{name}-{at}", gang_request=request)

    return gang._replace(
        name=full_name,
        ready=tuple(copy(each, at) for at, each in enumerate(gang.ready)),
        placed=tuple(copy(each, len(gang.ready) + at) for at, each in enumerate(gang.placed)),
    )


class Trials:
    """A queue, and what its planner remembers. ``every``: gangs that cannot fit are tried, too."""

    def __init__(self, *, every: bool) -> None:
        self._every, self._queue, self._memory = every, GangQueue(), PlanMemory()
        self._names: set[GangName] = set()
        self._changed_nodes, self._inputs = ChangedNodes(), tuple[object, ...]()
        self._view: NodeView | None = None
        self.tried = 0

    def place_next(self, cluster: Cluster, task: PlanTask, state: int) -> tuple[CreateReservation, ...]:
        """Try gangs until one is placed, or no gang is left to try."""
        for gone in self._names - {each.name for each in cluster.gangs}:
            self._queue.remove_gang(gone)
        for gang in cluster.gangs:
            self._queue.update_gang(gang, 0.0)
        self._names = {each.name for each in cluster.gangs}
        unshared, present = task.avoid.keys(), PlanState(state, 0, 0, 0)
        ignored = {name: each.ignored_holds for name, each in task.tables_without_holds.items()}
        rules = TrialRules(
            sharing_key=lambda gang: None if gang.name in unshared else ignored.get(gang.name, NO_HOLDS),
            may_fit=self._may_fit(task, present),
            every=self._every,
        )
        for _ in range(100):
            batches = tuple(self._queue.batches(0.0, present, rules))
            if not batches:
                return ()
            self.tried += len(batches)
            found = run_plan(task._replace(batches=batches, unshared=unshared), self._memory)
            for name, unplaced in found.unplaced.items():
                assert unplaced.reason
                self._queue.mark_unplaced(name, present, found.request_ids.get(name))
            if found.created:
                return found.created
        raise AssertionError("gangs that did not fit are tried again and again")

    def _may_fit(self, task: PlanTask, present: PlanState) -> Callable[[QueuedGang], bool]:
        view, before = task.view, self._view
        self._view = view
        table = ClusterSnapshot(present.generation, view.table.records, view.table.states)
        changes = ViewChanges(table, None) if before is None else changes_between(before, view)
        self._changed_nodes.update(view._replace(table=table, changes=changes))
        inputs, self._inputs = self._inputs, (view.policy_of, task.placed_members)
        if inputs != self._inputs:
            return lambda _: True
        return partial(self._changed_nodes.may_fit, state=present)


def changes_between(before: NodeView, after: NodeView) -> ViewChanges:
    """Return the changes between two views, nodes compared one by one."""
    names = {*before.table.records, *after.table.records, *before.rules, *after.rules}
    differing = (
        name
        for name in names
        if before.table.records.get(name) is not after.table.records.get(name)
        or before.table.states.get(name) is not after.table.states.get(name)
        or before.rules.get(name) is not after.rules.get(name)
        or before.others.get(name) != after.others.get(name)
    )
    return ViewChanges(after.table, before.table, frozenset(differing))


def _unplaced(found: PlanResult) -> set[GangName]:
    return set(found.unplaced)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=120, deadline=None)
def test_a_gang_is_placed_exactly_when_a_planner_without_memory_places_it(seed: int) -> None:
    random = Random(seed)
    cluster, memory = Cluster(random), PlanMemory()
    tried: set[GangName] = set()
    for _ in range(STEPS):
        for _ in range(random.randint(0, 2)):
            cluster.change()
        task = cluster.task(retries=sorted(tried))

        found, fresh = run_plan(task, memory), run_plan(task)

        assert (found.created, found.gangs, _unplaced(found)) == (fresh.created, fresh.gangs, _unplaced(fresh))
        tried = _unplaced(found)
        for name in found.gangs:
            cluster.remove_gang(name)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=120, deadline=None)
def test_the_same_gang_is_placed_if_only_the_first_of_gangs_with_equal_requests_is_tried(seed: int) -> None:
    random = Random(seed)
    cluster, each_gang, first_only = Cluster(random), Trials(every=True), Trials(every=False)
    for state in range(STEPS):
        for _ in range(random.randint(0, 2)):
            cluster.change()
        task = cluster.task(retries=())

        placed = first_only.place_next(cluster, task, state)

        assert placed == each_gang.place_next(cluster, task, state)
        for each in placed:
            cluster.remove_gang(GangName("team", each.spec.gang))


@pytest.mark.parametrize("is_in_time", [True, False])
def test_a_result_for_which_the_time_did_not_suffice_does_not_count_for_equal_requests(is_in_time: bool) -> None:
    gang = [
        each._replace(name=f"{each.name}-{gpus}", uid=f"{each.uid}-{gpus}") for gpus in (5, 4) for each in crew(1, gpus)
    ]
    memory = PlanMemory()
    run_plan(_task(view(FULL), gang), memory)
    task = _task(view(record("full", H100, held={})), gang)  # each member fits, but not both

    found = run_plan(task._replace(is_out_of_time=lambda: not is_in_time), memory)

    assert (len(found.unplaced), len(found.request_ids)) == (1, int(is_in_time))


def test_of_gangs_with_equal_requests_only_the_first_is_tried_again() -> None:
    cluster, trials = Cluster(Random(0)), Trials(every=False)
    gang = next(each for each in cluster.gangs if not each.placed)
    huge = gang._replace(ready=tuple(member(f"w{at}", 64) for at in range(2)), size=2, minimum=None)
    cluster.gangs = [renamed(huge, f"g{at}") for at in range(9)]
    trials.place_next(cluster, cluster.task(retries=())._replace(tables_without_holds={}), 1)
    assert trials.tried == 9

    trials.place_next(cluster, cluster.task(retries=())._replace(tables_without_holds={}), 2)

    assert trials.tried == 10


def _task(seen: NodeView, *gangs: Sequence[Member]) -> PlanTask:
    queued = [
        QueuedGang(Gang(GangName("team", f"g{at}"), GangPhase.QUEUED, "", tuple(each), size=len(each)), at)
        for at, each in enumerate(gangs)
    ]
    named = [
        each._replace(
            gang=each.gang._replace(
                ready=tuple(
                    one._replace(gang_request=one.gang_request._replace(gang=each.gang.name)) for one in each.gang.ready
                )
            )
        )
        for each in queued
    ]
    names = ReservationNames("team", lambda: "0")
    seen = seen._replace(policy_of=_built_in)
    return PlanTask(tuple((each,) for each in named), seen, {}, {}, {}, LEVELS, names, lambda: False)


def _built_in(_: PodRequest) -> Policy:
    return POLICY


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The gangs that were planned, in order."""
    found: list[object] = []
    compute = plan_groups

    def counting(groups: Any, *more: Any) -> Any:
        found.append(groups)
        return compute(groups, *more)

    monkeypatch.setattr(gang_planner, "plan_groups", counting)
    return found


H100, PAIRS = MACHINES["hgx_h100"](), MACHINES["a100_bridged"]()
FULL = record("full", H100, held={"x": list(range(8))}, pods=[occupant("x", 8)])


def test_gangs_with_equal_requests_share_a_verdict(plans: list[object]) -> None:
    seen = view(record("a", H100, held={}), FULL)
    gangs = [crew(3, 8), [each._replace(name=f"other-{each.name}") for each in crew(3, 8)]]

    found = run_plan(_task(seen, *gangs), PlanMemory())

    assert [(each.reason, [name for name, _ in each.missing]) for each in found.unplaced.values()] == [
        ("1 of 3 members fits at once", ["w-1", "w-2"]),
        ("1 of 3 members fits at once", ["other-w-1", "other-w-2"]),
    ]
    assert len(plans) == 1


def test_more_different_requests_than_gangs_share_are_not_planned_again(plans: list[object]) -> None:
    gangs = [[each._replace(load=NodeLoad(0, 1000 + at, 0, 1)) for each in crew(2, 8)] for at in range(1100)]
    memory, task = PlanMemory(), _task(view(FULL), *gangs)
    run_plan(task, memory)
    assert len(plans) == len(gangs)
    plans.clear()

    run_plan(task, memory)

    assert plans == []


@pytest.mark.parametrize(
    ("pods", "planned"),
    [
        pytest.param(7, 0, id="a GPU becomes free that no member can use"),
        pytest.param(0, 1, id="a node becomes free, and the gang fits"),
    ],
)
def test_an_unplaced_gang_is_planned_again_when_capacity_that_it_can_use_is_freed(
    plans: list[object], pods: int, planned: int
) -> None:
    memory, free = PlanMemory(), record("a", H100, held={})
    run_plan(_task(view(free, FULL), crew(2, 8)), memory)
    plans.clear()
    there = [occupant("x", pods)] if pods else []
    after = view(free, record("full", H100, held={"x": list(range(pods))} if pods else {}, pods=there))

    found = run_plan(_task(after, crew(2, 8)), memory)

    assert (len(plans), len(found.created)) == (planned, planned)


@pytest.mark.parametrize("kinds", [{1: 24}, {1: 12, 2: 6}], ids=["members of one kind", "members of two kinds"])
@pytest.mark.parametrize(
    ("used", "planned"),
    [
        pytest.param(1000, 0, id="a pod ends on a node that had enough"),
        pytest.param(4000, 0, id="a pod starts on a node that has enough still"),
        pytest.param(9000, 0, id="a pod starts that keeps members from the node"),
        pytest.param(None, 1, id="a pod ends that kept the gang from a node"),
    ],
)
def test_of_pods_without_gpus_only_those_matter_that_kept_members_from_a_node(
    plans: list[object], kinds: dict[int, int], used: int | None, planned: int
) -> None:
    gang = [
        each._replace(name=f"{each.name}-{gpus}", uid=f"{each.uid}-{gpus}", load=NodeLoad(0, 1000, 0, 1))
        for gpus, number in kinds.items()
        for each in crew(number, gpus)
    ]
    nodes = [with_allocatable(record(name, H100, held={}), memory=16_000) for name in "abc"]
    others = {"a": NodeLoad(0, 2000, 0, 1), "b": NodeLoad(0, 16_000, 0, 1)}
    after = {"a": others["a"]} if used is None else others | {"a": NodeLoad(0, used, 0, 1)}
    first, memory = view(*nodes, others=others), PlanMemory()
    run_plan(_task(first, gang), memory)
    plans.clear()

    run_plan(_task(first._replace(others=after), gang), memory)

    assert len(plans) == planned


@pytest.mark.parametrize(
    ("named", "planned"), [pytest.param("", 0, id="not named"), pytest.param("full", 1, id="named")]
)
def test_only_nodes_that_are_named_as_changed_are_compared(plans: list[object], named: str, planned: int) -> None:
    memory, full = PlanMemory(), view(record("a", H100, held={}), FULL)
    free = view(record("a", H100, held={}), record("full", H100, held={}))
    run_plan(_task(full._replace(changes=ViewChanges(full.table, None)), crew(2, 8)), memory)
    plans.clear()
    changes = ViewChanges(free.table, full.table, frozenset(filter(None, [named])))

    found = run_plan(_task(free._replace(changes=changes), crew(2, 8)), memory)

    assert (len(plans), len(found.created)) == (planned, planned)


def test_more_members_that_fit_are_reported_without_a_plan(plans: list[object]) -> None:
    memory = PlanMemory()
    nodes = [record(name, H100, held={}) for name in ("a", "b")]
    run_plan(_task(view(nodes[0], FULL), crew(4, 8)), memory)

    found = run_plan(_task(view(*nodes, FULL), crew(4, 8)), memory)

    assert [each.reason for each in found.unplaced.values()] == ["2 of 4 members fit at once"]
    assert len(plans) == 1


def test_the_reasons_of_a_gang_that_still_does_not_fit_are_found_again(plans: list[object]) -> None:
    seat = occupant("seat", 8)
    reserved = msgspec.structs.replace(record("a", H100, held={}), pods=(seat,), reserved=(seat.uid,))
    bound = record("a", H100, held={"seat": list(range(8))}, pods=[seat])
    memory = PlanMemory()
    before = run_plan(_task(view(reserved), crew(2, 8)), memory)

    kept = run_plan(_task(view(bound), crew(2, 8)), memory)
    task = _task(view(bound), crew(2, 8))._replace(finds_reasons_again=True)
    again = run_plan(task, memory)

    assert _reasons(before) == _reasons(kept) == {Reason.RESERVED}
    assert _reasons(again) == {Reason.TOO_FEW_GPUS}
    plans.clear()
    assert run_plan(task, memory).unplaced == again.unplaced
    assert plans == []  # no node has changed


@pytest.mark.parametrize("is_in_time", [True, False])
def test_the_reasons_of_single_pods_are_found_again_if_there_is_time(is_in_time: bool) -> None:
    seat = occupant("seat", 8)
    reserved = msgspec.structs.replace(record("a", H100, held={}), pods=(seat,), reserved=(seat.uid,))
    bound = record("a", H100, held={"seat": list(range(8))}, pods=[seat])
    memory, name = PlanMemory(), GangName("team", f"{SINGLE_POD_PREFIX}uid-w-0")

    def plan(node: NodeRecord, **more: Any) -> set[Reason | str]:
        task = _task(view(node), crew(1, 8))._replace(**more)
        (queued,) = task.batches[0]
        pod = QueuedGang(queued.gang._replace(name=name), 0.0)
        return _reasons(run_plan(task._replace(batches=((pod,),)), memory))

    assert plan(reserved) == plan(bound) == {Reason.RESERVED.value}
    again = plan(bound, finds_reasons_again=True, is_retry_time_over=lambda: not is_in_time)
    assert again == {Reason.TOO_FEW_GPUS.value if is_in_time else Reason.RESERVED.value}


def test_a_request_keeps_its_id_for_each_set_of_ignored_holds() -> None:
    memory = PlanMemory()
    (batch,) = (task := _task(view(FULL), crew(2, 8))).batches
    name, variants = batch[0].gang.name, [frozenset({f"uid-{at}"}) for at in range(40)]

    def ids() -> list[RequestId]:
        tables = [TableVariant(task.view.table, frozenset(), each) for each in variants]
        found = [run_plan(task._replace(tables_without_holds={name: each}), memory) for each in tables]
        return [each.request_ids[name] for each in found]

    first = ids()
    assert [each.ignored_holds for each in first] == variants
    assert all(one is other for one, other in zip(first, ids(), strict=True))


def test_reasons_are_found_again_for_the_gang_that_knows_least_first_if_there_is_no_time_for_all() -> None:
    seat = occupant("seat", 8)
    reserved = msgspec.structs.replace(record("a", H100, held={}), pods=(seat,), reserved=(seat.uid,))
    bound = record("a", H100, held={"seat": list(range(8))}, pods=[seat])
    memory, crews = PlanMemory(), (crew(2, 8), crew(3, 8), crew(4, 8))
    run_plan(_task(view(reserved), *crews), memory)
    task = _task(view(bound), *crews)._replace(finds_reasons_again=True, is_retry_time_over=lambda: True)

    found = [run_plan(task, memory).unplaced for _ in crews]

    result = [sum(Reason.RESERVED not in dict(one.missing).values() for one in each.values()) for each in found]
    assert result == [1, 2, 3]


def _reasons(found: PlanResult) -> set[Reason | str]:
    return {reason for each in found.unplaced.values() for _, reason in each.missing}


def _records_alive() -> int:
    gc.collect()
    return sum(type(each) is NodeRecord for each in gc.get_objects())


def test_plans_keep_no_former_snapshot_in_memory() -> None:
    """Each gang and each single pod has a profile of its own, and all nodes change before each plan."""
    memory, before = PlanMemory(), _records_alive()
    for number in range(20):
        seen = view(*(record(f"n{at}", PAIRS, held={"x": [0]}, pods=[occupant("x", 1)]) for at in range(5)))
        single = member(f"single-{number}", 4, min_vram=f"{number + 1}Mi")
        members = [member(f"w-{at}", 3, min_vram=f"{number + 1}Mi") for at in range(6)]
        run_plan(_task(seen, members), memory)
        memory.singles.place_pods([single], seen._replace(policy_of=_built_in))

    assert _records_alive() - before <= 5


def test_members_of_placed_gangs_are_not_kept_in_memory() -> None:
    memory = PlanMemory()
    for number in range(30):
        renamed = GangName("team", f"placed-{number}")
        members = [
            each._replace(gang_request=each.gang_request._replace(gang=renamed), name=f"alive-{number}-{each.name}")
            for each in crew(2, 8)
        ]
        seen = view(record("a", H100, held={}), record("b", H100, held={}))._replace(policy_of=_built_in)
        assert isinstance(memory.gangs.plan_gang(tuple(members), seen, PlanOptions()), GangPlan)
    del members

    gc.collect()
    alive = {each.name for each in gc.get_objects() if isinstance(each, Member) and each.name.startswith("alive-")}
    assert len(alive) <= 2 * 2


def test_a_node_that_got_other_taints_while_it_was_full_takes_members_later() -> None:
    """A node is drained, rebooted, and uncordoned before its GPUs are registered."""
    machine = MACHINES["a100_bridged"]()
    free, full = record("n", machine, held={}), record("n", machine, held={"p": range(4)}, pods=[occupant("p", 4)])
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    cordoned, opened = view(free, taints={"n": (cordon,)}).rules, view(free).rules
    planner, policy_of = gang_planner.GangPlanner(), view(free).policy_of

    def plan(there: NodeRecord, rules: Mapping[str, FullNode]) -> object:
        return planner.plan_gang(crew(1, 4), view(there)._replace(rules=rules, policy_of=policy_of), PlanOptions())

    for there, rules in ((free, cordoned), (full, cordoned), (full, opened)):
        assert not isinstance(plan(there, rules), GangPlan)

    assert isinstance(plan(free, opened), GangPlan)
