"""Waiting for driver events, through the real bindings with a fake driver."""

from __future__ import annotations

import pytest

from agent.sources.nvml.events import APPLICATION_XIDS, QUIET_S, RETRY_S, listen_for_events
from tests.agent.sources.fake_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNKNOWN,
    FakeDriver,
    FakeGpu,
    Fault,
    plug,
)

TWO = (FakeGpu(), FakeGpu(minor=1))


class RecordedWakeUps:
    """The wake-ups and waits; ``pause`` returns True after a number of waits."""

    def __init__(self, pauses: int) -> None:
        self.reasons: list[str] = []
        self.paused: list[float] = []
        self._left = pauses

    def pause(self, seconds: float) -> bool:
        if seconds:
            self.paused.append(seconds)
        return len(self.paused) >= self._left


def listening(driver: FakeDriver, pauses: int) -> RecordedWakeUps:
    wakes = RecordedWakeUps(pauses)
    listen_for_events(plug(driver), wakes.reasons.append, wakes.pause)
    return wakes


def driver(*events: tuple[int, int], gpus: tuple[FakeGpu, ...] = TWO, init: int = SUCCESS) -> FakeDriver:
    made = FakeDriver(*gpus, init=init)
    made.events = [*events]
    return made


def test_an_xid_starts_a_pass_and_a_timeout_does_not() -> None:
    one = driver((TIMEOUT, 0), (TIMEOUT, 0), (SUCCESS, 79))

    wakes = listening(one, pauses=1)

    assert (wakes.reasons, wakes.paused) == (["xid"], [QUIET_S, RETRY_S])
    assert one.registered == [0, 1]
    assert (one.sets, one.initialised) == (0, 0)


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_application_errors_are_ignored(xid: int) -> None:
    assert listening(driver((SUCCESS, xid), (SUCCESS, 74)), pauses=1).reasons == ["xid"]


def test_a_lost_gpu_starts_a_pass_and_the_event_set_is_kept() -> None:
    one = driver((GPU_IS_LOST, 0), (GPU_IS_LOST, 0), (SUCCESS, 74))

    assert listening(one, pauses=3).reasons == ["lost", "lost", "xid"]
    assert one.calls["nvmlEventSetCreate"] == 1


def test_a_failed_event_set_is_replaced() -> None:
    one = driver((UNKNOWN, 0), (SUCCESS, 74))

    wakes = listening(one, pauses=2)

    assert (wakes.reasons, wakes.paused) == (["driver", "xid"], [RETRY_S, QUIET_S, RETRY_S])
    assert (one.calls["nvmlEventSetCreate"], one.sets, one.initialised) == (2, 0, 0)


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param({"nvmlDeviceRegisterEvents": NOT_SUPPORTED}, id="it does not support events"),
        pytest.param({"nvmlDeviceGetHandleByIndex_v2": GPU_IS_LOST}, id="it is lost"),
    ],
)
def test_a_gpu_that_cannot_report_leaves_the_set_usable_for_the_others(fails: dict[str, int]) -> None:
    one = driver((SUCCESS, 74), gpus=(FakeGpu(fails=fails), FakeGpu()))

    assert listening(one, pauses=1).reasons == ["xid"]
    assert one.registered == [1]


def test_where_no_gpu_reports_it_is_tried_again_later() -> None:
    one = driver((SUCCESS, 74), gpus=(FakeGpu(fails={"nvmlDeviceRegisterEvents": NOT_SUPPORTED}),))

    wakes = listening(one, pauses=2)

    assert (wakes.reasons, wakes.paused) == ([], [RETRY_S, RETRY_S])
    assert (one.sets, one.initialised) == (0, 0)


def test_a_driver_that_is_not_there_is_tried_again_later() -> None:
    one = driver(init=DRIVER_NOT_LOADED)

    assert listening(one, pauses=2).paused == [RETRY_S, RETRY_S]
    assert one.initialised == 0


def test_a_driver_without_event_sets_is_tried_again_later() -> None:
    one = FakeDriver(*TWO, missing=frozenset({"nvmlEventSetCreate"}))

    assert listening(one, pauses=1).paused == [RETRY_S]
    assert one.initialised == 0


FUNCTIONS = (
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("times", [1, float("inf")], ids=["once", "for ever"])
def test_no_error_of_any_call_ends_the_waiting(function: str, times: float) -> None:
    codes = {*range(1, 31), UNKNOWN, 4321} - ({TIMEOUT} if function == "nvmlEventSetWait_v2" else set())
    for code in sorted(codes):
        one = driver(*[(SUCCESS, 79)] * 4)
        one.faults = [Fault(function, code, times=times)]

        wakes = listening(one, pauses=4)

        assert len(wakes.paused) in (4, 5)
        if times == 1 and function not in ("nvmlShutdown", "nvmlEventSetFree"):
            assert set(wakes.reasons) >= {"xid"}
