"""What has been answered and not been seen yet."""

from __future__ import annotations

from math import inf

from scheduler_core.cache.assumed_pods import MOST, MOST_DOUBTS, Assumption, Assumptions
from tests.scheduler_core.builders import occupant

A, B = occupant("a", 4), occupant("b", 4)
ONE, TWO = frozenset({"node-1"}), frozenset({"node-1", "node-2"})


def test_pod_with_one_node_is_taken_to_be_there() -> None:
    held = Assumptions()

    assert held.assume(A, ONE, 30.0) == ()
    assert list(held) == [held.of("uid-a")] == [Assumption(A, ONE, 30.0)]
    assert [list(held.on(name)) for name in ("node-1", "node-2")] == [[A], []]
    assert held.doubtful == ()


def test_pod_with_several_nodes_is_in_doubt() -> None:
    held = Assumptions()
    held.assume(A, TWO, 30.0)

    assert held.doubtful == (Assumption(A, TWO, 30.0),)
    assert list(held.on("node-1")) == []
    assert held.drop("uid-a") == (Assumption(A, TWO, 30.0),)
    assert [len(held), len(held.doubtful)] == [0, 0]


def test_next_filter_of_a_pod_replaces_what_was_assumed() -> None:
    held = Assumptions()
    held.assume(A, ONE, 30.0)

    assert held.assume(A, {"node-2"}, 35.0) == (Assumption(A, ONE, 30.0),)
    assert list(held) == [Assumption(A, frozenset({"node-2"}), 35.0)]


def test_watch_shows_the_pod_bound_or_gone() -> None:
    held = Assumptions()
    held.assume(A, ONE, 30.0)
    held.assume(B, ONE, 30.0)

    assert held.drop("uid-c") == ()
    assert held.drop("uid-a") == (Assumption(A, ONE, 30.0),)
    assert list(held.on("node-1")) == [B]
    assert (held.of("uid-a"), held.of("uid-b")) == (None, Assumption(B, ONE, 30.0))


def test_what_is_too_old_ends() -> None:
    held = Assumptions()
    held.assume(A, ONE, 30.0)
    held.assume(B, ONE, inf)

    assert held.expire(29.0) == ()
    assert held.expire(30.0) == (Assumption(A, ONE, 30.0),)
    assert held.expire(1e12) == ()
    assert len(held) == 1


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    held = Assumptions()
    for at in range(MOST + 2):
        held.assume(A._replace(uid=f"uid-{at}"), ONE, 30.0)

    assert [each.pod.uid for each in held] == [f"uid-{at}" for at in range(2, MOST + 2)]


def test_doubts_about_very_many_nodes_are_bounded_and_the_oldest_go() -> None:
    held = Assumptions()
    names = {f"node-{at}" for at in range(MOST_DOUBTS // 8)}
    held.assume(B, names, 30.0)
    held.drop("uid-b")
    held.assume(B, ONE, 30.0)
    ended = [each.pod.uid for at in range(10) for each in held.assume(A._replace(uid=f"uid-{at}"), names, 30.0)]

    assert ended == ["uid-0", "uid-1"]
    assert [each.pod.uid for each in held] == ["uid-b", *(f"uid-{at}" for at in range(2, 10))]


def test_who_was_forgotten_may_still_be_on_its_way() -> None:
    held = Assumptions()
    held.expire(10.0)
    held.assume(A, ONE, 30.0)
    for at in range(MOST):
        held.assume(A._replace(uid=f"later-{at}"), ONE, 60.0)

    assert held.forgetful
    held.expire(29.0)
    assert held.forgetful
    held.expire(30.0)
    assert not held.forgetful


def test_of_who_is_forgotten_though_nominated_the_api_server_tells() -> None:
    held = Assumptions()
    held.assume(A, ONE, inf)
    for at in range(MOST):
        held.assume(A._replace(uid=f"later-{at}"), ONE, 60.0)

    held.expire(20.0)
    assert not held.forgetful
