"""The order of the queue, back-offs and waits."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.planner.gang.gang import Gang, GangPhase, by_rank, gang_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.hold_candidates import NodeDeadline, find_hold_nodes
from scheduler_core.planner.leader.queue import SETTLE_S, GangQueue, QueuedGang, QueueTiming, TrialRules
from scheduler_core.planner.packing.model import NO_HOLDS, RequestId
from tests.scheduler_core.builders import request
from tests.scheduler_core.planner.gang.gang_pods import LLM, member, members, queued

NOW = 1000.0


def of(*gangs: Gang) -> GangQueue:
    queue = GangQueue()
    for gang in gangs:
        queue.update_gang(gang, NOW)
    return queue


def waits(gang: Gang, since: float, rollbacks: int = 0, until: float = 0.0) -> QueuedGang:
    """In ``of``."""
    return QueuedGang(gang, since, rollbacks, until, queued_since=NOW, newest_seen_at=NOW, due_at=until)


def names(waiting: tuple[QueuedGang, ...]) -> list[str]:
    return [each.gang.name.name for each in waiting]


def batches(queue: GangQueue, now: float = NOW, state: int = 1, **changed: Any) -> list[list[str]]:
    return [names(batch) for batch in queue.batches(now, state, TrialRules(**changed))]


def name(text: str) -> GangName:
    return GangName("team", text)


def test_by_priority_then_age_then_name() -> None:
    queue = of(queued("b"), queued("young", created=200.0), queued("urgent", created=300.0, priority=9), queued("a"))

    assert names(queue.ordered()) == ["urgent", "a", "b", "young"]


def test_gangs_without_gpus_come_after_those_with_gpus_of_their_priority() -> None:
    """No quota of GPUs limits how many of them a tenant creates."""
    idle = [queued(f"idle-{at}", ready=(IDLE,)) for at in range(2)]
    queue = of(*idle, queued("gpus", created=200.0, ready=EIGHT), queued("low", priority=-1, ready=EIGHT))

    assert names(queue.ordered()) == ["gpus", "idle-0", "idle-1", "low"]


def test_unwanted_pods_do_not_count_in_a_batch() -> None:
    queue = of(*(queued(f"pod.{at}", created=float(at)) for at in range(6)))

    found = batches(queue, most=2, wanted=lambda gang: gang.name.name not in ("pod.0", "pod.2", "pod.3"))

    assert found == [["pod.1", "pod.4"], ["pod.5"]]


def test_the_search_for_a_gang_without_a_plan_begins_with_the_last_one() -> None:
    """The first gangs of many are planned first."""
    queue, asked = of(queued("a"), queued("b"), queued("c")), list[str]()

    def is_wanted(gang: Gang) -> bool:
        asked.append(gang.name.name)
        return gang.name.name == "b"

    assert queue.has_queued(is_wanted)
    assert asked == ["c", "b"]


def test_get_queued() -> None:
    queue = of(queued("a"))

    assert (queue.get_queued(name("a")), queue.get_queued(name("b"))) == (waits(queued("a"), 100.0), None)


def test_a_gang_that_is_not_queued_leaves() -> None:
    queue = of(queued("a"), queued("b"), queued("c"))
    queue.update_gang(queued("a", phase=GangPhase.UNGATED), NOW)
    queue.remove_gang(name("b"))
    queue.remove_gang(name("stranger"))

    assert names(queue.ordered()) == ["c"]


@pytest.mark.parametrize(
    ("rollbacks", "backoff"), [(1, 10.0), (2, 20.0), (3, 40.0), (5, 160.0), (6, 300.0), (99, 300.0)]
)
def test_each_rollback_doubles_the_wait(rollbacks: int, backoff: float) -> None:
    queue = of(queued("a"))

    assert [queue.mark_rolled_back(name("a"), NOW) for _ in range(rollbacks)][-1] == NOW + backoff
    assert queue.next_due_at(NOW) == NOW + backoff
    assert batches(queue, NOW + backoff - 1) == []
    assert batches(queue, NOW + backoff) == [["a"]]
    assert queue.next_due_at(NOW + backoff) is None


def test_a_gang_with_recreated_pods_keeps_its_age_and_rollbacks() -> None:
    queue = of(queued("a", created=50.0), queued("b", created=60.0))
    queue.update_gang(queued("a", phase=GangPhase.UNGATED, created=50.0), NOW)
    queue.mark_rolled_back(name("a"), NOW, "w-1 not bound within 30 s")
    queue.update_gang(queued("a", phase=GangPhase.FINISHED), NOW)
    queue.remove_gang(name("a"))
    queue.update_gang(queued("a", created=NOW + 1), NOW)

    (again, _) = queue.ordered()

    trouble = "w-1 not bound within 30 s"
    assert again == waits(queued("a", created=NOW + 1), 50.0, 1, NOW + 10)._replace(rollback_reason=trouble)
    assert queue.mark_rolled_back(name("a"), NOW + 20) == NOW + 40


def test_a_gang_without_rollbacks_starts_a_new_wait() -> None:
    queue = of(queued("a", created=50.0))
    queue.update_gang(queued("a", phase=GangPhase.RUNNING, created=50.0), NOW)
    queue.update_gang(queued("a", created=NOW), NOW)

    assert queue.ordered() == (waits(queued("a", created=NOW), NOW),)


def test_once_started_rollbacks_are_forgotten() -> None:
    queue = of(queued("a", created=50.0))
    queue.mark_rolled_back(name("a"), NOW)
    queue.update_gang(queued("a", phase=GangPhase.BOUND), NOW)
    queue.mark_started(name("a"))
    queue.update_gang(queued("a", created=60.0), NOW)

    assert queue.ordered() == (waits(queued("a", created=60.0), 60.0),)


def test_a_rollback_without_recreated_pods_is_forgotten_after_a_while() -> None:
    queue = of(queued("gone"), queued("here"))
    for each in ("gone", "here"):
        queue.mark_rolled_back(name(each), NOW)
    queue.remove_gang(name("gone"))

    assert batches(queue, NOW + 10 + 300) == [["here"]]
    queue.update_gang(queued("gone"), NOW)
    assert queue.ordered() == (waits(queued("gone"), 100.0, 1, NOW + 10), waits(queued("here"), 100.0, 1, NOW + 10))
    queue.remove_gang(name("gone"))
    assert batches(queue, NOW + 10 + 301) == [["here"]]
    queue.update_gang(queued("gone"), NOW)
    assert queue.ordered() == (waits(queued("gone"), 100.0), waits(queued("here"), 100.0, 1, NOW + 10))


def test_a_rollback_of_an_unknown_gang_counts() -> None:
    queue = GangQueue()

    assert queue.mark_rolled_back(name("a"), NOW) == NOW + 10
    queue.update_gang(queued("a"), NOW)
    assert queue.ordered() == (waits(queued("a"), 100.0, 1, NOW + 10),)


def test_an_unplaced_gang_is_tried_again_after_a_change() -> None:
    queue = of(queued("a", ready=tuple(members(2))), queued("b"))
    for each in ("a", "b", "stranger"):
        queue.mark_unplaced(name(each), 1)

    assert batches(queue, state=1) == []
    assert batches(queue, state=2) == [["a"], ["b"]]
    queue.update_gang(queued("a", ready=tuple(members(2))), NOW)
    assert batches(queue, state=1) == []
    queue.update_gang(queued("a", ready=tuple(members(3))), NOW)
    assert batches(queue, state=1) == [["a"]]


def test_of_gangs_with_equal_requests_that_did_not_fit_the_first_is_tried_for_all() -> None:
    queue, request_id = of(queued("a"), queued("b"), queued("c")), RequestId()
    for each in "abc":
        queue.mark_unplaced(name(each), 1, request_id)

    assert batches(queue, state=2) == [["a"]]
    assert batches(queue, state=2, every=True) == [["a"], ["b"], ["c"]]
    assert batches(queue, state=2, wanted=lambda gang: gang.name.name != "a") == [["b"]]

    queue.mark_unplaced(name("a"), 2, request_id)
    assert batches(queue, state=2) == batches(queue, state=2, every=True) == []

    queue.remove_gang(name("a"))
    assert batches(queue, state=3) == [["b"]]


def test_a_gang_that_leaves_the_queue_loses_its_result() -> None:
    queue = of(queued("a"), queued("b"))
    for each in "ab":
        queue.mark_unplaced(name(each), 1, RequestId())

    queue.update_gang(queued("a")._replace(phase=GangPhase.REFUSED), NOW)  # with the same members

    assert queue.count_unplaced() == 1
    queue.update_gang(queued("a"), NOW)
    assert batches(queue, state=1) == [["a"]]


def test_results_can_be_dropped_after_a_gang_has_left_the_queue() -> None:
    queue = of(queued("a"), queued("b"))
    for each in "ab":
        queue.mark_unplaced(name(each), 1, RequestId())
    queue.update_gang(queued("a")._replace(phase=GangPhase.REFUSED), NOW)

    queue.drop_results()

    assert batches(queue, state=1) == [["b"]]


def test_a_result_for_one_gang_counts_for_all_with_its_request() -> None:
    queue, request_id = of(queued("a"), queued("b")), RequestId()
    queue.mark_unplaced(name("a"), 1, request_id)

    queue.mark_unplaced(name("b"), 2, request_id)

    assert batches(queue, state=2) == []
    assert batches(queue, state=3) == [["a"]]


def test_gangs_whose_results_are_dropped_are_tried_one_by_one() -> None:
    queue, request_id = of(*(queued(each) for each in "abcd")), RequestId()
    for each in "abd":
        queue.mark_unplaced(name(each), 1, request_id)
    queue.mark_unplaced(name("c"), 1)

    queue.drop_results(lambda gang: gang.name.name != "d")

    assert batches(queue, state=1) == [["a"], ["b"], ["c"]]
    queue.mark_unplaced(name("a"), 1, request_id)
    assert batches(queue, state=1) == [["b"], ["c"]]
    assert batches(queue, state=2) == [["a"], ["b"], ["c"]]
    assert queue.count_unplaced() == 4


def test_single_pods_with_equal_requests_are_tried_together_once_they_may_fit() -> None:
    queue, request_id = of(*(queued(f"pod.{each}") for each in "abc")), RequestId()
    for each in ("pod.a", "pod.b", "pod.c"):
        queue.mark_unplaced(name(each), 1, request_id)

    assert batches(queue, state=2, may_fit=lambda _: False) == []
    assert batches(queue, state=2, may_fit=lambda _: False, every=True) == []
    assert batches(queue, state=2) == [["pod.a", "pod.b", "pod.c"]]


def test_a_gang_that_may_fit_where_others_with_an_equal_request_do_not_is_always_tried() -> None:
    queue, request_id = of(queued("a"), queued("b"), queued("c")), RequestId()
    for each in "abc":
        queue.mark_unplaced(name(each), 1, request_id)
    rules: dict[str, Any] = {"sharing_key": lambda gang: None if gang.name.name == "b" else NO_HOLDS}
    assert batches(queue, state=2, **rules) == [["a"], ["b"]]

    queue.mark_unplaced(name("a"), 2, request_id)
    assert batches(queue, state=2, **rules) == [["b"]]

    queue.mark_unplaced(name("b"), 2)
    assert batches(queue, state=2, **rules) == batches(queue, state=2) == []
    assert batches(queue, state=3) == [["a"], ["b"]]


def test_a_result_counts_only_for_gangs_that_ignore_the_same_holds() -> None:
    queue, ignoring, plain = of(*(queued(each) for each in "abcd")), RequestId(frozenset({"uid-hold"})), RequestId()
    for each, request_id in (("a", ignoring), ("b", ignoring), ("c", plain), ("d", plain)):
        queue.mark_unplaced(name(each), 1, request_id)
    of_all: dict[str, Any] = {"sharing_key": lambda _: frozenset({"uid-hold"})}
    of_first: dict[str, Any] = {"sharing_key": lambda gang: frozenset({"uid-hold"} if gang.name.name in "ab" else ())}

    assert batches(queue, state=1, **of_first) == []
    assert batches(queue, state=2, **of_first) == [["a"], ["c"]]
    assert batches(queue, state=1, **of_all) == [["c"], ["d"]]  # the hold is new for them
    assert batches(queue, state=2, **of_all) == [["a"], ["c"], ["d"]]


def test_a_gang_that_cannot_fit_since_is_tried_only_with_every_gang_or_if_it_shares_no_result() -> None:
    queue = of(*(queued(each) for each in "abc"))
    for each in "ab":
        queue.mark_unplaced(name(each), 1, RequestId())
    queue.mark_unplaced(name("c"), 1)  # no request is known: the time of its plan was over
    rules: dict[str, Any] = {"may_fit": lambda waiting: waiting.gang.name.name == "b"}

    assert batches(queue, state=2, **rules) == [["b"], ["c"]]
    assert batches(queue, state=2, every=True, **rules) == [["a"], ["b"], ["c"]]
    assert batches(queue, state=2, sharing_key=lambda _: None, **rules) == [["a"], ["b"], ["c"]]


def test_of_gangs_with_equal_requests_that_cannot_fit_since_only_one_is_looked_at() -> None:
    queue, request_id, seen = of(queued("a"), queued("b")), RequestId(), list[str]()
    for each in "ab":
        queue.mark_unplaced(name(each), 1, request_id)

    def may_fit(waiting: QueuedGang) -> bool:
        seen.append(waiting.gang.name.name)
        return False

    assert batches(queue, state=2, may_fit=may_fit) == []
    assert seen == ["a"]


def test_the_number_of_gangs_that_did_not_fit_is_known_without_sorting() -> None:
    queue = of(queued("a"), queued("b"))
    assert queue.count_unplaced() == 0

    queue.mark_unplaced(name("stranger"), 1)
    assert queue.count_unplaced() == 0
    queue.mark_unplaced(name("b"), 1)
    assert queue.count_unplaced() == 1

    queue.remove_gang(name("b"))
    assert queue.count_unplaced() == 0


def test_consecutive_single_pods_are_tried_together() -> None:
    singles = [queued(f"pod.{number}", created=100.0 + number) for number in range(5)]
    queue = of(*singles, queued("llm", created=101.5), queued("urgent", priority=1))

    assert batches(queue, most=2) == [["urgent"], ["pod.0", "pod.1"], ["llm"], ["pod.2", "pod.3"], ["pod.4"]]


def test_single_pods_of_another_priority_are_tried_by_themselves() -> None:
    queue = of(*(queued(f"pod.{number}", priority=number // 2) for number in range(4)))

    assert batches(queue) == [["pod.2", "pod.3"], ["pod.0", "pod.1"]]


def test_a_gang_that_started_without_some_members_keeps_its_age_for_them() -> None:
    queue = of(queued("a", created=50.0))
    queue.mark_rolled_back(name("a"), NOW)
    queue.mark_started(name("a"))
    queue.update_gang(queued("a", created=60.0), NOW)

    assert queue.ordered() == (waits(queued("a", created=60.0), 50.0),)


def test_an_elastic_gang_waits_a_little_for_more_members() -> None:
    enough = queued("a", ready=tuple(members(3)), size=5, minimum=2, newest=1.0)
    queue = of(enough)

    assert batches(queue, NOW + 9) == []
    assert queue.next_due_at(NOW + 9) == NOW + 10
    assert batches(queue, NOW + 10) == [["a"]]
    queue.update_gang(enough._replace(ready=tuple(members(4)), newest=2.0), NOW + 8)  # one more member
    assert queue.next_due_at(NOW + 9) == NOW + 18
    queue.update_gang(enough._replace(ready=tuple(members(4)), newest=2.0), NOW + 17)  # unchanged
    assert queue.next_due_at(NOW + 17) == NOW + 18
    queue.update_gang(enough._replace(ready=tuple(members(5)), newest=3.0), NOW + 17)
    assert batches(queue, NOW + 17) == [["a"]]


def test_gangs_that_waited_long_are_entitled_to_a_hold_in_order() -> None:
    queue = of(
        queued("first"),
        queued("second"),
        queued("urgent", priority=5),
        queued("third", priority=3),
        queued("behind", priority=3, created=101.0),
        queued("pod.1", priority=1),
        queued("after", priority=1, created=150.0),
    )
    queue.update_gang(queued("young", priority=2), NOW + 1)

    assert names(tuple(queue.entitled_to_hold(NOW + 299))) == []
    found = names(tuple(queue.entitled_to_hold(NOW + 300)))
    assert found == ["urgent", "third", "behind", "pod.1", "after", "first", "second"]
    assert names(tuple(queue.entitled_to_hold(NOW + 301)))[:4] == ["urgent", "third", "behind", "young"]


def test_creation_times_decide_the_order_and_not_the_waiting_time() -> None:
    """The clock of the API server is an hour ahead of the planner's, or behind it."""
    ahead, behind = queued("ahead", created=NOW + 3600, newest=NOW + 3600), queued("behind", created=NOW - 3600)
    queue = of(ahead._replace(ready=tuple(members(1)), size=2, minimum=1), behind)

    assert names(queue.ordered()) == ["behind", "ahead"]
    assert batches(queue, NOW + 10) == [["behind"], ["ahead"]]
    assert (list(queue.entitled_to_hold(NOW + 299)), names(tuple(queue.entitled_to_hold(NOW + 300)))) == (
        [],
        ["behind", "ahead"],
    )


