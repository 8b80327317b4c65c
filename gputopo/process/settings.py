"""Settings of the long-running programs: flag, environment variable, default. A flag wins over the environment.

A program declares each setting once, as a field of a frozen struct:

    interval_s: Annotated[float, Setting("--interval", "SECONDS", "60s", parse_seconds(1)), "Help text."]

The options of the command and the reference page docs/cli.md are made from these fields. A value that operators need
not change is a constant beside the code that uses it.

SettingError(ValueError)    a value cannot be used; the message quotes it and names the flag or variable
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from gputopo.durations import parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


class SettingError(ValueError):
    """An invalid value."""


class Setting(NamedTuple):
    """The declaration of a setting, followed by its help text in the ``Annotated`` type of its field."""

    flag: str  # with a short form: "-o, --output"
    metavar: str  # the form of a value, with its unit
    default: str
    parse: Callable[[str], Any]
    variable: str = ""  # in the environment; "" for GPUTOPO_FLAG


class Option(NamedTuple):
    """A setting of a program as users see it."""

    field: str  # of the settings class
    flags: tuple[str, ...]  # the long form last
    metavar: str
    default: str
    parse: Callable[[str], Any]
    variable: str
    help: str  # what the setting does, and why the default is what it is


def options_of(settings: type) -> tuple[Option, ...]:
    """Return the options of a settings class, in the order of its fields."""
    found = []
    for field, hint in get_type_hints(settings, include_extras=True).items():
        declared, text = hint.__metadata__
        flags = tuple(declared.flag.split(", "))
        variable = declared.variable or "GPUTOPO" + flags[-1][1:].replace("-", "_").upper()
        found.append(Option(field, flags, declared.metavar, declared.default, declared.parse, variable, text))
    return tuple(found)


def read_settings(settings: type[T], flags: Mapping[str, str | None], environ: Mapping[str, str]) -> T:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    values: dict[str, Any] = {}
    for option in options_of(settings):
        text, source = flags.get(option.field), option.flags[-1]
        if text is None:
            text, source = environ.get(option.variable), option.variable
        if text is None:
            text, source = option.default, "the default"
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            raise SettingError(f"{source}: {text!r}: {error}") from error
    return settings(**values)


def command_options(settings: type) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a settings class."""
    import click  # noqa: PLC0415  code that only reads settings does not need it

    def with_options(command: Command) -> Command:
        for each in reversed(options_of(settings)):
            text = f"{each.help}  [{each.variable}; default: {each.default or 'none'}]"
            completed = _offer_files if "FILE" in each.metavar else None
            option = click.option(*each.flags, each.field, metavar=each.metavar, help=text, shell_complete=completed)
            command = option(command)
        return command

    return with_options


def _offer_files(_: object, __: object, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem  # noqa: PLC0415  only for a completion

    return [CompletionItem(incomplete, "file")]


def parse_seconds(least: float, most: float = inf) -> Callable[[str], float]:
    """Return a parser of ``90s``, ``5m``, ``1h`` or plain seconds, within bounds."""

    def parse(text: str) -> float:
        found = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
        if found is None:
            raise ValueError("expected a time such as 90s, 5m or 1h")
        if found < least:
            raise ValueError(f"it must be at least {least:g}s")
        if found > most:
            raise ValueError(f"it must be at most {most:g}s")
        return found

    return parse


def parse_unless_off(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Return a parser that gives None for ``off``, and otherwise the result of ``parse``."""

    def parse_unless_off(text: str) -> T | None:
        try:
            return None if text == "off" else parse(text)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from error

    return parse_unless_off


def parse_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of a whole number within bounds."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return parse


def parse_one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return parse


def parse_flag(on: str) -> Callable[[str], bool]:
    """Return a parser that gives True for the word ``on``, and False for ``off``."""
    choice = parse_one_of(on, "off")
    return lambda text: choice(text) == on


def parse_path(text: str) -> Path | None:
    """Return a path; None for an empty text or ``off``."""
    return None if text in ("", "off") else Path(text)


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port of ``0.0.0.0:9438``, ``[::]:9438`` or ``:9438`` (host "", every address); None for off."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("expected HOST:PORT, with a port of at most 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_required_address(text: str) -> tuple[str, int]:
    """Return host and port as ``parse_address`` does; "off" is not allowed."""
    found = parse_address(text)
    if found is None:
        raise ValueError("this address cannot be off: expected HOST:PORT")
    return found


def is_loopback(host: str) -> bool:
    """Return whether an address is of this host only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


PAGES_SETTING = Setting("--pages", "loopback|authorized", "loopback", parse_one_of("loopback", "authorized"))
PAGES_HELP = (
    "Readers of the pages that name pods. loopback: clients in this pod, such as kubectl port-forward. authorized: "
    "also bearers of a token for the audience gputopo, if its account may get the path (role gputopo-page-reader)."
)
LOG_HELP = (
    "The format of the log on standard error: one line for each event, with fields. With :debug, also the lines of "
    "level debug, such as the nodes of each decision."
)


def log_setting(default: str = "json") -> Setting:
    """Return the declaration of ``--log``, which every program has."""
    return Setting("--log", "json|text[:debug]", default, parse_one_of("json", "text", "json:debug", "text:debug"))
