"""Every command and option with hostile values: a documented exit code, a message on standard error, never a traceback.

The commands, their options and their arguments are taken from the command line itself, so a new one is covered.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
import pytest
from click.testing import CliRunner, Result

from gputopo.cli.main import COMMANDS, main

DOCUMENTED = {0, 1, 2, 3, 4, 5}
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
POD = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
)


class Files:
    """The files that the values name."""

    def __init__(self, folder: Path) -> None:
        self.names = {"file": "text", "binary": "binary", "pod": "pod.json", "cluster": "c.json"}
        (folder / "text").write_text("a,b\n1,2\n", encoding="utf-8")
        (folder / "binary").write_bytes(bytes(range(256)) * 8)
        (folder / "pod.json").write_text(POD, encoding="utf-8")
        (folder / "c.json").write_text(
            '{"kind":"List","items":[{"kind":"Node","metadata":{"name":"n"}}]}', encoding="utf-8"
        )
        self._folder = folder

    def filled(self, value: str) -> str:
        """The value with the paths of files in place of their names."""
        for name, file in self.names.items():
            value = value.replace("{" + name + "}", str(self._folder / file))
        return value.replace("{folder}", str(self._folder))


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
    """A machine without a cluster, in an empty folder, with a limit of time for each call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [each for each in os.environ if each.startswith(("GPUTOPO_", "KUBE"))]:
        monkeypatch.delenv(name)
    return Files(tmp_path)


def called(arguments: list[str]) -> Result:
    def late(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"60 s are over: {arguments}")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        return CliRunner().invoke(main, arguments, input=b"\xff\x00 not what you expect\n", prog_name="gputopo")
    finally:
        signal.alarm(0)


def check(arguments: list[str]) -> None:
    found = called(arguments)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise AssertionError(f"{arguments}: {found.exception!r}") from found.exception
    assert found.exit_code in DOCUMENTED, arguments
    assert "Traceback" not in found.stderr, arguments
    if found.exit_code > 1:
        assert found.stderr.strip(), arguments
        assert "\x1b[31m" not in found.stderr, arguments


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
    return value not in ("nan", "1e400", "\u202eevil", "")


def test_every_command_without_arguments_and_with_unknown_ones(files: Files) -> None:
    assert files
    for name, _ in commands():
        if name not in SERVERS | {"ui"}:
            check(name.split())
        check([*name.split(), "--no-such-option"])
        check([*name.split(), "--help"])