LATER = NOW + SETTLE_S
OLD = 50.0  # before all others were created
EIGHT, SIXTEEN = (tuple(members(count, request=request(8))) for count in (1, 2))
SHARES = (member("w-0", request=request(8, resource="nvidia.com/gpu.shared")),)
IDLE = member("idle", request=request(0))
GATHERING, WAITING, REFUSED, LET_GO = (
    GangPhase.WAITING_FOR_MEMBERS,
    GangPhase.WAITING,
    GangPhase.REFUSED,
    GangPhase.UNGATED,
)


@pytest.mark.parametrize(
    ("before", "after", "first", "waited"),
    [
        pytest.param({}, {}, True, True, id="nothing has changed"),
        pytest.param({"phase": GATHERING}, {}, False, False, id="members were missing"),
        pytest.param({"phase": WAITING}, {}, False, False, id="it had another gate"),
        pytest.param({"phase": REFUSED}, {}, False, False, id="its annotations were invalid"),
        pytest.param({"phase": GangPhase.ELSEWHERE}, {}, False, False, id="it was not gated"),
        pytest.param({"phase": LET_GO}, {}, True, True, id="another planner ungated some members"),
        pytest.param(None, {}, False, False, id="its pods were in another gang"),
        pytest.param({"ready": EIGHT}, {"ready": SIXTEEN}, False, False, id="it requests more GPUs"),
        pytest.param({"ready": SIXTEEN}, {"ready": EIGHT}, True, True, id="it requests fewer GPUs"),
        pytest.param({"ready": SHARES}, {"ready": EIGHT}, False, False, id="shares of GPUs became whole GPUs"),
        pytest.param({"ready": EIGHT}, {"ready": (*EIGHT, IDLE)}, True, True, id="a member without GPUs joined"),
        pytest.param({"priority": -1}, {}, False, False, id="a member of lower priority left"),
        pytest.param({"priority": 1}, {}, True, True, id="a member of lower priority joined"),
    ],
)
def test_start_of_a_wait(before: dict[str, Any] | None, after: dict[str, Any], *, first: bool, waited: bool) -> None:
    """All its pods are older than all others. A gang that was incomplete or smaller comes last nonetheless."""
    queue = of(
        queued("other", created=100.0), *(() if before is None else (queued("x", created=OLD)._replace(**before),))
    )
    queue.update_gang(queued("x", created=OLD)._replace(**after), LATER)

    assert names(queue.ordered()) == (["x", "other"] if first else ["other", "x"])
    assert ["x" in names(tuple(queue.entitled_to_hold(at + 300))) for at in (NOW, LATER)] == [waited, True]


