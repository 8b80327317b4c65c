"""Batches of single pods: placed as if scheduled one after the other."""

from __future__ import annotations

from itertools import count
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import PlannedMember
from gputopo.kube.taints import Taint
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import with_pod
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import ANTI_AFFINITY_REASON
from scheduler_core.planner.packing.free_resources import free_resources
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.planner.packing.singles import NOT_TAKEN, SinglePodPlacer
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.node_load import NO_LOAD
from scheduler_core.request.pod_request import InvalidRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record, request, with_pods
from tests.scheduler_core.planner.packing.member_groups import (
    CLIQUE,
    POLICY,
    RACK,
    WISHES,
    asked,
    cluster,
    crew,
    member,
    occupants,
    random_load,
    random_others,
    selecting,
    view,
)

H100 = MACHINES["hgx_h100"]()


def _one_by_one(members: list[Member], seen: NodeView) -> tuple[list[tuple[str, str]], list[str]]:
    """Place by ``evaluate``, each pod on the next snapshot, on the best node with enough of everything else."""
    placed: list[tuple[str, Occupant]] = []
    seats, missing = [], []
    for each in members:
        request = asked(each)
        table = with_pods(seen.table, placed, NOW, POLICY)
        others = {name: seen.others.get(name, NO_LOAD) for name in table.records}
        allowed = [
            name
            for name, record in table.records.items()
            if free_resources(record, others[name]).shortage(each.load) is None
        ]
        decision = evaluate(request, table, allowed, POLICY)
        if decision.nodes:
            seats.append((each.uid, decision.nodes[0]))
            placed.append((decision.nodes[0], occupants([each])[0]))
        else:
            missing.append(each.uid)
    return seats, missing


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_batch_is_placed_like_one_pod_after_the_other(seed: int) -> None:
    random = Random(seed)
    records = cluster(random, 4)
    members = [
        member(f"p{at}", random.choice((1, 1, 2, 3)), **random.choice(WISHES))._replace(load=random_load(random))
        for at in range(9)
    ]
    seen = view(*records, others=random_others(random, [each.name for each in records]))

    found = SinglePodPlacer().place_pods(members, seen)

    seats = [(each.uid, each.node) for each in found.seats]
    assert (seats, [uid for uid, _ in found.missing]) == _one_by_one(members, seen)


def test_each_pod_counts_the_pods_before_it() -> None:
    seen = view(record("a", H100, held={}), record("b", H100, held={}))

    found = SinglePodPlacer().place_pods(crew(3, 8), seen)

    assert {each.node for each in found.seats} == {"a", "b"}
    assert found.seats[0].gpus == ((WHOLE, 8),)
    assert found.seats[0].expected == (0, 1, 2, 3, 4, 5, 6, 7)
    assert found.missing == (("uid-w-2", Reason.TOO_FEW_GPUS.value),)


def test_nodes_that_kube_scheduler_would_reject_are_left_out() -> None:
    labels = {"a": {"pool": "x"}, "b": {"pool": "y"}}
    seen = view(*(record(name, H100, held={}) for name in ("a", "b", "c")), labels=labels)
    picky = crew(2, 8, rules=selecting(pool="x"))

    found = SinglePodPlacer().place_pods([*picky, *crew(1, 8, rules=selecting(pool="z"))], seen)

    assert [each.node for each in found.seats] == ["a"]
    assert found.missing == (("uid-w-1", Reason.TOO_FEW_GPUS.value), ("uid-w-0", NOT_TAKEN))
    assert SinglePodPlacer().place_pods(picky, seen, PlanOptions(avoid=frozenset({"a"}))).missing[0][1] == NOT_TAKEN


def test_pods_without_gpus_get_no_node() -> None:
    bad = member("bad")._replace(request=InvalidRequest("the pod's request is malformed: ..."))

    found = SinglePodPlacer().place_pods([bad, member("cpu", 0)], view(record("a", H100, held={})))

    assert found.missing == (("uid-bad", "the pod's request is malformed: ..."),)
    assert found.seats == (PlannedMember("uid-cpu", "cpu"),)


