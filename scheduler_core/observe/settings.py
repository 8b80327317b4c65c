"""What can be set at ``gputopo observe``. How settings are read: ``gputopo.process.settings``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputopo.process.settings import Setting, address, log_form, one_of, seconds, unless_off, values


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The observer's settings. ``TABLE`` explains each."""

    output: str
    for_s: float | None
    every_s: float | None
    listen: tuple[str, int] | None
    log: str


def read(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    return Settings(**values(TABLE, flags, environ))


TABLE = (
    Setting(
        "output",
        "-o, --output",
        "GPUTOPO_OUTPUT",
        "text",
        "text|jsonl",
        "What is printed on standard output: sentences and a summary, or one JSON document a line.",
        one_of("text", "jsonl"),
    ),
    Setting(
        "for_s",
        "--for",
        "GPUTOPO_FOR",
        "off",
        "SECONDS|off",
        "End after this long, with a summary. 0s: only say how things are now.",
        unless_off(seconds(0)),
    ),
    Setting(
        "every_s",
        "--every",
        "GPUTOPO_EVERY",
        "off",
        "SECONDS|off",
        "Print a summary each time this has passed. There is one at the start and one at the end in any case.",
        unless_off(seconds(1)),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        "off",
        "HOST:PORT|off",
        "Where /metrics, /healthz, /readyz and /report are served. Nowhere on a laptop; the manifests say :9439.",
        address,
    ),
    log_form("text"),
)
