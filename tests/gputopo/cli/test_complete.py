"""The words that the completion of each shell offers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from gputopo.cli import complete
from gputopo.cli.main import main
from gputopo.kube.rbac import NAMESPACES, NODES, PODS
from tests.api_server import Answer, Asked, api_server
from tests.gputopo.cli import gang_objects
from tests.gputopo.cli.cluster_files import file_of
from tests.gputopo.cli.cluster_objects import NODE, listed, pod
from tests.scheduler_core.ui.cluster_documents import cluster_text

PENDING = pod("waits", 2, phase="Pending")


def offered(*words: str) -> list[str]:
    """The words offered for the last word."""
    *before, incomplete = words
    found = ShellComplete(main, {}, "gputopo", "_GPUTOPO_COMPLETE").get_completions(before, incomplete)
    return [f"{each.value}{'' if each.type == 'plain' else ' (' + each.type + ')'}" for each in found]


def test_machines_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dgx-of-ours.json").touch()
    (tmp_path / "dgx-all").mkdir()

    for words in (
        ("show", "dgx-"),
        ("show", "--from", "dgx-"),
        ("diff", "dgx-1", "dgx-"),
        ("path", "0", "1", "--from", "dgx-"),
    ):
        assert {"dgx-1", "dgx-a100", "dgx-of-ours.json", "dgx-all/"} <= set(offered(*words))
    assert offered("show", "--from", "./dg") == ["./dg (file)"]


def test_policies() -> None:
    assert offered("simulate", "--policies", "ours,sp") == ["ours,spread"]


def test_nodes_and_pods_of_a_cluster(tmp_path: Path) -> None:
    def answered(asked: Asked) -> Answer:
        return listed(*{NODES.path(): [NODE], PODS.path(namespace="a"): [PENDING]}.get(asked.path, []))

    with api_server(answered) as server:
        there = ("--kubeconfig", server.kubeconfig(tmp_path / "config"))
        assert offered("nodes", *there, "g") == ["gpu-0"]
        assert offered("show", *there, "--node", "") == ["gpu-0"]
        assert offered("why", *there, "-n", "a", "pod", "w") == ["waits"]
        assert offered("release", *there, "-n", "a", "") == ["waits"]
        assert offered("why", *there, "pod", "") == []  # of another namespace


def test_nodes_and_pods_of_a_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, [PENDING])

    assert offered("nodes", "--from", file, "") == ["gpu-0"]
    assert offered("why", "--from", file, "-n", "a", "pod", "") == ["waits"]


def test_gangs_and_namespaces_of_a_cluster(tmp_path: Path) -> None:
    spaces = {NAMESPACES.path(): listed({"metadata": {"name": "a"}}, {"metadata": {"name": "b"}})}
    with api_server(
        lambda asked: gang_objects.cluster()(asked) if asked.path not in spaces else spaces[asked.path]
    ) as (server):
        there = ("--kubeconfig", server.kubeconfig(tmp_path / "config"))
        assert offered("why", *there, "-n", "a", "gang", "") == ["kueued", "llm"]
        assert offered("release", *there, "-n", "a", "--gang", "l") == ["llm"]
        for command in ("pods", "gangs", "why", "preemptions", "release"):
            assert offered(command, *there, "-n", "") == ["a", "b"]


def test_gangs_and_namespaces_of_a_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, gang_objects.THERE)

    assert offered("why", "--from", file, "-n", "a", "gang", "") == ["kueued", "llm"]
    assert offered("why", "--from", file, "-n", "a", "gang", "llm", "") == []
    assert offered("pods", "--from", file, "-n", "") == offered("gangs", "--from", file, "-n", "") == ["a", "b"]


def test_a_slow_cluster_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(_: Asked) -> Answer:
        time.sleep(1)
        return listed(NODE)

    monkeypatch.setattr(complete, "_TIMEOUT_S", 0.1)
    with api_server(answered) as server:
        assert offered("nodes", "--kubeconfig", server.kubeconfig(tmp_path / "config"), "") == []


@pytest.mark.parametrize("name", ["$(touch x)", "`touch x`", "a b", "a;b", "a\nplain,b", "-o", "a\x1b[2J", "A"])
def test_a_name_that_a_shell_would_run_is_not_offered(tmp_path: Path, name: str) -> None:
    cluster = json.loads(cluster_text(2))
    next(each for each in cluster["items"] if each["kind"] == "Node")["metadata"]["name"] = name
    (tmp_path / "c.json").write_text(json.dumps(cluster), encoding="utf-8")

    assert offered("nodes", "--from", str(tmp_path / "c.json"), "") == ["gpu-0001"]


def test_kinds() -> None:
    assert offered("why", "") == ["pod", "gang"]


def test_a_kind_and_a_name_in_one_word(tmp_path: Path) -> None:
    file = file_of(tmp_path, [PENDING, *gang_objects.THERE])

    assert offered("why", "--from", file, "-n", "a", "pod/wai") == ["pod/waits"]
    assert offered("why", "--from", file, "-n", "a", "gang/l") == ["gang/llm"]
    assert offered("why", "--from", file, "-n", "a", "node/g") == []


@pytest.mark.parametrize(
    "words",
    [
        ("ui", "--from"),
        ("what-if", "--policy"),
        ("scheduler-config", "--from"),
        ("scheduler-config", "--check"),
        ("extender", "--policy"),
        ("planner", "--policy"),
        ("agent", "--node-source"),
        ("gangs", "--token-file"),
        ("replay",),
    ],
    ids=" ".join,
)
def test_files(words: tuple[str, ...]) -> None:
    assert offered(*words, "x") == ["x (file)"]


def test_contexts_of_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["gke_p_eu_one", "arn:aws:eks:eu:1:cluster/two", "me@three", "$(touch x)"]
    contexts = [{"name": each, "context": {"cluster": "c", "user": "u"}} for each in names]
    cluster, user = {"name": "c", "cluster": {"server": "http://c"}}, {"name": "u", "user": {}}
    config = {"contexts": contexts, "clusters": [cluster], "users": [user], "current-context": names[0]}
    (tmp_path / "config").write_text(json.dumps(config), encoding="utf-8")

    assert offered("nodes", "--kubeconfig", str(tmp_path / "config"), "--context", "") == names[:3]
    assert offered("nodes", "--kubeconfig", str(tmp_path / "config"), "--context", "me") == ["me@three"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert offered("why", "--context", "g") == ["gke_p_eu_one"]


@pytest.mark.parametrize("content", ["", "}{", "clusters: 7"])
def test_without_a_cluster_nothing_is_offered_and_nothing_is_printed(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text(content)

    assert offered("nodes", "--kubeconfig", str(tmp_path / "config"), "") == []
    assert offered("nodes", "--kubeconfig", str(tmp_path / "config"), "--context", "") == []
    assert offered("nodes", "--from", str(tmp_path / "config"), "") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", {"COMP_WORDS": "gputopo nodes --from c.json g", "COMP_CWORD": "4"}),
        ("zsh", {"COMP_WORDS": "gputopo nodes --from c.json g", "COMP_CWORD": "4"}),
        ("fish", {"COMP_WORDS": "gputopo nodes --from c.json ", "COMP_CWORD": "g"}),
    ],
)
def test_each_shell_gets_the_answer(tmp_path: Path, shell: str, words: dict[str, str]) -> None:
    file_of(tmp_path, [])
    environ = {**os.environ, **words, "_GPUTOPO_COMPLETE": f"{shell}_complete"}
    program = [sys.executable, "-c", "from gputopo.cli.main import main; main(prog_name='gputopo')"]

    found = subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)

    assert "gpu-0" in found.stdout
    assert json.dumps(found.stderr) == '""'
