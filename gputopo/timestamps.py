"""Times as the API server writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(at: float) -> str:
    """``2026-11-18T11:06:40Z``. ``at``: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def since_epoch(text: str | None) -> float | None:
    """In seconds since 1970; None where it is no time."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
