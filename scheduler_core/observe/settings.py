"""Settings of ``gputopo observe``. ``gputopo.process.settings`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from gputopo.process import settings
from gputopo.process.settings import (
    LOG_HELP,
    PAGES_HELP,
    PAGES_SETTING,
    Setting,
    log_setting,
    parse_address,
    parse_one_of,
    parse_seconds,
    parse_unless_off,
)


class ObserverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The observer's settings."""

    output: Annotated[
        str,
        Setting("-o, --output", "text|jsonl", "text", parse_one_of("text", "jsonl")),
        "The format of standard output: sentences and a summary, or one JSON document per line.",
    ]
    for_s: Annotated[
        float | None,
        Setting("--for", "SECONDS|off", "off", parse_unless_off(parse_seconds(0))),
        "Exit after this time, with a summary. 0s: report the current state only.",
    ]
    every_s: Annotated[
        float | None,
        Setting("--every", "SECONDS|off", "off", parse_unless_off(parse_seconds(1))),
        "Print a summary at this interval. The summaries at the start and at the end are always printed.",
    ]
    listen: Annotated[
        tuple[str, int] | None,
        Setting("--listen", "HOST:PORT|off", "off", parse_address),
        "The address of /metrics, /healthz, /readyz and /report. The manifests set :9439.",
    ]
    pages: Annotated[str, PAGES_SETTING, PAGES_HELP]
    log: Annotated[str, log_setting("text"), LOG_HELP]


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ObserverSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    return settings.read_settings(ObserverSettings, flags, environ)
