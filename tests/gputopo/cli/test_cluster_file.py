"""``--from FILE`` of the commands that read a cluster: the same output as from an API server with the same objects."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gputopo.cli import main
from tests.api_server import Answer, Asked, api_server
from tests.gputopo.cli import gang_objects, pod_objects
from tests.gputopo.cli.cluster_files import KINDS, file_of, of_kind
from tests.gputopo.cli.cluster_objects import NODE, STATE, listed, pod
from tests.scheduler_core.ui.cluster_documents import cluster_text
from tests.scheduler_core.ui.pages import Page

RUNNING = [each for each in pod_objects.THERE if each["status"].get("phase") != "Failed"]


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main.main, list(arguments), **options)


@pytest.mark.parametrize(
    "arguments",
    [
        ("why", "pod", "train", "-n", "a"),
        ("why", "pod", "waits", "-n", "a"),
        ("why", "pod", "waits", "-n", "a", "-o", "json"),
        ("why", "pod", "odd", "-n", "a"),
        ("why", "pod", "no-such-pod", "-n", "a"),
        ("why", "pod", "waits", "-n", "a", "--node", "gpu-9"),
        ("nodes", "-o", "wide", "-l", "nosuch=label"),
        ("nodes", "gpu-9"),
    ],
    ids=" ".join,
)
def test_a_file_gives_the_same_output_as_the_cluster(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    def answered(asked: Asked) -> Answer:
        if asked.query.get("labelSelector", "").startswith("nosuch=label"):
            return listed()
        return pod_objects.cluster(asked)

    with api_server(answered) as server:
        live = run(*arguments, "--kubeconfig", server.kubeconfig(tmp_path / "config"))
    found = run(*arguments, "--from", file_of(tmp_path, pod_objects.THERE))

    assert (found.exit_code, found.stdout) == (live.exit_code, live.stdout)
    assert bool(found.stderr) == bool(live.stderr)


def test_gangs_of_a_file(tmp_path: Path) -> None:
    names = ("w-0", "w-1")
    members = [*map(gang_objects.member, names), gang_objects.member("x-0", "other", namespace="b")]
    file = file_of(tmp_path, members)

    every = json.loads(run("gangs", "--from", file, "-o", "json").stdout)["items"]
    one = json.loads(run("gangs", "-n", "b", "--from", file, "-o", "json").stdout)["items"]
    why = run("why", "gang", "llm", "-n", "a", "--from", file)

    assert sorted((each["namespace"], each["name"], each["there"]) for each in every) == [
        ("a", "llm", 2),
        ("b", "other", 1),
    ]
    assert [each["name"] for each in one] == ["other"]
    assert why.exit_code == 0
    assert "llm" in why.stdout


def test_nodes_and_pods_of_a_packed_file_and_of_standard_input(tmp_path: Path) -> None:
    file = Path(file_of(tmp_path, pod_objects.THERE))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(file.read_bytes()))

    plain = run("nodes", "--from", str(file))
    packed = run("nodes", "--from", str(tmp_path / "c.json.gz"))
    piped = run("nodes", "--from", "-", input=file.read_bytes())
    pods = json.loads(run("pods", "--from", str(file), "-o", "json").stdout)["items"]

    assert plain.stdout.splitlines()[1].split()[0] == "gpu-0"
    assert plain.stdout == packed.stdout == piped.stdout
    assert [(each["name"], each["gpus"]) for each in pods] == [("train", [0, 1, 2])]


def test_a_file_is_evaluated_at_the_time_of_its_newest_report(tmp_path: Path) -> None:
    old = {**STATE, "observedAt": "2020-01-01T00:00:00Z"}
    items = [of_kind(NODE, "Node"), of_kind(old, "NodeGpus", "gputopo.io/v1alpha1")]
    (tmp_path / "c.json").write_text(json.dumps({"items": items}), encoding="utf-8")

    shown = run("nodes", "--from", str(tmp_path / "c.json"))

    assert shown.stdout.splitlines()[1].split()[-1] == "0s"


def test_a_file_without_reports_is_evaluated_at_the_time_of_the_newest_kubelet_heartbeat(tmp_path: Path) -> None:
    conditions = [{"type": "Ready", "lastHeartbeatTime": "2026-11-20T12:00:00Z"}, {"lastHeartbeatTime": 7}, "odd"]
    node = {**NODE, "status": {**NODE.get("status", {}), "conditions": conditions}}
    member = gang_objects.member("w-0")
    member["metadata"]["creationTimestamp"] = "2026-11-20T11:59:00Z"
    items = [of_kind(node, "Node"), of_kind(member, "Pod")]
    (tmp_path / "c.json").write_text(json.dumps({"items": items}), encoding="utf-8")

    shown = run("gangs", "--from", str(tmp_path / "c.json"))

    assert " 60s " in shown.stdout


def test_an_object_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    once = run("nodes", "--from", file_of(tmp_path, []), "-o", "json").stdout
    twice = run("nodes", "--from", file_of(tmp_path, [], of_kind(*KINDS[0])), "-o", "json").stdout

    assert twice == once


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_file_of_powershell_is_read(tmp_path: Path, encoding: str) -> None:
    plain = Path(file_of(tmp_path, pod_objects.THERE))
    (tmp_path / "other.json").write_text(plain.read_text(encoding="utf-8"), encoding=encoding)

    found = run("nodes", "--from", str(tmp_path / "other.json"))

    assert (found.exit_code, found.stdout) == (0, run("nodes", "--from", str(plain)).stdout)


def test_a_ledger_that_cannot_be_read_does_not_mean_that_no_planner_has_led(tmp_path: Path) -> None:
    ledger = of_kind(gang_objects.LEDGER, "PlacementLedger", "gputopo.io/v1alpha1")
    damaged = {**ledger, "spec": {**ledger["spec"], "entries": [{"namespace": "a", "name": "x"}]}}
    none_has_led = "no planner has led here"

    assert none_has_led not in run("gangs", "--from", file_of(tmp_path, gang_objects.THERE, ledger)).stderr
    shown = run("gangs", "--from", file_of(tmp_path, gang_objects.THERE, damaged))
    assert "placementledgers gpus cannot be read" in shown.stderr
    assert none_has_led not in shown.stderr


def test_a_broken_object_is_left_out_and_named(tmp_path: Path) -> None:
    broken = of_kind({"metadata": {"name": "bad", "namespace": "a", "uid": "u"}, "spec": 7}, "Pod")
    file = file_of(tmp_path, [*RUNNING, pod("late", 1, phase="Pending")], broken)

    shown = run("why", "pod", "waits", "-n", "a", "--from", file)

    assert shown.exit_code == 0
    assert "pods a/bad cannot be read" in shown.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "invalid JSON"),
        (b"[1]", "not printed by kubectl"),
        (b'{"items": [1]}', "an item is not a Kubernetes object"),
        (b'{"items": []}', "no Node found"),
        (b"\x1f\x8bgarbage", "gzip"),
    ],
)
@pytest.mark.parametrize("command", [("nodes",), ("pods",), ("gangs",), ("why", "pod", "p"), ("why", "gang", "g")])
def test_a_file_that_is_no_cluster(tmp_path: Path, command: tuple[str, ...], content: bytes, words: str) -> None:
    (tmp_path / "c.json").write_bytes(content)

    found = run(*command, "--from", str(tmp_path / "c.json"))

    assert (found.exit_code, found.stdout) == (2, "")
    assert words in found.stderr


def test_a_file_excludes_a_connection(tmp_path: Path) -> None:
    file = file_of(tmp_path, [])

    for option in ("--context", "--kubeconfig"):
        found = run("nodes", "--from", file, option, "x")
        assert (found.exit_code, f"--from and {option} exclude each other" in found.stderr) == (2, True)


def test_nodes_as_one_file_to_mail_shows_the_chosen_nodes(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(cluster_text(20))
    found = run("nodes", "gpu-0002", "gpu-0003", "--from", str(tmp_path / "c.json"), "-o", "html")
    page = Page(found.stdout)

    assert found.exit_code == 0
    assert [each for each in page.ids() if each.startswith("node-")] == ["node-gpu-0002", "node-gpu-0003"]
    assert "of 16 GPUs free" in page.words
    assert not [tag for tag, _ in page.tags if tag in ("a", "script", "link", "form")]


COMMANDS = (("nodes",), ("nodes", "-o", "wide"), ("nodes", "-o", "html"), ("pods",), ("gangs",))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_that_is_not_utf_8_costs_only_the_damaged_object(tmp_path: Path, command: tuple[str, ...]) -> None:
    damaged = cluster_text(3).replace(b'"name": "gpu-0001"', b'"name": "gpu-\xff01"')
    assert b"\xff" in damaged
    (tmp_path / "c.json").write_bytes(damaged)

    found = run(*command, "--from", str(tmp_path / "c.json"))

    assert found.exception is None or isinstance(found.exception, SystemExit)
    assert found.exit_code == 0
    assert command == ("gangs",) or "gpu-0002" in found.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_hostile_node_name_reaches_no_terminal_and_stops_no_command(tmp_path: Path, command: tuple[str, ...]) -> None:
    cluster = json.loads(cluster_text(3))
    next(each for each in cluster["items"] if each["kind"] == "Node")["metadata"]["name"] = "a\x1b[2J\x07\u202eb\nc,d"
    (tmp_path / "c.json").write_text(json.dumps(cluster), encoding="utf-8")

    found = run(*command, "--from", str(tmp_path / "c.json"), color=True)  # colour: click keeps escape sequences

    assert found.exit_code == 0, found.output
    assert command == ("gangs",) or "gpu-0002" in found.stdout
    assert not [each for each in "\x07\u202e" if each in found.output]
    assert "\x1b[2J" not in found.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_name_that_is_longer_than_names_in_kubernetes_is_shortened(tmp_path: Path, command: tuple[str, ...]) -> None:
    text = cluster_text(6)
    for name in (b"gpu-0001", b"llm", b"next-model", b"r001"):
        text = text.replace(name, name + 50_000 * b"x")
    (tmp_path / "c.json").write_bytes(text)

    found = run(*command, "--from", str(tmp_path / "c.json"))

    said = re.sub(r' (id|href)="[^"]*"', "", found.output)  # of a page: not shown
    assert found.exit_code == 0, found.output[:1000]
    assert "xxx..." in said
    assert not re.findall(r"x{254,}", said)


@pytest.mark.parametrize(("spec", "marked"), [(True, True), (False, False), ("yes", False)])
def test_a_cordoned_node_of_a_file_is_marked(tmp_path: Path, spec: object, *, marked: bool) -> None:
    """A value of another type is no cordon, and does not hide the node."""
    node = of_kind({**NODE, "spec": {"unschedulable": spec}}, "Node")
    state = of_kind(STATE, "NodeGpus", "gputopo.io/v1alpha1")
    (tmp_path / "c.json").write_text(json.dumps({"kind": "List", "items": [node, state]}), encoding="utf-8")
    found = run("nodes", "--from", str(tmp_path / "c.json"), "-o", "json")

    assert [each["cordoned"] for each in json.loads(found.stdout)["items"]] == [marked]


@pytest.mark.parametrize("command", ["gangs", "nodes", "pods", "preemptions", "why"])
def test_help_and_error_name_the_same_kinds(tmp_path: Path, command: str) -> None:
    (tmp_path / "c.json").write_text("[]")

    texts = (run(command, "--help").stdout, run("nodes", "--from", str(tmp_path / "c.json")).stderr)

    in_help, in_error = (set(re.findall(r"[a-z]+(?:,[a-z]+){5}", text)) for text in texts)
    assert in_help == in_error
    assert len(in_error) == 1
