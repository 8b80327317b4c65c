"""``--kubeconfig`` and ``--context``: every command that reads or changes a cluster has both, and uses them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gputopo.cli.main import COMMANDS, main
from tests.api_server import api_server
from tests.gputopo.cli.cluster_objects import listed

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
# Arguments with which a command reads the cluster.
READS = {
    "cleanup": ("--all",),
    "diff": ("--node", "n", "dgx-1"),
    "gangs": (),
    "nodes": (),
    "observe": ("--for", "0s"),
    "pods": (),
    "preemptions": (),
    "release": ("--all",),
    "scheduler-config": (),
    "show": ("--node", "n"),
    "ui": ("-o", "html"),
    "ui-server": (),
    "what-if": ("-f", "{pod}"),
    "why": ("pod", "p"),
}
# Programs that run in pods: they use KUBECONFIG, or the account of the pod.
PROGRAMS = {"agent", "extender", "planner"}
WITHOUT_CLUSTER = {"completion", "labels", "machines", "path", "policy", "record", "replay", "simulate"}


def flags(command: click.Command) -> set[str]:
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}


def test_every_command_is_judged() -> None:
    assert {*READS, *PROGRAMS, *WITHOUT_CLUSTER} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_cluster_commands_have_both_options_and_no_other_command_has_one(name: str) -> None:
    found = flags(COMMANDS[name].load()) & {"--kubeconfig", "--context"}

    assert found == ({"--kubeconfig", "--context"} if name in READS else set())


def run(name: str, folder: Path, *options: str) -> str:
    (folder / "pod.yaml").write_text(POD, encoding="utf-8")
    arguments = [each.format(pod=folder / "pod.yaml") for each in READS[name]]
    done = CliRunner().invoke(main, [name, *arguments, *options])
    assert done.exit_code == 4, done.output
    return done.output


@pytest.mark.parametrize("name", READS)
def test_the_kubeconfig_is_that_of_the_option(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_server(lambda _: listed()) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "valid")))

        assert f"{tmp_path}/missing" in run(name, tmp_path, "--kubeconfig", str(tmp_path / "missing"))


@pytest.mark.parametrize("name", READS)
def test_the_context_is_that_of_the_option(name: str, tmp_path: Path) -> None:
    with api_server(lambda _: listed()) as server:
        valid = str(server.kubeconfig(tmp_path / "valid"))

        assert "no-such-context" in run(name, tmp_path, "--kubeconfig", valid, "--context", "no-such-context")


@pytest.mark.parametrize("name", sorted(PROGRAMS - {"agent"}))
def test_programs_name_the_variable_that_they_use(name: str) -> None:
    assert "KUBECONFIG" in (COMMANDS[name].load().help or "")
