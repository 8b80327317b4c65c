"""The work of a step as a number of calls, which other load on the machine does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def count_calls(step: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, the step calls."""
    calls = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(before)
    return calls
