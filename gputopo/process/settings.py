"""Settings of the long-running programs. A flag overrides the environment, which overrides the default.

A program has one frozen value with its settings, read once, and one table with the unit, default and purpose of each
setting. The command line's options and the reference page are generated from the table. Values that are not settings
are constants beside the code that uses them.

    SettingError(ValueError)    an invalid value; the message quotes it and its source
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gputopo.durations import parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


class SettingError(ValueError):
    """An invalid value."""


class Setting(NamedTuple):
    """A row of a table of settings."""

    field: str  # name of the field of the program's settings
    flag: str  # with a short form: "-o, --output"
    variable: str  # environment variable
    default: str
    metavar: str  # format of a value, with its unit
    reason: str  # its purpose, and the reason for the default
    parse: Callable[[str], Any]


def read_values(
    table: Sequence[Setting], flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the settings by field. ``flags``: by field, None if not given. Raises ``SettingError``."""
    found: dict[str, Any] = {}
    for setting in table:
        flag = flags.get(setting.field)
        text, where = (
            (flag, setting.flag.split(", ")[-1])
            if flag is not None
            else (environ.get(setting.variable), setting.variable)
        )
        if text is None:
            text, where = setting.default, "the default"
        try:
            found[setting.field] = setting.parse(text)
        except ValueError as error:
            raise SettingError(f"{where}: {text!r}: {error}") from error
    return found


def command_options(table: Sequence[Setting]) -> Callable[[Command], Command]:
    """Return a decorator that adds an option per row to a command."""
    import click  # noqa: PLC0415  not needed to read settings

    def with_options(command: Command) -> Command:
        for row in reversed(table):
            text = f"{row.reason}  [{row.variable}; default: {row.default or 'none'}]"
            command = click.option(*row.flag.split(", "), row.field, metavar=row.metavar, help=text)(command)
        return command

    return with_options


def parse_seconds(least: float, most: float = inf) -> Callable[[str], float]:
    """Return a parser of ``90s``, ``5m``, ``1h`` or plain seconds."""

    def parse(text: str) -> float:
        found = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
        if found is None:
            raise ValueError("write 90s, 5m or 1h")
        if found < least:
            raise ValueError(f"it must be at least {least:g}s")
        if found > most:
            raise ValueError(f"it must be at most {most:g}s")
        return found

    return parse


def parse_unless_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return the parser, extended by ``off``, which gives None."""

    def parse_unless_off(text: str) -> T | None:
        try:
            return None if text == "off" else parse(text)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from error

    return parse_unless_off


def parse_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of integers within bounds."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"write a whole number from {least} to {most}")
        return int(text)

    return parse


def parse_one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of a choice."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"choose one of {', '.join(words)}")
        return text

    return parse


def parse_flag(on: str) -> Callable[[str], bool]:
    """Return a parser of ``on`` (True) and ``off`` (False)."""
    choice = parse_one_of(on, "off")
    return lambda text: choice(text) == on


def parse_path(text: str) -> Path | None:
    """Return a path; None for "" and ``off``."""
    return None if text in ("", "off") else Path(text)


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse ``0.0.0.0:9438``, ``[::]:9438`` or ``:9438`` (host "": every address); None for ``off``."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("write HOST:PORT, with a port of at most 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def log_setting(default: str = "json", line: str = "an event") -> Setting:
    """Return the setting ``--log``. ``line``: the subject of a log line."""
    reason = f"Format of the log on standard error: one line {line}, with fields."
    return Setting("log", "--log", "GPUTOPO_LOG", default, "json|text", reason, parse_one_of("json", "text"))
