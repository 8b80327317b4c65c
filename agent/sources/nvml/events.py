"""Waits for the driver to report trouble: XIDs, lost GPUs. Runs on a thread of its own, for as long as it is wanted.

An event only says that something happened; what is true is asked of NVML afterwards. Events before the registration
are lost, which is why the agent also looks at intervals. While this waits NVML stays initialised, so the kernel module
stays in use and cannot be unloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.sources.nvml.calls import Calls, Library

WAIT_MS = 5000
AGAIN_S = 30.0  # after the set broke, or where nothing could be registered
QUIET_S = 5.0  # after an event that NVML may repeat at once
# Errors of a program and not of the hardware, by NVIDIA's XID catalogue; its own device plugin ignores the same ones.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_XID = 8  # nvmlEventTypeXidCriticalError


def listen(lib: Any, wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
    """Call ``wake("xid")`` and ``wake("lost")`` until ``pause`` says to stop; never raises for what NVML does.

    ``lib`` is the module ``pynvml``; ``pause(seconds)`` waits, and is True when it is time to stop.
    """
    calls = Calls(Library.of(lib))
    while not pause(0):
        if calls.attempt("nvmlInit_v2")[1] is None:
            try:
                _wait_on_all(calls, wake, pause)
            finally:
                calls.attempt("nvmlShutdown")
        if pause(AGAIN_S):
            return


def _wait_on_all(calls: Calls, wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
    """One event set, until it is of no more use."""
    events, error = calls.attempt("nvmlEventSetCreate")
    if error is not None:
        return
    try:
        if _register(calls, events):
            _wait(calls, events, wake, pause)
    finally:
        calls.attempt("nvmlEventSetFree", events)


def _register(calls: Calls, events: Any) -> bool:
    """Whether any GPU reports. One that does not support it, or is lost, leaves the set usable for the others."""
    registered = 0
    for index in range(calls.attempt("nvmlDeviceGetCount_v2")[0] or 0):
        handle, error = calls.attempt("nvmlDeviceGetHandleByIndex_v2", index)
        if error is None:
            registered += calls.attempt("nvmlDeviceRegisterEvents", handle, _XID, events)[1] is None
    return registered > 0


def _wait(calls: Calls, events: Any, wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
    while not pause(0):
        event, error = calls.attempt("nvmlEventSetWait_v2", events, WAIT_MS)
        if error == "TIMEOUT":
            continue
        if error is None and event.eventData in APPLICATION_XIDS:
            continue
        wake("lost" if error == "GPU_IS_LOST" else "xid" if error is None else "driver")
        # UNKNOWN and whatever else: the set is broken, and the driver maybe gone. A lost GPU is reported by every wait.
        if error not in (None, "GPU_IS_LOST") or pause(QUIET_S):
            return
