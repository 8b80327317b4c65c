"""Reasons by node, where most nodes have the same reason."""

from __future__ import annotations

import pytest

from scheduler_core.evaluation.rejections import Rejections, distinct_reasons

NAMES = frozenset({"a", "b", "c", "d"})
REFUSED = Rejections(NAMES, "full", {"b": "old", "c": "small"})


def test_rejections_are_a_mapping() -> None:
    plain = {"a": "full", "b": "old", "c": "small", "d": "full"}

    assert plain == REFUSED == REFUSED.as_dict()
    assert (len(REFUSED), set(REFUSED)) == (4, set(plain))
    assert str(REFUSED).count("full") == 2
    with pytest.raises(KeyError):
        REFUSED["e"]


def test_some_reasons_can_be_replaced() -> None:
    assert REFUSED.with_reasons({"a": "old", "b": "new"}) == {"a": "old", "b": "new", "c": "small", "d": "full"}


@pytest.mark.parametrize(
    ("reason", "names"),
    [("full", {"a", "d"}), ("old", {"b"}), ("new", set())],
    ids=["the usual one", "another", "none has it"],
)
def test_names_by_reason(reason: str, names: set[str]) -> None:
    assert REFUSED.names_with_reason(reason) == names


@pytest.mark.parametrize(
    ("refused", "found"),
    [
        pytest.param(REFUSED, {"full", "old", "small"}, id="with the usual one"),
        pytest.param(REFUSED.with_reasons({"a": "old", "d": "old"}), {"old", "small"}, id="none has the usual one"),
        pytest.param(Rejections(NAMES, "full", {}), {"full"}, id="all have it"),
        pytest.param({"a": "x", "b": "x"}, {"x"}, id="of a plain mapping"),
    ],
)
def test_all_reasons(refused: dict[str, str], found: set[str]) -> None:
    assert distinct_reasons(refused) == found
