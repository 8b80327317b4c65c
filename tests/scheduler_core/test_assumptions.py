"""What has been promised and not been seen yet."""

from __future__ import annotations

from scheduler_core.assumptions import LIFETIME_S, MOST, Assumption, Assumptions, assume, dropped, expired
from tests.scheduler_core.builders import occupant

A, B = occupant("a", 4), occupant("b", 4)


def test_assumed_until_its_time_is_over() -> None:
    held = assume(Assumptions(), A, "node-1", now=100.0)

    assert held == Assumptions({"uid-a": Assumption(A, "node-1", 100.0 + LIFETIME_S)})
    assert list(held.on_nodes(100.0 + LIFETIME_S - 1, without="")) == [("node-1", A)]
    assert list(held.on_nodes(100.0 + LIFETIME_S, without="")) == []


def test_pod_that_is_asked_about_again_is_not_in_its_own_way() -> None:
    held = assume(assume(Assumptions(), A, "node-1", 0.0), B, "node-2", 0.0)

    assert list(held.on_nodes(1.0, without="uid-a")) == [("node-2", B)]


def test_next_filter_of_a_pod_replaces_what_was_assumed() -> None:
    held = assume(assume(Assumptions(), A, "node-1", 0.0), A, "node-2", 5.0)

    assert held == Assumptions({"uid-a": Assumption(A, "node-2", 5.0 + LIFETIME_S)})


def test_watch_shows_the_pod_bound_or_gone() -> None:
    held = assume(Assumptions(), A, "node-1", 0.0)

    assert dropped(held, "uid-a") == Assumptions()
    assert dropped(held, "uid-b") is held


def test_expired() -> None:
    held = assume(assume(Assumptions(), A, "node-1", 0.0), B, "node-2", 20.0)

    assert expired(held, LIFETIME_S - 1) is held
    assert expired(held, LIFETIME_S) == assume(Assumptions(), B, "node-2", 20.0)
    assert assume(held, B, "node-3", 40.0) == assume(Assumptions(), B, "node-3", 40.0)


def test_memory_is_bounded_and_the_oldest_goes() -> None:
    held = Assumptions()
    for at in range(MOST + 2):
        held = assume(held, A._replace(uid=f"uid-{at}"), "node", 0.0)

    assert list(held.by_uid) == [f"uid-{at}" for at in range(2, MOST + 2)]