def test_pods_that_fit_nowhere_share_a_request_id_if_their_requests_are_equal() -> None:
    seen, placer = view(record("a", H100)), SinglePodPlacer()
    large, other = [member(f"large-{at}", 9) for at in range(2)], member("other", 10)

    first = placer.place_pods([*large, other], seen).request_ids
    again = placer.place_pods([large[1]], seen).request_ids

    assert first["uid-large-0"] is first["uid-large-1"] is again["uid-large-1"]
    assert first["uid-other"] is not first["uid-large-0"]


def test_a_reason_that_may_be_out_of_date_is_found_again_if_there_is_time() -> None:
    full = [with_pod(record(name, H100, held={}), occupant(f"on-{name}", 8)) for name in "ab"]
    placer, waiting = SinglePodPlacer(), [member("w", 4)]
    before = placer.place_pods(waiting, view(*full)).missing
    taint = Taint("maintenance", "", "NoSchedule")
    cordoned = view(*full, taints={name: [taint] for name in "ab"})

    assert placer.place_pods(waiting, cordoned).missing == before == (("uid-w", Reason.TOO_FEW_GPUS.value),)
    assert placer.place_pods(waiting, cordoned, again=True).missing == (("uid-w", NOT_TAKEN),)


def test_a_reason_that_depends_on_the_batch_is_not_shared() -> None:
    """The pods that were placed before may not be written, and other pods do not avoid these nodes."""
    seen, placer = view(record("a", H100)), SinglePodPlacer()

    after_another = placer.place_pods([member("first", 8), member("second", 8)], seen)
    avoiding = placer.place_pods([member("first", 8)], seen, PlanOptions(avoid=frozenset({"a"})))
    there = PlacedMember("a", member("there", role="x"))
    apart = placer.place_pods([member("apart", role="y", refuses="x")], seen, PlanOptions(placed_members=(there,)))

    missing = [uid for found in (after_another, avoiding, apart) for uid, _ in found.missing]
    assert missing == ["uid-second", "uid-first", "uid-apart"]
    assert [found.request_ids for found in (after_another, avoiding, apart)] == [{}, {}, {}]


def test_without_any_gpu_node_the_reason_is_too_few_gpus() -> None:
    found = SinglePodPlacer().place_pods(crew(1), view(record("cpu", None)))

    assert found.missing == (("uid-w-0", Reason.TOO_FEW_GPUS.value),)


def test_when_its_time_is_over_the_rest_waits_for_the_next_batch() -> None:
    ticks = count()
    seen = view(record("a", H100, held={}))

    found = SinglePodPlacer().place_pods(crew(5), seen, PlanOptions(out_of_time=lambda: next(ticks) >= 3))

    assert (len(found.seats), found.missing) == (3, ())


def test_replicas_with_mutual_anti_affinity_have_a_node_each() -> None:
    seen = view(*(record(name, H100, held={}) for name in "abc"))
    there = member("old", role="x", refuses="x")

    found = SinglePodPlacer().place_pods(
        crew(3, role="x", refuses="x"), seen, PlanOptions(placed_members=(PlacedMember("b", there),))
    )

    assert {seat.node for seat in found.seats} == {"a", "c"}
    assert found.missing == (("uid-w-2", ANTI_AFFINITY_REASON),)


