"""The log of changed nodes."""

from __future__ import annotations

from scheduler_core.cache.change_log import ChangeLog


def test_names_since_a_mark_are_the_changes_after_it() -> None:
    changes = ChangeLog()
    changes.add_names(["a", "b"])
    mark = changes.mark
    changes.add_names(["b", "c"])

    assert changes.names_since(mark) == {"b", "c"}
    assert changes.names_since(0) == {"a", "b", "c"}
    assert changes.names_since(changes.mark) == set()


def test_a_mark_too_far_behind_gives_none() -> None:
    changes = ChangeLog(most=2)
    for name in "abcde":
        changes.add_names([name])

    assert changes.mark == 5
    assert changes.names_since(2) is None
    assert changes.names_since(3) == {"d", "e"}


def test_a_node_that_changes_often_is_kept_once() -> None:
    """Else the memory of a small cluster would grow for an hour."""
    changes = ChangeLog(most=2)
    changes.add_names(["a", "b"])
    mark = changes.mark
    for _ in range(1000):
        changes.add_names(["c", "b"])

    assert changes.names_since(mark) == {"b", "c"}
    assert changes.names_since(0) == {"a", "b", "c"}