def test_a_gang_that_becomes_complete_comes_before_pods_that_are_created_after_that() -> None:
    queue = of(queued("x", created=OLD, phase=GATHERING), queued("other", created=100.0))
    queue.update_gang(queued("x", created=OLD), LATER)
    queue.update_gang(queued("a", created=101.0), LATER)

    assert names(queue.ordered()) == ["other", "x", "a"]


def test_gangs_whose_sizes_are_listed_after_their_pods_keep_their_order() -> None:
    """A new leader may list pods before the objects that define gang sizes."""
    queue = of(queued("x", created=OLD, phase=GATHERING), queued("other", created=100.0))
    queue.update_gang(queued("x", created=OLD), LATER - 1)

    assert names(queue.ordered()) == ["x", "other"]


@pytest.mark.parametrize(
    ("again", "order"),
    [
        pytest.param({}, ["x", "other"], id="unchanged"),
        pytest.param({"ready": SIXTEEN}, ["other", "x"], id="it requests more GPUs"),
        pytest.param({"priority": 1}, ["x", "other"], id="its priority is higher"),
    ],
)
def test_a_gang_that_requests_more_after_a_rollback_waits_again(again: dict[str, Any], order: list[str]) -> None:
    queue = of(queued("x", created=OLD, ready=EIGHT), queued("other", created=100.0))
    queue.update_gang(queued("x", created=OLD, phase=LET_GO), NOW)
    queue.mark_rolled_back(name("x"), NOW)
    queue.update_gang(queued("x", created=OLD, phase=GATHERING), NOW)
    queue.update_gang(queued("x", created=200.0, ready=EIGHT)._replace(**again), LATER)

    assert names(queue.ordered()) == order
    assert ("x" in names(tuple(queue.entitled_to_hold(NOW + 300)))) is (again == {})


