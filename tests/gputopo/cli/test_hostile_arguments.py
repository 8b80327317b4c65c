"""Every command and option with hostile values: a documented exit code, a message on standard error, never a traceback.

The commands, their options and their arguments are taken from the command line itself, so a new one is covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gputopo.cli.main import COMMANDS
from tests.gputopo.cli.hostile_calls import Files, check, empty_machine

HOSTILE = (
    "",
    " ",
    "-",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-308",
    "9" * 40,
    "0x10",
    "٣",
    "a" * 5000,
    "\x1b[31mred",
    "\u202eevil",
    "a\nb",
    "../../etc/passwd",
    "/",
    "/dev/null",
    "{file}",
    "{binary}",
    "{folder}",
    "dgx-1*0",
    "0:1",
    "http://",
    "http://127.0.0.1:1/",
    "%s%n",
    "'; rm -rf",
)
# What a command needs to get past its other checks, so that the hostile value is what it meets.
NEEDED = {
    "simulate": ("--cluster", "dgx-1*1", "--jobs", "5"),
    "path": ("0", "1", "--from", "dgx-1"),
    "show": ("--from", "dgx-1"),
    "labels": ("--from", "dgx-1"),
    "diff": ("dgx-1", "dgx-2"),
    "what-if": ("-f", "{pod}", "--from", "{cluster}"),
    "why": ("pod", "p"),
    "policy show": (),
    "ui": ("--from", "{cluster}", "-o", "html"),
    "replay": ("{file}",),
    "completion": ("bash",),
}
# They serve until a signal once their settings are valid: their settings are tested without a value that is.
SERVERS = {"agent", "extender", "planner", "observe", "ui-server"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand, by the words that call it."""
    for name, each in COMMANDS.items():
        command = each.load()
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", command.commands[sub]) for sub in command.commands)
        else:
            yield name, command


CASES = [(name, parameter) for name, command in commands() for parameter in command.params]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return empty_machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=[f"{name} {each.name}" for name, each in CASES])
def test_a_hostile_value(files: Files, name: str, parameter: click.Parameter) -> None:
    needed = [files.filled(each) for each in NEEDED.get(name, ())]
    for value in map(files.filled, HOSTILE):
        if isinstance(parameter, click.Argument):
            arguments = [*name.split(), "--", value]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            arguments = [*name.split(), *needed, parameter.opts[0]]
        else:
            arguments = [*name.split(), *needed, f"{parameter.opts[0]}", value]
        if name not in SERVERS or not _may_start(value):
            check(arguments)


def _may_start(value: str) -> bool:
    """Return whether a server could take this for a setting, and then serve until a signal."""
    return value not in ("nan", "1e400", "1e-308", "\u202eevil", "")


def test_every_command_without_arguments_and_with_unknown_ones(files: Files) -> None:
    assert files
    for name, _ in commands():
        if name not in SERVERS | {"ui"}:
            check(name.split())
        check([*name.split(), "--no-such-option"])
        check([*name.split(), "--help"])
