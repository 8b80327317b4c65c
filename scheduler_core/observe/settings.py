"""The settings of ``gputopo observe``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputopo.process.settings import (
    Setting,
    log_setting,
    parse_address,
    parse_one_of,
    parse_seconds,
    parse_unless_off,
    read_values,
)


class ObserverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The observer's settings; ``TABLE`` describes each."""

    output: str
    for_s: float | None
    every_s: float | None
    listen: tuple[str, int] | None
    log: str


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ObserverSettings:
    """Return the settings. ``flags``: by field, None if not given. Raises ``SettingError``."""
    return ObserverSettings(**read_values(TABLE, flags, environ))


TABLE = (
    Setting(
        "output",
        "-o, --output",
        "GPUTOPO_OUTPUT",
        "text",
        "text|jsonl",
        "Output on standard output: sentences and a summary, or one JSON document per line.",
        parse_one_of("text", "jsonl"),
    ),
    Setting(
        "for_s",
        "--for",
        "GPUTOPO_FOR",
        "off",
        "SECONDS|off",
        "End after this time, with a summary. 0s: only report the current placements.",
        parse_unless_off(parse_seconds(0)),
    ),
    Setting(
        "every_s",
        "--every",
        "GPUTOPO_EVERY",
        "off",
        "SECONDS|off",
        "Interval between summaries. A summary is printed at the start and at the end in any case.",
        parse_unless_off(parse_seconds(1)),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        "off",
        "HOST:PORT|off",
        "Address of /metrics, /healthz, /readyz and /report. The manifests set :9439.",
        parse_address,
    ),
    log_setting("text"),
)