def test_a_gang_that_started_without_some_members_keeps_its_position_for_as_many_only() -> None:
    queue = of(queued("x", created=OLD, ready=SIXTEEN), queued("other", created=100.0))
    queue.update_gang(queued("x", created=OLD, ready=EIGHT), NOW)
    queue.mark_started(name("x"))
    assert names(queue.ordered()) == ["x", "other"]

    queue.update_gang(queued("x", created=OLD, ready=SIXTEEN), LATER)

    assert names(queue.ordered()) == ["other", "x"]


def crew(*asked: tuple[int, int, int]) -> list[Member]:
    """Members by GPUs, priority and creation."""
    return [
        member(f"w-{at}", request=request(gpus, f"w-{at}"), priority=priority, created=float(created), minimum=1)
        for at, (gpus, priority, created) in enumerate(asked)
    ]


def assessed_gang(there: list[Member]) -> Gang:
    return gang_of(LLM, sorted(there, key=by_rank))


ASKED = st.tuples(st.integers(1, 8), st.integers(-2, 2), st.integers(100, 110))
FREE = st.tuples(st.just(0), st.integers(-2, 2), st.integers(0, 120))  # without GPUs, of any priority and age
PLACEHOLDER = st.tuples(st.integers(0, 8), st.integers(-2, 2), st.integers(0, 99))  # older than all members


