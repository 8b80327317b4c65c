"""Calls of the command line with hostile input, and the files that they name."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner, Result

from gputopo.cli.main import main

DOCUMENTED = {0, 1, 2, 3, 4, 5}
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


def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Return the files of a machine without a cluster, in an empty folder."""
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
