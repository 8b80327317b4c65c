"""Durations as Go and Kubernetes write them: ``90s``, ``1h30m``, ``1.5h``. Pure."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|us|ns)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def parse_duration(text: str) -> float | None:
    """Return the duration in seconds; None if the text is not a duration."""
    if _WHOLE.fullmatch(text) is None:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
