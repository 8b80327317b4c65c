"""Plans that count nodes in classes, from one plan to the next, against plans that look at every node each time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import PlannedMember
from gputopo.kube.taints import Taint
from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.cache.kube_scheduler_filters import FullNode, FullNodeSpec
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing import candidates, node_classes, search
from scheduler_core.planner.packing.candidates import Candidates
from scheduler_core.planner.packing.gang_planner import GangPlanner
from scheduler_core.planner.packing.groups import MemberGroups, group_members
from scheduler_core.planner.packing.model import LEVELS as LEVELS_OF_ALL
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions
from scheduler_core.planner.packing.node_classes import NodeCapacity, NodeClasses
from scheduler_core.planner.packing.node_filter import NodeFilter
from scheduler_core.planner.packing.node_fit import NodeFit
from scheduler_core.planner.packing.pack import PackingBound, packing_bound
from scheduler_core.planner.packing.packings import ClassCounts
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.planner.packing.search import FitResults
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import (
    BLOCK,
    CLIQUE,
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
)
from tests.scheduler_core.planner.packing.plain_search import plan_plainly

ZONE, ROW = "topology.kubernetes.io/zone", "example.com/row"
TAINT = Taint("maintenance", "", "NoSchedule")
LEVELS = (None, None, None, "rack", "block", "zone", "clique", HOSTNAME, ROW)


class Fleet:
    """Nodes in domains of all levels, which change at random."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._records: dict[str, NodeRecord] = {}
        self._rules: dict[str, FullNode] = {}
        self._others: dict[str, NodeLoad] = {}
        for at in range(random.randint(3, 14)):
            self._set_machine(f"n{at}")
            self._set_rules(f"n{at}")

    @property
    def names(self) -> list[str]:
        return list(self._records)

    def change(self) -> None:
        name = self._random.choice(self.names)
        what = self._random.choice(("machine", "machine", "machine", "others", "others", "rules", "add", "remove"))
        if what == "machine":
            self._set_machine(name)
        elif what == "rules":
            self._set_rules(name)
        elif what == "others":
            self._others = random_others(self._random, self.names)
        elif what == "add":
            new = f"n{self._random.randint(100, 999)}"
            self._set_machine(new)
            self._set_rules(new)
        elif len(self._records) > 1:
            del self._records[name], self._rules[name]

    def view(self) -> NodeView:
        return NodeView(
            snapshot_of(self._records.values(), NOW, POLICY), dict(self._rules), _built_in, others=self._others
        )

    def _set_machine(self, name: str) -> None:
        self._records[name] = node(name, MACHINES[self._random.choice(KINDS)](), self._random)

    def _set_rules(self, name: str) -> None:
        random = self._random
        labels = {HOSTNAME: name, "pool": random.choice("pq")}
        for key, domains in ((ZONE, "ab"), (BLOCK, "ab"), (RACK, "abc"), (CLIQUE, "ab"), (ROW, "ab")):
            if random.random() < 0.8:
                labels[key] = random.choice(domains)
        taints = (TAINT,) if random.random() < 0.1 else ()
        self._rules[name] = FullNode(metadata=Metadata(name=name, labels=labels), spec=FullNodeSpec(taints))


def _built_in(_: Any) -> Any:
    return POLICY


def gang(random: Random, name: str) -> list[Member]:
    """Members of one kind or two."""
    common: dict[str, Any] = {
        "required": random.choice(LEVELS),
        "preferred": random.choice(LEVELS),
        "refuses": random.choice(("", "", "", "a")),
    }
    found: list[Member] = []
    for kind in range(random.choice((1, 1, 2))):
        rules = random.choice((None, None, selecting(pool="p")))
        wishes, gpus, role = random.choice(WISHES), random.randint(1, 4), random.choice("ab")
        load = random_load(random)
        found += [
            member(f"{name}-{kind}-{at}", gpus, role=role, rules=rules, **common, **wishes)._replace(load=load)
            for at in range(random.randint(1, 5))
        ]
    minimum = random.choice((None, 1, max(1, len(found) - 1)))
    return [each._replace(gang_request=each.gang_request._replace(minimum=minimum)) for each in found]


def options(random: Random, names: list[str]) -> PlanOptions:
    """Options, mostly without placed members and avoided nodes."""
    placed = [
        PlannedMember(f"uid-s{at}", f"s{at}", random.choice(names)) for at in range(random.choice((0, 0, 0, 1, 2)))
    ]
    others = [
        PlacedMember(random.choice(names), member(f"o{at}", role=random.choice("ab")))
        for at in range(random.choice((0, 2)))
    ]
    avoid = frozenset(random.sample(names, random.choice((0, 0, 1))))
    return PlanOptions(tuple(placed), avoid, placed_members=tuple(others))