@given(st.lists(ASKED, min_size=1, max_size=4), FREE | PLACEHOLDER, st.sampled_from([0.0, SETTLE_S]), st.data())
def test_no_further_member_moves_a_gang_forward(
    asked: list[tuple[int, int, int]], more: tuple[int, int, int], after_s: float, data: st.DataObject
) -> None:
    """Neither if a planner sees it join, nor if a planner starts after that."""
    others = data.draw(GANGS)
    plain, joined = assessed_gang(crew(*asked)), assessed_gang(crew(*asked, more))
    queue, begins = of(*others, plain), of(*others, joined)
    place = names(queue.ordered()).index(LLM.name)
    queue.update_gang(joined, NOW + after_s)

    assert plain.phase is joined.phase is GangPhase.QUEUED
    assert names(queue.ordered()).index(LLM.name) >= place
    assert names(begins.ordered()).index(LLM.name) >= place
    assert [each for each in queue.entitled_to_hold(NOW + 299) if each.gang.name == LLM] == []


def test_a_gang_recreated_after_a_rollback_keeps_its_waiting_time() -> None:
    queue = of(queued("a"))
    queue.mark_rolled_back(name("a"), NOW + 30)
    queue.remove_gang(name("a"))
    queue.update_gang(queued("a", created=NOW), NOW + 31)

    assert names(tuple(queue.entitled_to_hold(NOW + 300))) == ["a"]


