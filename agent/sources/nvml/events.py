"""Waits for driver events (XIDs, lost GPUs) on a thread of its own.

An event only says that something happened; the next pass reads the new state. Events before the registration are lost,
which is why passes also run at intervals. NVML stays initialised while this waits, so the kernel module is in use and
cannot be unloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.sources.nvml.calls import NvmlCalls, NvmlLibrary

WAIT_MS = 5000
RETRY_S = 30.0  # after the event set failed, or where no GPU could be registered
QUIET_S = 5.0  # after an event, because NVML may repeat it at once
# Errors of applications, not of hardware (NVIDIA's XID catalogue); NVIDIA's device plugin ignores the same XIDs.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_XID = 8  # nvmlEventTypeXidCriticalError


def listen_for_events(lib: Any, wake: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """Call ``wake("xid")`` and ``wake("lost")`` until ``wait`` returns True. Errors of NVML are not raised.

    ``lib`` is the module ``pynvml``; ``wait(seconds)`` waits, and returns True when the thread must stop.
    """
    calls = NvmlCalls(NvmlLibrary.from_module(lib))
    while not wait(0):
        if calls.try_call("nvmlInit_v2")[1] is None:
            try:
                _wait_on_new_set(calls, wake, wait)
            finally:
                calls.try_call("nvmlShutdown")
        if wait(RETRY_S):
            return


def _wait_on_new_set(calls: NvmlCalls, wake: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """Wait on one event set until it fails."""
    events, error = calls.try_call("nvmlEventSetCreate")
    if error is not None:
        return
    try:
        if _register_gpus(calls, events):
            _wait_for_events(calls, events, wake, wait)
    finally:
        calls.try_call("nvmlEventSetFree", events)


def _register_gpus(calls: NvmlCalls, events: Any) -> bool:
    """Return whether any GPU reports events. A GPU that does not leaves the set usable for the others."""
    registered = 0
    for index in range(calls.try_call("nvmlDeviceGetCount_v2")[0] or 0):
        handle, error = calls.try_call("nvmlDeviceGetHandleByIndex_v2", index)
        if error is None:
            registered += calls.try_call("nvmlDeviceRegisterEvents", handle, _XID, events)[1] is None
    return registered > 0


def _wait_for_events(calls: NvmlCalls, events: Any, wake: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    while not wait(0):
        event, error = calls.try_call("nvmlEventSetWait_v2", events, WAIT_MS)
        if error == "TIMEOUT":
            continue
        if error is None and event.eventData in APPLICATION_XIDS:
            continue
        wake("lost" if error == "GPU_IS_LOST" else "xid" if error is None else "driver")
        # After UNKNOWN and other errors the set is unusable, the driver maybe unloaded. Every wait reports a lost GPU.
        if error not in (None, "GPU_IS_LOST") or wait(QUIET_S):
            return