@given(seed=st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_plans_are_those_of_a_search_that_looks_at_every_node(seed: int) -> None:
    assert_plans_are_plain(seed, most_changes=3)


def test_plans_are_the_same_after_more_changes_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    changed_since, found = NodeClasses.changed_since, list[Mapping[str, NodeCapacity | None] | None]()

    def changed_and_note(own: NodeClasses, mark: int) -> Mapping[str, NodeCapacity | None] | None:
        found.append(changed_since(own, mark))
        return found[-1]

    monkeypatch.setattr(node_classes, "_MIN_CHANGES", 1)
    monkeypatch.setattr(NodeClasses, "changed_since", changed_and_note)

    for seed in range(8):
        assert_plans_are_plain(seed, most_changes=20)

    assert None in found
    assert any(found)


def assert_plans_are_plain(seed: int, most_changes: int) -> None:
    """Assert that the plans of a planner are those of a search that looks at every node."""
    random = Random(seed)
    fleet, planner = Fleet(random), GangPlanner()
    gangs = [gang(random, f"g{at}") for at in range(4)]
    for _ in range(8):
        for _ in range(random.randint(0, most_changes)):
            fleet.change()
        seen = fleet.view()
        for members in random.sample(gangs, 3):
            how = options(random, fleet.names)

            found = planner.plan_gang(members, seen, how)

            expected = plan_plainly(members, seen, how)
            assert (found if isinstance(found, GangPlan) else None) == expected


def test_a_plan_examines_only_changed_nodes_and_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, racks = MACHINES["hgx_h100"](), 20
    names = [f"n{at}" for at in range(2 * racks)]
    free = {name: record(name, machine, held={}) for name in names}
    full = {name: record(name, machine, held={"x": list(range(8))}, pods=[occupant("x", 8)]) for name in names[:2]}
    labels = {name: {RACK: f"r{at // 2}"} for at, name in enumerate(names)}
    first = view(*free.values(), labels=labels)
    second = view(*(free | full).values(), labels=labels)._replace(rules=first.rules, policy_of=first.policy_of)
    examined, bounded = list[str](), list[object]()
    filter_node = NodeFilter.rejection_of

    def filter_and_note(own: NodeFilter, node: FullNode) -> str | None:
        examined.append(node.metadata.name)
        return filter_node(own, node)

    def bound_and_note(counts: ClassCounts, node_fit: NodeFit) -> PackingBound:
        bounded.append(counts)
        return packing_bound(counts, node_fit)

    monkeypatch.setattr(NodeFilter, "rejection_of", filter_and_note)
    monkeypatch.setattr(search, "packing_bound", bound_and_note)
    planner = GangPlanner()

    planner.plan_gang(crew(2, 8), first, PlanOptions())
    counts = len(examined), len(bounded)
    examined.clear()
    bounded.clear()
    planner.plan_gang([each._replace(uid=f"other-{each.uid}") for each in crew(2, 8)], second, PlanOptions())

    assert counts == (len(names), 1)
    assert (sorted(examined), len(bounded)) == (names[:2], 1)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_candidates_that_are_examined_in_several_turns_are_those_of_one_turn(seed: int) -> None:
    """Each turn has time for three nodes; nodes change between the turns."""
    random = Random(seed)
    fleet, nodes = Fleet(random), NodeClasses()
    groups = group_members(gang(random, "g"), fleet.view(), PlanOptions())
    assert isinstance(groups, MemberGroups)
    results, found = FitResults(groups, nodes), Candidates(groups, LEVELS_OF_ALL)
    turns, is_complete, seen = 0, False, set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "FILTERS_PER_CLOCK_READ", 1)
        patch.setattr(node_classes, "_MIN_CHANGES", random.choice((1, 1000)))
        while not is_complete:
            for _ in range(random.choice((0, 0, 1, 30)) if turns < 5 else 0):
                fleet.change()
            nodes.update(fleet.view(), None)
            reads = count()
            limited = PlanOptions(out_of_time=lambda: next(reads) >= 3)  # noqa: B023  called in this turn
            is_complete = found.update(groups, nodes, limited, results.limited_nodes())
            turns += 1
            assert turns < 30
            present = Candidates(groups, LEVELS_OF_ALL)
            present.update(groups, nodes, PlanOptions(), results.limited_nodes())
            assert all(found.class_of(each) in (None, present.class_of(each)) for each in (*nodes.capacity_of, *seen))
            seen |= nodes.capacity_of.keys()
    at_once = Candidates(groups, LEVELS_OF_ALL)
    assert at_once.update(groups, nodes, PlanOptions(), results.limited_nodes())

    names = {*nodes.capacity_of, *fleet.names}
    assert {name: found.class_of(name) for name in names} == {name: at_once.class_of(name) for name in names}
    assert turns >= min(2, len(fleet.names) // 4)
