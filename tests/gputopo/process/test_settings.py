"""Reading settings from flags, environment and defaults; the parsers of values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from gputopo.process.settings import (
    Setting,
    SettingError,
    command_options,
    options_of,
    parse_address,
    parse_flag,
    parse_number,
    parse_one_of,
    parse_path,
    parse_seconds,
    read_settings,
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Two settings."""

    pace_s: Annotated[float, Setting("-p, --pace-of-work", "SECONDS", "1m", parse_seconds(1)), "How often."]
    folder: Annotated[Path | None, Setting("--folder", "DIR", "", parse_path, variable="FOLDER"), "Where to."]


def test_a_flag_wins_over_the_environment_which_wins_over_the_default() -> None:
    flags, environ = {"pace_s": "5", "folder": None}, {"GPUTOPO_PACE_OF_WORK": "7", "FOLDER": "/x"}

    assert read_settings(Settings, flags, environ) == Settings(pace_s=5.0, folder=Path("/x"))
    assert read_settings(Settings, {}, environ) == Settings(pace_s=7.0, folder=Path("/x"))
    assert read_settings(Settings, {}, {}) == Settings(pace_s=60.0, folder=None)


@pytest.mark.parametrize(
    ("flags", "environ", "source"),
    [
        pytest.param({"pace_s": "often"}, {}, "--pace-of-work", id="flag"),
        pytest.param({}, {"GPUTOPO_PACE_OF_WORK": "often"}, "GPUTOPO_PACE_OF_WORK", id="environment"),
    ],
)
def test_an_error_names_the_source_of_the_value(flags: dict[str, str], environ: dict[str, str], source: str) -> None:
    with pytest.raises(SettingError, match=f"^{source}: 'often': expected a time such as 90s, 5m or 1h$"):
        read_settings(Settings, flags, environ)


def test_options_follow_the_order_of_the_fields() -> None:
    assert [(each.field, each.variable, each.help) for each in options_of(Settings)] == [
        ("pace_s", "GPUTOPO_PACE_OF_WORK", "How often."),
        ("folder", "FOLDER", "Where to."),
    ]


def test_a_command_has_one_option_per_setting() -> None:
    @click.command()
    @command_options(Settings)
    def command(**flags: str | None) -> None:
        click.echo(flags)

    runner = CliRunner()
    for flag in ("--pace-of-work", "-p"):
        assert runner.invoke(command, [flag, "9"]).output == "{'pace_s': '9', 'folder': None}\n"
    printed = " ".join(runner.invoke(command, ["--help"]).output.split())
    assert "-p, --pace-of-work SECONDS How often. [GPUTOPO_PACE_OF_WORK; default: 1m]" in printed
    assert "--folder DIR Where to. [FOLDER; default: none]" in printed


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        pytest.param(parse_seconds(1), "1.5m", 90.0, id="minutes"),
        pytest.param(parse_number(1, 9), "9", 9, id="the largest number"),
        pytest.param(parse_one_of("a", "b"), "b", "b", id="a word"),
        pytest.param(parse_flag("on"), "on", True, id="on"),
        pytest.param(parse_flag("on"), "off", False, id="off"),
        pytest.param(parse_path, "off", None, id="no path"),
        pytest.param(parse_address, "[::1]:80", ("::1", 80), id="an address"),
        pytest.param(parse_address, "off", None, id="no address"),
    ],
)
def test_a_value_is_parsed(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        pytest.param(parse_seconds(1), "0.5", "it must be at least 1s", id="too short"),
        pytest.param(parse_number(1, 9), "10", "expected a whole number from 1 to 9", id="too large"),
        pytest.param(parse_number(1, 9), "٣", "expected a whole number from 1 to 9", id="another script's digit"),
        pytest.param(parse_one_of("a", "b"), "c", "expected one of a, b", id="unknown word"),
        pytest.param(parse_address, "80", "expected HOST:PORT, with a port of at most 65535", id="no colon"),
    ],
)
def test_an_error_says_what_to_write(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse(text)
