"""Changes are returned once, and a restart of the kubelet does not look like pods that end and start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.allocation.client import PodResourcesError
from agent.allocation.kubelet_reading import KubeletReading
from agent.allocation.watch import KEEP_S, KUBELET_S, SETTLE_S, AllocationReport, AllocationWatch
from agent.allocation.wire import HeldDevices

A = HeldDevices("default", "a", "main", "nvidia.com/gpu", ("GPU-1",))
B = HeldDevices("default", "b", "main", "nvidia.com/gpu", ("GPU-2", "GPU-3"))
DOWN = "/run/kubelet.sock: Connection refused"


def watching(*answers: tuple[HeldDevices, ...] | str) -> AllocationWatch:
    """A watch whose kubelet returns these reports, one per poll; a text is an error."""
    coming: Iterator[tuple[HeldDevices, ...] | str] = iter(answers)

    def ask() -> tuple[HeldDevices, ...]:
        answer = next(coming)
        if isinstance(answer, str):
            raise PodResourcesError(answer)
        return answer

    return AllocationWatch(ask)


def test_only_changes_are_returned() -> None:
    watch = watching((), (A,), (A,), (A, B), (B._replace(devices=("GPU-3", "GPU-2")), A), (B,))

    assert [watch.poll(now) for now in range(6)] == [
        AllocationReport(frozenset()),
        AllocationReport(frozenset({A})),
        None,
        AllocationReport(frozenset({A, B})),
        None,
        AllocationReport(frozenset({B})),
    ]


def test_a_missing_socket_is_reported_once_with_the_reason() -> None:
    watch = watching(DOWN, DOWN, (A,))

    assert [watch.poll(now) for now in range(3)] == [
        AllocationReport(None, DOWN),
        None,
        AllocationReport(frozenset({A})),
    ]


def test_allocations_are_kept_for_a_while_without_a_kubelet_and_then_unknown() -> None:
    watch = watching((A,), DOWN, DOWN, DOWN)

    assert [watch.poll(now) for now in (0.0, 1.0, KEEP_S, KEEP_S + 1)] == [
        AllocationReport(frozenset({A})),
        AllocationReport(frozenset({A}), DOWN),
        None,
        AllocationReport(None, DOWN),
    ]


@pytest.mark.parametrize(
    ("later", "believed"),
    [
        pytest.param(SETTLE_S - 1, frozenset({A, B}), id="its pods may not be there yet"),
        pytest.param(SETTLE_S, frozenset({B}), id="it has settled"),
    ],
)
def test_after_a_kubelet_restart_new_devices_count_at_once_and_missing_ones_later(
    later: float, believed: frozenset[HeldDevices]
) -> None:
    watch = watching((A,), DOWN, (), (B,), (B,))
    watch.poll(0.0)

    assert watch.poll(1.0) == AllocationReport(frozenset({A}), DOWN)
    assert watch.poll(2.0) == AllocationReport(frozenset({A}))
    assert watch.poll(3.0) == AllocationReport(frozenset({A, B}))
    assert (watch.poll(2.0 + later) or AllocationReport(frozenset({A, B}))).held == believed


def test_the_kubelet_is_read_every_five_seconds_and_whenever_allocations_change() -> None:
    reads: list[int] = []

    def read() -> KubeletReading:
        reads.append(len(reads))
        return KubeletReading(config_error=str(len(reads)))

    held = iter(((), (), (A,), (A,), (A,)))
    watch = AllocationWatch(lambda: next(held), read_kubelet=read)

    counts = []
    for now in (0.0, 1.0, 2.0, 3.0, 2.0 + KUBELET_S):
        watch.poll(now)
        counts.append(len(reads))

    assert counts == [1, 1, 2, 2, 3]
