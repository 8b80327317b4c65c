"""``--watch``: what is printed when the cluster changes, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gputopo.cli import main
from gputopo.cli import watch as module
from gputopo.kube.rbac import NODE_GPUS, NODES, PODS
from tests.api_server import Answer, Asked, api_server
from tests.gputopo.cli.cluster_objects import NODE, STATE, listed, pod
from tests.gputopo.cli.gang_objects import member


class Cluster:
    """A cluster that changes."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = STATE
        self.pods = [pod("train", 3, node="gpu-0", phase="Running")]
        self.broken = False

    def answer(self, asked: Asked) -> Answer:
        if self.broken:
            return Answer({"message": "try later"}, 503)
        if asked.path == NODES.path() and "!" in asked.query.get("labelSelector", ""):
            return listed()
        answers = {NODES.path(): [NODE], NODE_GPUS.path(): [self.state], PODS.path(): self.pods}
        return listed(*answers.get(asked.path, []))

    def free_all(self) -> None:
        self.state = {**STATE, "allocations": []}
        self.pods = []

    def stop_answering(self) -> None:
        self.broken = True


def watched(
    monkeypatch: pytest.MonkeyPatch, folder: Path, cluster: Cluster, steps: list[Callable[[], None]], *command: str
) -> Result:
    """Run a command that meets a step at each pause, and Ctrl-C after the last one."""
    following: Iterator[Callable[[], None]] = iter(steps)

    def pause(seconds: float) -> None:
        assert seconds >= 5
        step = next(following, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("gputopo.cli.watch.time.sleep", pause)
    with api_server(cluster.answer) as server:
        return CliRunner().invoke(main.main, [*command, "-w", "--kubeconfig", server.kubeconfig(folder / "config")])


def nothing() -> None:
    """Change nothing."""


def test_rows_that_change_are_appended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = Cluster()

    found = watched(monkeypatch, tmp_path, cluster, [nothing, cluster.free_all, nothing], "nodes")

    first, before, after = found.stdout.splitlines()
    assert found.exit_code == 130
    assert first.split()[0] == "NODE"
    assert "1/2" in before
    assert (before.count("2/2"), after.count("2/2")) == (0, 2)


def test_a_pod_that_ends_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = Cluster()

    found = watched(monkeypatch, tmp_path, cluster, [cluster.free_all], "pods", "--no-headers")

    shown, gone = found.stdout.splitlines()
    assert shown.split()[:2] == ["a", "train"]
    assert gone == "a  train  gone"


def test_gangs_are_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.pods = [member("w-0")]

    def second_member() -> None:
        cluster.pods = [member("w-0"), member("w-1")]

    found = watched(monkeypatch, tmp_path, cluster, [second_member], "gangs")

    assert [line.split()[1] for line in found.stdout.splitlines()] == ["GANG", "llm", "llm"]
    assert [place for place in ("1/2", "2/2") if place in found.stdout] == ["1/2", "2/2"]


def test_an_error_after_the_first_list_does_not_end_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = Cluster()

    found = watched(monkeypatch, tmp_path, cluster, [cluster.stop_answering, nothing], "nodes")

    assert found.exit_code == 130
    assert "the table was not updated" in found.stderr


def test_an_error_of_the_first_list_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.stop_answering()

    assert watched(monkeypatch, tmp_path, cluster, [], "nodes").exit_code == 4


@pytest.mark.parametrize(("height", "lines", "last"), [(24, 23, "... 67 more lines"), (0, 89, "x  89")])
def test_on_a_terminal_the_table_is_redrawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], height: int, lines: int, last: str
) -> None:
    from gputopo.render.report import text_table

    tables = iter([text_table(("A", "B"), [("x", "1")]), text_table(("A", "B"), [("x", str(n)) for n in range(2, 90)])])

    def read() -> Any:
        found = next(tables, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr("gputopo.cli.watch.time.sleep", lambda _: None)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("os.get_terminal_size", lambda: os.terminal_size((80, height)))
    with pytest.raises(KeyboardInterrupt):
        module.watch_table(module.Watched(read, keys=2, ages=frozenset(), if_empty="none"))

    _, first, second = capsys.readouterr().out.split("\x1b[H\x1b[J")
    assert first == "A  B\nx  1\n"
    assert len(second.splitlines()) == lines
    assert second.splitlines()[-1] == last


@pytest.mark.parametrize("option", [("-o", "json"), ("-o", "yaml"), ("--from", "c.json")])
@pytest.mark.parametrize("command", ["nodes", "pods", "gangs"])
def test_options_that_exclude_watch(command: str, option: tuple[str, str]) -> None:
    found = CliRunner().invoke(main.main, [command, "-w", *option])

    assert found.exit_code == 2
    assert "--watch" in found.stderr
