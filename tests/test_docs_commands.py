"""Every command in README, docs and help is one of this version; those that need neither cluster nor GPU are run.

Those that read a cluster are run in ``tests/e2e/gangs/test_documented_commands.py``.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gputopo.cli.main import main
from tests.documented import CALLS, NEED_CLUSTER

MATRIX = """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      NV12    0-31            0
GPU1    NV12     X      0-31            0
"""
# Files that the commands name.
FILES = ("topo.txt", "yesterday.json", "my-node.json", "node.json", "job.yaml", "pod.yaml", "policy.yaml")
NEED_GPU = {"record"}
# Documented with files of the reader's own cluster, or for minutes of work.
OWN_FILES = {"cluster.json", "c.json", "nodes.json", "nodes.csv", "pods.csv"}
ALONE = [
    (page, call)
    for page, call in CALLS
    if call[0] not in NEED_CLUSTER | NEED_GPU
    and not OWN_FILES & set(call)
    and "--node" not in call
    and (call[0] not in ("show", "labels", "path") or "--from" in call or call[1:2] in (("dgx-1",), ("dgx-a100",)))
    and (call[0] != "diff" or len(call) == 3)
    and (call[0] != "simulate" or "--jobs" in call)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text(MATRIX, encoding="utf-8")
    built_in = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
    (tmp_path / "policy.yaml").write_text(built_in, encoding="utf-8")
    return tmp_path


def test_commands_are_found() -> None:
    assert len(CALLS) > 60
    assert len(ALONE) > 12
    assert {call[0] for _, call in CALLS} >= {"show", "nodes", "pods", "gangs", "why", "simulate", "ui", "cleanup"}


@pytest.mark.parametrize(("page", "call"), CALLS, ids=lambda each: each if isinstance(each, str) else " ".join(each))
def test_a_documented_command_has_such_options(folder: Path, page: str, call: tuple[str, ...]) -> None:
    assert folder
    command: click.Command = main
    arguments = list(call)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, f"{page}: there is no command {name}"
        command = found
    try:
        command.make_context("gputopo", arguments)
    except click.exceptions.Exit:
        pass  # --help
    except click.BadParameter:
        pass  # a value that a reader replaces: NODE, POD-ADDRESS


@pytest.mark.parametrize(("page", "call"), ALONE, ids=lambda each: each if isinstance(each, str) else " ".join(each))
def test_a_command_that_needs_no_cluster_runs(folder: Path, page: str, call: tuple[str, ...]) -> None:
    assert folder
    found = CliRunner().invoke(main, list(call), input=MATRIX)

    assert found.exit_code in (0, 1), f"{page}: {found.output}"  # 1: degraded hardware, or a difference
    assert found.exception is None or isinstance(found.exception, SystemExit)
