"""Times as the API server writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()


def format_timestamp(at: float) -> str:
    """Return ``2026-11-18T11:06:40Z``. ``at``: seconds since 1970; after the year 9999: its last second."""
    return datetime.fromtimestamp(min(at, _LAST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_timestamp(at: float) -> str:
    """Return ``2026-11-18T11:06:40.750000Z``, as Leases have it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str | None, default_zone: tzinfo | None = None) -> float | None:
    """Return the seconds since 1970; None if the text is not a time, or has no time zone and there is no default."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    if found is None:
        return None
    if found.tzinfo is None:
        return None if default_zone is None else found.replace(tzinfo=default_zone).timestamp()
    return found.timestamp()
