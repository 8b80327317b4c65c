"""Assumed pods: answered by Filter, and not shown by the watch yet."""

from __future__ import annotations

from math import inf

from scheduler_core.cache.assumed_pods import (
    DELETED_S,
    MAX_DELETED,
    MAX_NODE_NAMES,
    MAX_PODS,
    AssumedPod,
    AssumedPods,
)
from tests.scheduler_core.builders import occupant

A, B = occupant("a", 4), occupant("b", 4)
ONE, TWO = frozenset({"node-1"}), frozenset({"node-1", "node-2"})


def test_pod_with_one_node_is_assumed_there() -> None:
    held = AssumedPods()

    assert held.add_pod(A, ONE, 30.0) == ()
    assert list(held) == [held.get_pod("uid-a")] == [AssumedPod(A, ONE, 30.0)]
    assert [list(held.pods_on(name)) for name in ("node-1", "node-2")] == [[A], []]
    assert held.on_several_nodes == ()


def test_pod_with_several_nodes_is_in_flight() -> None:
    held = AssumedPods()
    held.add_pod(A, TWO, 30.0)

    assert held.on_several_nodes == (AssumedPod(A, TWO, 30.0),)
    assert list(held.pods_on("node-1")) == []
    assert held.drop_pod("uid-a") == (AssumedPod(A, TWO, 30.0),)
    assert [len(held), len(held.on_several_nodes)] == [0, 0]


def test_next_filter_of_a_pod_replaces_its_assumption() -> None:
    held = AssumedPods()
    held.add_pod(A, ONE, 30.0)

    assert held.add_pod(A, {"node-2"}, 35.0) == (AssumedPod(A, ONE, 30.0),)
    assert list(held) == [AssumedPod(A, frozenset({"node-2"}), 35.0)]


def test_watch_shows_the_pod_bound_or_gone() -> None:
    held = AssumedPods()
    held.add_pod(A, ONE, 30.0)
    held.add_pod(B, ONE, 30.0)

    assert held.drop_pod("uid-c") == ()
    assert held.drop_pod("uid-a") == (AssumedPod(A, ONE, 30.0),)
    assert list(held.pods_on("node-1")) == [B]
    assert (held.get_pod("uid-a"), held.get_pod("uid-b")) == (None, AssumedPod(B, ONE, 30.0))


def test_assumptions_expire() -> None:
    held = AssumedPods()
    held.add_pod(A, ONE, 30.0)
    held.add_pod(B, ONE, inf)

    assert held.expire_pods(29.0) == ()
    assert held.expire_pods(30.0) == (AssumedPod(A, ONE, 30.0),)
    assert held.expire_pods(1e12) == ()
    assert len(held) == 1


def test_the_oldest_pods_are_dropped_beyond_the_limit() -> None:
    held = AssumedPods()
    for at in range(MAX_PODS + 2):
        held.add_pod(A._replace(uid=f"uid-{at}"), ONE, 30.0)

    assert [each.pod.uid for each in held] == [f"uid-{at}" for at in range(2, MAX_PODS + 2)]


def test_the_oldest_pods_in_flight_are_dropped_beyond_the_limit_of_node_names() -> None:
    held = AssumedPods()
    names = {f"node-{at}" for at in range(MAX_NODE_NAMES // 8)}
    held.add_pod(B, names, 30.0)
    held.drop_pod("uid-b")
    held.add_pod(B, ONE, 30.0)
    ended = [each.pod.uid for at in range(10) for each in held.add_pod(A._replace(uid=f"uid-{at}"), names, 30.0)]

    assert ended == ["uid-0", "uid-1"]
    assert [each.pod.uid for each in held] == ["uid-b", *(f"uid-{at}" for at in range(2, 10))]


def test_a_dropped_pod_may_still_be_in_flight() -> None:
    held = AssumedPods()
    held.expire_pods(10.0)
    held.add_pod(A, ONE, 30.0)
    for at in range(MAX_PODS):
        held.add_pod(A._replace(uid=f"later-{at}"), ONE, 60.0)

    assert held.has_overflowed
    held.expire_pods(29.0)
    assert held.has_overflowed
    held.expire_pods(30.0)
    assert not held.has_overflowed


def test_a_dropped_nominated_pod_is_known_to_the_api_server() -> None:
    held = AssumedPods()
    held.add_pod(A, ONE, inf)
    for at in range(MAX_PODS):
        held.add_pod(A._replace(uid=f"later-{at}"), ONE, 60.0)

    held.expire_pods(20.0)
    assert not held.has_overflowed


def test_the_last_deleted_pods_are_remembered() -> None:
    held = AssumedPods()
    held.add_pod(A, ONE, 30.0)

    assert held.delete_pod("uid-a") == (AssumedPod(A, ONE, 30.0),)
    assert [held.delete_pod(f"uid-{at}") for at in range(MAX_DELETED - 1)] == [()] * (MAX_DELETED - 1)
    assert (held.was_deleted("uid-a"), held.was_deleted("uid-b")) == (True, False)
    held.delete_pod("uid-b")
    assert (held.was_deleted("uid-a"), held.was_deleted("uid-0"), held.was_deleted("uid-b")) == (False, True, True)


def test_a_deleted_pod_is_remembered_for_a_while() -> None:
    """Without a limit in time, memory would grow for an hour after a start."""
    held = AssumedPods()
    held.expire_pods(100.0)
    held.delete_pod("uid-a")
    held.expire_pods(100.0 + DELETED_S / 2)
    held.delete_pod("uid-b")

    held.expire_pods(99.0 + DELETED_S)
    assert held.was_deleted("uid-a")
    held.expire_pods(100.0 + DELETED_S)
    assert (held.was_deleted("uid-a"), held.was_deleted("uid-b")) == (False, True)
