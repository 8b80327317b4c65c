"""Cases beyond the goldens of ``test_text``."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.crd.reservations import Backfill, EntryPhase, spec_hash
from scheduler_core.cache.events import Batch
from scheduler_core.cache.full_pods import HOSTNAME, POD_AFFINITY, POD_ANTI_AFFINITY, TOPOLOGY_SPREAD
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.gang.conventions import single_pod_request
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.report.explain import NoGangError
from scheduler_core.planner.report.leadership import planner_levels
from scheduler_core.planner.report.text import gang_explanation_text
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import InvalidRequest
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.explain.fleets import QUADS
from tests.scheduler_core.planner.gang.gang_pods import BOUND, GATED, LLM
from tests.scheduler_core.planner.packing.member_groups import with_allocatable
from tests.scheduler_core.planner.packing.plans import entry, ledger, plan
from tests.scheduler_core.planner.report.clusters import RULES, USUAL, crew, member, seen, story

FREE = record("a", QUADS, held={})


def called(namespace: str, name: str) -> Member:
    gang = GangName(namespace, name)
    found = member(f"{namespace}-{name}")
    return found._replace(namespace=namespace, gang_request=found.gang_request._replace(gang=gang))


def malformed(namespace: str, name: str) -> Member:
    found = member(name, request=InvalidRequest("gputopo.io/gang: 'LLM_7' is not a name"), namespace=namespace)
    return found._replace(gang_request=single_pod_request(Metadata(name, namespace, f"uid-{name}"), "gate"))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        pytest.param([], "there is no gang llm-7 in the namespace team, nor any other gang", id="none at all"),
        pytest.param(
            [called("team", "llm-8"), called("team", "web")],
            "there is no gang llm-7 in the namespace team; nearest: llm-8",
            id="one of nearly that name",
        ),
        pytest.param(
            [called("team", "llm-8"), called("other", "llm-7")],
            "there is no gang llm-7 in the namespace team; nearest: llm-8, other/llm-7",
            id="one of that name in another namespace",
        ),
        pytest.param(
            [called("team", "jobset.llm-7"), called("team", "web")],
            "there is no gang llm-7 in the namespace team; nearest: jobset.llm-7",
            id="the name of its JobSet",
        ),
        pytest.param(
            [called("team", "web")],
            "there is no gang llm-7 in the namespace team: `gputopo gangs` lists all",
            id="nothing like it",
        ),
        pytest.param(
            [malformed("team", "p"), malformed("other", "q")],
            "there is no gang llm-7 in the namespace team .pods there with an invalid gang: "
            "p: gputopo.io/gang: 'LLM_7' is not a name., nor any other gang",
            id="one that names it wrongly",
        ),
    ],
)
def test_an_unknown_gang(members: list[Member], why: str) -> None:
    with pytest.raises(NoGangError, match=f"^{why}$"):
        story(seen(members), GangName("team", "llm-7"))


@pytest.mark.parametrize(
    ("members", "absent"),
    [
        pytest.param(crew(6)[1:3], (0, 3, 4, 5), id="ranks from 0 on"),
        pytest.param([*crew(6)[1:3], member("x", size=6)], (), id="one has no rank"),
        pytest.param(crew(6, rank=9)[:1], (), id="a rank beyond its size"),
        pytest.param(crew(20_000)[:1], (), id="more than anybody reads"),
        pytest.param([member("w-0", rank=0)], (), id="unknown size"),
        pytest.param(crew(2), (), id="all are there"),
    ],
)
def test_ranks_of_missing_members(members: list[Member], absent: tuple[int, ...]) -> None:
    assert story(seen(members)).absent_ranks == absent


def test_of_two_gangs_of_one_age_the_first_by_name_comes_first() -> None:
    both = [
        *crew(1),
        called("team", "a")._replace(gang_request=crew(1)[0].gang_request._replace(gang=GangName("team", "a"))),
    ]

    assert story(seen(both)).before == ("team/a",)
    assert story(seen(both), GangName("team", "a")).before == ()


def test_a_gang_that_was_complete_earlier_comes_first_though_its_first_pod_is_younger() -> None:
    early = called("team", "a")._replace(gang_request=crew(1)[0].gang_request._replace(gang=GangName("team", "a")))
    old, young = crew(2)
    both = [old, young._replace(created=NOW), early._replace(created=NOW - 60.0)]

    assert story(seen(both)).before == ("team/a",)
    assert story(seen(both), GangName("team", "a")).before == ()


def test_single_pods_and_gangs_with_a_capacity_hold_come_before_it_too() -> None:
    single = member("p", created=NOW - 900.0)._replace(
        gang_request=single_pod_request(Metadata("p", "team", "uid-p"), "gate")
    )
    name = GangName("team", "big")
    big = member("b-0", 4, created=NOW - 800.0)
    held = plan("big-1", held={"a": 8}, gang="big")
    there = [single, big._replace(gang_request=big.gang_request._replace(gang=name, size=1)), *crew(1)]

    found = story(seen(there, [FREE], planned=[held], ledger=ledger(entry(held, EntryPhase.HELD))))
    assert found.before == ("pod team/p", "team/big")


@pytest.mark.parametrize(
    ("asked", "levels", "notes"),
    [
        pytest.param(
            {"preferred": "block"},
            "block=example.com/hall|example.com/room",
            ["no node is in any block: none has a label example.com/hall or example.com/room"],
            id="the planner's own",
        ),
        pytest.param(
            {"preferred": "example.com/row"},
            USUAL,
            ["no node is in any example.com/row: none has a label example.com/row"],
            id="a label's key",
        ),
        pytest.param({"preferred": "rack"}, "rack=example.com/rack", [], id="a node is in one"),
        pytest.param(
            {"required": "rack"},
            "",
            ["the planner does not publish the labels of topology levels, so the default labels were used"],
            id="not published",
        ),
        pytest.param({"required": "example.com/rack"}, "", [], id="a label needs no level"),
    ],
)
def test_levels_are_those_of_the_planner(asked: dict[str, str], levels: str, notes: list[str]) -> None:
    there = seen(crew(1, **asked), [FREE], labels={"example.com/rack": "r7"}, levels=levels)
    found = story(there, rules=RULES._replace(levels=planner_levels(there) or LEVELS))

    assert [each for each in found.notes if "label" in each] == notes


def test_invalid_members_are_not_tried() -> None:
    found = story(seen([member("w-0", size=1, request=InvalidRequest("gputopo.io/island: 'yes'"))], [FREE]))

    assert (found.gang.phase, found.places, found.unfit) == ("refused", (), None)


def test_a_member_that_comes_late_is_tried_beside_its_siblings() -> None:
    there = [each._replace(node="a") for each in crew(2, 4, BOUND)[:1]]
    found = story(seen([*there, *crew(2)[1:]], [FREE, record("b", QUADS, held={})]))

    (place,) = found.places
    assert [(stop.node, stop.members) for stop in place.stops] == [("a", ("w-1",))]


def _crew_apart(state: str = GATED) -> list[Member]:
    term = PodAffinityTerm(HOSTNAME, LabelSelector({"app": "llm"}))
    return crew(2, 4, state, labels={"app": "llm"}, anti_affinity=(term,))


def test_a_member_that_may_not_be_beside_its_siblings_is_tried_elsewhere() -> None:
    there = [each._replace(node="a") for each in _crew_apart(BOUND)[:1]]
    found = story(seen([*there, *_crew_apart()[1:]], [FREE, record("b", QUADS, held={})]))

    (place,) = found.places
    assert [(stop.node, stop.members) for stop in place.stops] == [("b", ("w-1",))]


def test_a_pod_with_a_place_counts_on_its_node() -> None:
    name = GangName("team", "other")
    first = _crew_apart(BOUND)[0]
    coming = first._replace(uid="uid-o-0", name="o-0", node=None, gang_request=first.gang_request._replace(gang=name))
    ended = first._replace(uid="o-2", name="o-2", phase="Failed", node="b", gang_request=coming.gang_request)
    other = plan("other-1", {"o-0": ("a", 4)}, gang="other")
    mine = _crew_apart()[1:]
    mine = [each._replace(gang_request=each.gang_request._replace(size=1)) for each in mine]
    nodes = [FREE, record("b", QUADS, held={})]
    found = story(
        seen([*mine, coming, ended], nodes, planned=[other], ledger=ledger(entry(other, EntryPhase.COMMITTED)))
    )

    (place,) = found.places
    assert [stop.node for stop in place.stops] == ["b"]


def test_rules_that_plans_do_not_follow_are_notes() -> None:
    members = [
        each._replace(unplanned=rules)
        for each, rules in zip(crew(3), ((POD_AFFINITY,), (POD_AFFINITY, TOPOLOGY_SPREAD), ()), strict=True)
    ]

    assert story(seen(members, [FREE])).notes == (
        (
            "the planner removes the gates without choosing nodes: plans do not follow the rules of its members (pod "
            "affinity, topology spread), so kube-scheduler chooses their nodes, one by one: the gang may start in part."
            " For one domain for all members, use gputopo.io/gang-required-topology in place of it"
        ),
    )


@pytest.mark.parametrize("rule", [POD_AFFINITY, POD_ANTI_AFFINITY])
def test_a_gang_that_is_handed_over_shows_no_nodes_that_its_rules_may_forbid(rule: str) -> None:
    found = story(seen([each._replace(unplanned=(rule,)) for each in crew(2)], [FREE]))

    assert (found.places, found.unfit) == ((), None)
    note = next(each for each in found.notes if f"({rule})" in each)
    assert ("in place of it" in note) is (rule == POD_AFFINITY)  # one domain for all replaces no anti-affinity


def test_running_siblings_would_not_have_to_end() -> None:
    there = [each._replace(node="a") for each in crew(3, 4, BOUND)[:1]]
    busy = record("a", QUADS, held={"x": [4]}, pods=[occupant("x", 1)])
    found = story(seen([*there, *crew(3)[1:2]], [busy]))

    assert found.gang.phase == "waiting for members"
    assert found.relief is not None
    assert found.relief.pods == ("team/x",)


def test_a_note_says_that_the_time_ran_out() -> None:
    asked: list[None] = []

    def over() -> bool:
        asked.append(None)
        return True

    other = plan("o-1", {"o-0": ("a", 8)}, gang="other")
    found = story(seen(crew(1), [FREE], planned=[other], ledger=ledger(entry(other))), rules=RULES._replace(over=over))

    assert found.kept == ()
    assert found.notes[-1] == "the time for trials ran out, so this explanation may be incomplete"
    assert asked


def test_a_gang_that_no_end_of_other_pods_helps_can_never_fit() -> None:
    there = [record("a", QUADS, held={"x": [0, 1, 2, 3]}, pods=[occupant("x", 4)]), record("b", QUADS, held={})]
    found = story(seen(crew(3, 8), there))

    assert found.unfit is not None
    assert found.never is not None
    assert (found.never.reason, found.never.best) == ("2 of 3 members fit at once", 2)
    text = gang_explanation_text(found, 200)
    assert "It can never fit on these nodes, even if all other pods end: 2 of 3 members fit at once." in text
    assert "fit now" not in text
    assert story(seen(crew(2, 8), there)).never is None  # the pod on node a may end


def test_pods_without_gpus_that_fill_a_node_are_the_reason() -> None:
    """These pods may end, so the gang may fit one day."""
    node = with_allocatable(FREE, max_pods=3)
    asked = seen(crew(1, 8), [node])
    loads = tuple(PodLoad(f"u{at}", "a", NodeLoad(pods=1)) for at in range(3))
    asked.view.apply_batch(Batch(PlannerPod, loads), NOW)

    found = story(asked)

    assert found.unfit is not None
    assert found.never is None
    text = gang_explanation_text(found, 200)
    assert "Too many pods" in text
    assert "never fit" not in text


def test_a_gang_that_waits_for_a_volume_may_fit_one_day() -> None:
    members = [each._replace(blocked="its volume claim data is not bound yet") for each in crew(3, 8)]

    assert story(seen(members, [FREE])).never is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(
            {"markers": ("alpha.jobset.sigs.k8s.io/exclusive-topology",)},
            "JobSet creates the other pods of a Job only after its first pod has a node",
            id="exclusive topology of a JobSet",
        ),
        pytest.param(
            {"markers": ("leaderworkerset.sigs.k8s.io/exclusive-topology",)},
            "LeaderWorkerSet creates workers only after their leader has a node",
            id="exclusive topology of a LeaderWorkerSet",
        ),
        pytest.param({"owner_kind": "apps/StatefulSet"}, "podManagementPolicy: Parallel", id="ordered StatefulSet"),
    ],
)
def test_controllers_that_wait_for_a_member_are_notes(changed: dict[str, Any], words: str) -> None:
    members = [each._replace(**changed) for each in crew(4)]

    assert words in " ".join(story(seen(members[:1], [FREE])).notes)
    assert words not in " ".join(story(seen(members, [FREE])).notes)


def test_ranks_that_only_order_the_jobs_of_an_incomplete_jobset_are_not_shown() -> None:
    members = crew(2)
    late = members[1]._replace(gang_request=members[1].gang_request._replace(size=4, rank=1 << 16))
    first = members[0]._replace(gang_request=members[0].gang_request._replace(size=4))

    found = story(seen([first, late], [FREE]))

    assert [each.ranks for each in found.places[0].stops] == [(0, None)]


def test_backfill_is_noted_for_the_gang_on_held_capacity_and_for_the_holder() -> None:
    there = [record("a", QUADS, held={"user": range(8)}, pods=[occupant("user", 8)]), record("b", QUADS, held={})]
    short = plan("s-1", {"w-0": ("b", 4)}, gang=LLM.name)
    backfill = Backfill(f"{LLM.namespace}/big", "2026-11-18T11:30:00Z", "2026-11-18T12:00:00Z")
    spec = replace(short.spec, backfill=backfill)
    short = short._replace(spec=spec, hash=spec_hash(spec))
    big = GangName(LLM.namespace, "big")
    waiting = member("big-0", 8)
    waiting = waiting._replace(gang_request=waiting.gang_request._replace(gang=big, size=1))
    hold = plan("big-1", held={"b": 8}, gang="big")
    cluster = seen(
        [*crew(1, 4, BOUND, reservation="s-1", node="b"), waiting],
        there,
        planned=[short, hold],
        ledger=ledger(entry(hold, EntryPhase.HELD)),
    )

    assert story(cluster).notes[0] == (
        f"it uses capacity that is held for {LLM.namespace}/big until 2026-11-18T12:00:00Z, "
        "and is evicted if that gang can start earlier (backfill)"
    )
    expected = f"until it can start, its held capacity is used by {LLM.namespace}/{LLM.name} (backfill)"
    assert expected in story(cluster, big).notes


def test_backfill_is_noted_only_while_the_capacity_is_held_for_the_other_gang() -> None:
    short = plan("s-1", {"w-0": ("b", 4)}, gang=LLM.name)
    spec = replace(
        short.spec, backfill=Backfill(f"{LLM.namespace}/big", "2026-11-18T11:30:00Z", "2026-11-18T12:00:00Z")
    )
    placed = short._replace(spec=spec, hash=spec_hash(spec))

    found = story(seen([*crew(1, 4, BOUND, reservation="s-1", node="b")], planned=[placed], ledger=ledger()))

    assert not [each for each in found.notes if "backfill" in each]
