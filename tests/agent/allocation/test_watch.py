"""What is news, and how a kubelet's restart is kept from looking like pods that come and go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.allocation.client import PodResourcesError
from agent.allocation.watch import KEEP_S, SETTLE_S, Reading, Watch
from agent.allocation.wire import Held

A = Held("default", "a", "main", "nvidia.com/gpu", ("GPU-1",))
B = Held("default", "b", "main", "nvidia.com/gpu", ("GPU-2", "GPU-3"))
DOWN = "/run/kubelet.sock: Connection refused"


def watching(*answers: tuple[Held, ...] | str) -> Watch:
    """A watch whose kubelet gives these answers, one a poll; a text is a failure."""
    coming: Iterator[tuple[Held, ...] | str] = iter(answers)

    def ask() -> tuple[Held, ...]:
        answer = next(coming)
        if isinstance(answer, str):
            raise PodResourcesError(answer)
        return answer

    return Watch(ask)


def test_only_changes_are_told() -> None:
    watch = watching((), (A,), (A,), (A, B), (B._replace(devices=("GPU-3", "GPU-2")), A), (B,))

    assert [watch.poll(now) for now in range(6)] == [
        Reading(frozenset()),
        Reading(frozenset({A})),
        None,
        Reading(frozenset({A, B})),
        None,
        Reading(frozenset({B})),
    ]


def test_a_socket_that_was_never_there_is_told_once_with_the_reason() -> None:
    watch = watching(DOWN, DOWN, (A,))

    assert [watch.poll(now) for now in range(3)] == [Reading(None, DOWN), None, Reading(frozenset({A}))]


def test_a_kubelet_that_is_away_is_remembered_for_a_while_and_then_not_known() -> None:
    watch = watching((A,), DOWN, DOWN, DOWN)

    assert [watch.poll(now) for now in (0.0, 1.0, KEEP_S, KEEP_S + 1)] == [
        Reading(frozenset({A})),
        Reading(frozenset({A}), DOWN),
        None,
        Reading(None, DOWN),
    ]


@pytest.mark.parametrize(
    ("later", "believed"),
    [
        pytest.param(SETTLE_S - 1, frozenset({A, B}), id="its pods may not be there yet"),
        pytest.param(SETTLE_S, frozenset({B}), id="it has settled"),
    ],
)
def test_a_kubelet_that_came_back_is_believed_at_once_what_is_new_and_later_what_is_gone(
    later: float, believed: frozenset[Held]
) -> None:
    watch = watching((A,), DOWN, (), (B,), (B,))
    watch.poll(0.0)

    assert watch.poll(1.0) == Reading(frozenset({A}), DOWN)
    assert watch.poll(2.0) == Reading(frozenset({A}))
    assert watch.poll(3.0) == Reading(frozenset({A, B}))
    assert (watch.poll(2.0 + later) or Reading(frozenset({A, B}))).held == believed
