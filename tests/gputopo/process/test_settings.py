"""What every program's settings have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gputopo.process.settings import (
    Setting,
    SettingError,
    command_options,
    parse_address,
    parse_flag,
    parse_number,
    parse_one_of,
    parse_path,
    parse_seconds,
    read_values,
)

TABLE = (
    Setting("pace_s", "--pace", "PACE", "1m", "SECONDS", "How often.", parse_seconds(1)),
    Setting("folder", "--folder", "FOLDER", "", "DIR", "Where to.", parse_path),
)


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    assert read_values(TABLE, {"pace_s": "5", "folder": None}, {"PACE": "7", "FOLDER": "/x"}) == {
        "pace_s": 5.0,
        "folder": Path("/x"),
    }
    assert read_values(TABLE, {}, {}) == {"pace_s": 60.0, "folder": None}


def test_a_wrong_value_is_told_with_where_it_was_set() -> None:
    with pytest.raises(SettingError, match=r"^PACE: 'often': write 90s, 5m or 1h$"):
        read_values(TABLE, {}, {"PACE": "often"})


def test_a_command_has_one_option_per_row() -> None:
    @click.command()
    @command_options(TABLE)
    def command(**flags: str | None) -> None:
        click.echo(flags)

    runner = CliRunner()
    assert runner.invoke(command, ["--pace", "9"]).output == "{'pace_s': '9', 'folder': None}\n"
    told = runner.invoke(command, ["--help"]).output
    assert "--pace SECONDS" in told
    assert "[PACE; default: 1m]" in told
    assert "[FOLDER; default: none]" in told


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        pytest.param(parse_seconds(1), "1.5m", 90.0, id="minutes"),
        pytest.param(parse_number(1, 9), "9", 9, id="the greatest number"),
        pytest.param(parse_one_of("a", "b"), "b", "b", id="a word"),
        pytest.param(parse_flag("on"), "on", True, id="on"),
        pytest.param(parse_flag("on"), "off", False, id="off"),
        pytest.param(parse_path, "off", None, id="no path"),
        pytest.param(parse_address, "[::1]:80", ("::1", 80), id="an address"),
        pytest.param(parse_address, "off", None, id="no address"),
    ],
)
def test_a_value_is_read(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        pytest.param(parse_seconds(1), "0.5", "it must be at least 1s", id="too short"),
        pytest.param(parse_number(1, 9), "10", "write a whole number from 1 to 9", id="too great"),
        pytest.param(parse_number(1, 9), "٣", "write a whole number from 1 to 9", id="another script's digit"),
        pytest.param(parse_one_of("a", "b"), "c", "choose one of a, b", id="no such word"),
        pytest.param(parse_address, "80", "write HOST:PORT, with a port of at most 65535", id="no colon"),
    ],
)
def test_a_wrong_value_is_told_what_to_write(parse: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        parse(text)