GANGS = st.lists(
    st.builds(
        lambda text, priority, created: queued(text, priority=priority, created=float(created)),
        st.sampled_from("abcdefgh"),
        st.integers(-2, 2),
        st.integers(0, 5),
    ),
    unique_by=lambda gang: gang.name,
)


@given(GANGS, st.data())
def test_the_order_is_total_and_does_not_depend_on_arrival(gangs: list[Gang], data: st.DataObject) -> None:
    order = of(*gangs).ordered()

    assert of(*data.draw(st.permutations(gangs))).ordered() == order
    keys = [each.order for each in order]
    assert all(one < other for one, other in pairwise(keys))


@given(GANGS, st.integers(1, 3))
def test_each_due_gang_is_in_one_batch(gangs: list[Gang], most: int) -> None:
    assert [each for batch in batches(of(*gangs), most=most) for each in batch] == names(of(*gangs).ordered())


class Cluster:
    """Nodes of one GPU each, all busy at first; every gang takes one GPU per member and runs for a while."""

    def __init__(self, nodes: int, lasts: int) -> None:
        self.busy = {node: lasts * (node + 1) / nodes for node in range(nodes)}  # until when
        self.nodes = range(nodes)
        self.held: frozenset[int] = frozenset()

    def tick(self, now: float) -> None:
        self.busy = {node: until for node, until in self.busy.items() if until > now}

    def place(self, size: int, until: float, *, holder: bool) -> bool:
        free = [node for node in self.nodes if node not in self.busy and (holder or node not in self.held)]
        if len(free) >= size:
            self.busy |= dict.fromkeys(free[:size], until)
        return len(free) >= size