@given(st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_a_batch_is_placed_independently_of_earlier_batches(seed: int) -> None:
    random = Random(seed)
    placer, nodes = SinglePodPlacer(), {each.name: each for each in cluster(random, 5)}
    rules = view(*nodes.values(), labels={name: {"pool": random.choice("xy")} for name in nodes}).rules
    for batch in range(4):
        for each in random.sample(list(nodes.values()), random.randrange(3)):
            held = with_pod(each, occupant(f"other-{batch}", random.randrange(1, 3)))
            nodes[each.name] = random.choice((held, held, msgspec.structs.replace(each, gpus=None)))
        seen = view(*random.sample(list(nodes.values()), random.randrange(3, 6)))
        seen = seen._replace(rules=random.choice((rules, seen.rules)))
        members = [
            member(f"p{batch}-{at}", random.choice((1, 1, 2)), rules=random.choice((None, selecting(pool="x"))))
            for at in range(4)
        ]
        options = PlanOptions(avoid=frozenset(random.sample(list(nodes), random.choice((0, 0, 1)))))

        found, alone = (each.place_pods(members, seen, options) for each in (placer, SinglePodPlacer()))
        assert found.seats == alone.seats
        assert [uid for uid, _ in found.missing] == [uid for uid, _ in alone.missing]
        assert found.request_ids.keys() >= alone.request_ids.keys()
        again = placer.place_pods(members, seen, options, again=True)
        assert again.seats == ()
        assert set(again.missing) <= set(alone.missing)
        assert [uid for uid, _ in again.missing] == list(found.request_ids)


def test_the_cache_of_rules_is_bounded() -> None:
    placer, seen = SinglePodPlacer(), view(record("a", H100, held={}), labels={"a": {"pool": "p-3"}})
    members = [member(f"w-{at}", 1, rules=selecting(pool=f"p-{at}")) for at in range(100)]

    found = placer.place_pods(members, seen)

    assert [each.uid for each in found.seats] == ["uid-w-3"]


CLIQUES = {"a": {RACK: "r9"}, "m": {RACK: "r1", CLIQUE: "c.1"}, "n": {RACK: "r1", CLIQUE: "c.1"}, "z": {RACK: "r1"}}


def _of_job(name: str, gpus: int, job: str = "team/job/t", **wishes: str) -> Member:
    asked = request(gpus, name, **wishes)._replace(job=job)
    return member(name, gpus)._replace(request=asked)


def _near(*members: Member, on: str = "m", gpus: int = 8) -> list[str | None]:
    """The nodes of these pods, beside a pod of the job on a node."""
    sibling = occupant("first", gpus)._replace(job="team/job/t")
    nodes = [
        record(
            name,
            H100,
            held={"first": range(gpus)} if name == on else {},
            pods=[sibling] if name == on else [],
            labels=labels,
        )
        for name, labels in CLIQUES.items()
    ]
    return [each.node for each in SinglePodPlacer().place_pods(members, view(*nodes, labels=CLIQUES)).seats]


def test_gated_pods_of_a_job_fill_the_clique_and_then_the_rack_of_the_first() -> None:
    assert _near(*(_of_job(f"w{at}", 8) for at in range(3))) == ["n", "z", "a"]


def test_pods_of_one_batch_are_siblings_of_the_pods_before_them() -> None:
    found = SinglePodPlacer().place_pods(
        [_of_job("w0", 4), _of_job("w1", 4), _of_job("other", 4, "team/job/u")],
        view(*(record(name, H100, held={}, labels=labels) for name, labels in CLIQUES.items()), labels=CLIQUES),
    )

    first, second, _ = (each.node for each in found.seats)
    assert first == second


@pytest.mark.parametrize("wishes", [{"workload": "inference"}, {"spread": "preferred"}])
def test_replicas_are_spread_and_not_drawn_together(wishes: dict[str, str]) -> None:
    assert "m" not in _near(_of_job("w0", 1, **wishes), gpus=1)


def test_required_products_of_siblings_hold_for_gated_pods() -> None:
    sibling = occupant("first", 8)._replace(job="team/job/t")
    seen = view(
        record("dgx", MACHINES["dgx_a100"](), held={}),
        record("hgx", H100, held={"first": range(8)}, pods=[sibling]),
    )

    found = SinglePodPlacer().place_pods([_of_job("w0", 1, same_product="required")], seen)

    assert found.seats == ()
    assert len(found.missing) == 1
