"""Which nodes changed."""

from __future__ import annotations

from scheduler_core.cache.change_log import ChangeLog


def test_whoever_comes_back_learns_what_changed_since() -> None:
    changes = ChangeLog()
    changes.add_names(["a", "b"])
    mark = changes.mark
    changes.add_names(["b", "c"])

    assert changes.names_since(mark) == {"b", "c"}
    assert changes.names_since(0) == {"a", "b", "c"}
    assert changes.names_since(changes.mark) == set()


def test_who_is_too_far_behind_is_told_so() -> None:
    changes = ChangeLog(most=2)
    for name in "abcde":
        changes.add_names([name])

    assert changes.mark == 5
    assert changes.names_since(2) is None
    assert changes.names_since(3) == {"d", "e"}