def simulate(*, size: int, nodes: int, lasts: int, every: int, hold: bool) -> float | None:
    """Return when a big gang starts in a stream of gangs of one member; None: not within an hour. In seconds."""
    queue, cluster, holder = GangQueue(QueueTiming(patience_s=300.0)), Cluster(nodes, lasts), ""
    queue.update_gang(queued("big", ready=tuple(members(size)), size=size, created=0.0), 0.0)
    for now in range(0, 3600, every):
        cluster.tick(now)
        for number in range(2):
            queue.update_gang(queued(f"small-{now}-{number}", ready=tuple(members(1)), size=1, created=float(now)), now)
        for (each,) in queue.batches(now, now):
            gang = each.gang
            if cluster.place(len(gang.ready), now + lasts, holder=gang.name.name == holder):
                if gang.name.name == "big":
                    return float(now)
                queue.update_gang(gang._replace(phase=GangPhase.RUNNING), now)
            else:
                queue.mark_unplaced(gang.name, now)
        waits = [each for each in islice(queue.entitled_to_hold(now), 1) if each.unfit_state is not None]
        for each in waits if hold and not holder else ():
            endings = [
                NodeDeadline(str(node), cluster.busy.get(node, 0.0), node in cluster.busy) for node in cluster.nodes
            ]
            found = find_hold_nodes(endings, lambda chosen, size=size: chosen if len(chosen) >= size else None)  # type: ignore[misc]
            assert found is not None
            holder, cluster.held = each.gang.name.name, frozenset(map(int, found.nodes))
    return None


def test_small_gangs_would_starve_a_big_one() -> None:
    assert simulate(size=8, nodes=10, lasts=50, every=10, hold=False) is None


@settings(max_examples=20, deadline=None)  # each is an hour of a cluster
@given(size=st.integers(2, 10), lasts=st.integers(20, 600), every=st.sampled_from([10, 20]))
def test_no_gang_starves(size: int, lasts: int, every: int) -> None:
    started = simulate(size=size, nodes=10, lasts=lasts, every=every, hold=True)

    assert started is not None
    assert started <= 300 + lasts + 2 * every
