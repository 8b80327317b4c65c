"""Which nodes changed."""

from __future__ import annotations

from scheduler_core.cache.change_log import Changes


def test_whoever_comes_back_learns_what_changed_since() -> None:
    changes = Changes()
    changes.add(["a", "b"])
    mark = changes.mark
    changes.add(["b", "c"])

    assert changes.since(mark) == {"b", "c"}
    assert changes.since(0) == {"a", "b", "c"}
    assert changes.since(changes.mark) == set()


def test_who_is_too_far_behind_is_told_so() -> None:
    changes = Changes(most=2)
    for name in "abcde":
        changes.add([name])

    assert changes.mark == 5
    assert changes.since(2) is None
    assert changes.since(3) == {"d", "e"}
