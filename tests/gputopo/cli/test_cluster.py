"""The commands that need a cluster, up to the wire. What they print of real clusters is in ``tests/e2e/agent``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from gputopo.cli import main
from gputopo.cli.cleanup import cleanup
from gputopo.cli.cluster import COMMANDS, nodes, pods, topology_of_node
from gputopo.kube.rbac import NODE_GPUS, NODES, PODS
from gputopo.labels import encode_topology
from gputopo.labels.keys import NVIDIA_COUNT, POD_VRAM, TOPOLOGY
from gputopo.render.label_lines import render_labels
from tests.api_objects import GPU
from tests.api_server import Answer, ApiServer, Asked, api_server
from tests.machines import dgx1

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-21T12:00:00Z"}
UUIDS = [gpu.uuid for gpu in dgx1().gpus]
FACTS = encode_topology(dgx1())
NODE = {"metadata": {"name": "gpu-0", "uid": "u", "labels": FACTS.labels, "annotations": FACTS.annotations}}
HELD = [{"gpu": UUIDS[i], "pod": {"namespace": "a", "name": "train", "container": "c"}} for i in (0, 1)]
STATE = {
    "metadata": {"name": "gpu-0"},
    "observedAt": datetime.now(UTC).isoformat(),
    "contentHash": "",
    "agentVersion": "0.1.0",
    "allocations": HELD,
    "usage": [{"gpu": UUIDS[i], "usedMemoryPercent": 60, "busyPercent": 30 * i} for i in (0, 1)],
}


def listed(*items: object) -> Answer:
    return Answer({"metadata": {}, "items": items})


def cluster(request: Asked) -> Answer:
    """A cluster of one node with one pod of two GPUs."""
    answers = {
        NODES.path(): listed(NODE),
        NODES.path("gpu-0"): Answer(NODE),
        NODES.path("bare"): Answer({"metadata": {"name": "bare"}}),
        NODES.path("broken"): Answer({"metadata": {"name": "broken", "annotations": {TOPOLOGY.key: "{"}}}),
        NODE_GPUS.path(): listed(STATE),
        PODS.path(): listed({"metadata": {"name": "train", "namespace": "a", "annotations": {POD_VRAM.key: "15Gi"}}}),
    }
    return answers.get(request.path, Answer({"message": "not found", "details": {"name": "x"}}, 404))


def run(command: click.Command, server: ApiServer, folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--kubeconfig", server.kubeconfig(folder / "config"), *arguments])


def test_nodes_in_every_format(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        table, wide, as_json, as_yaml = (
            run(nodes, server, tmp_path, "-o", each).output for each in ("table", "wide", "json", "yaml")
        )

    assert table.splitlines()[1].split()[-5:-1] == ["8", "8", "6/8", "-"]
    assert "DRIVER" in wide.splitlines()[0]
    assert " 60 % ? 0-30 % " in " ".join(wide.splitlines()[1].split())
    assert json.loads(as_json)["items"][0]["usage"][1] == {
        "gpu": 1,
        "usedMemoryPercent": 60,
        "claimedMemoryPercent": None,
        "busyPercent": 30,
    }
    assert [each["name"] for each in json.loads(as_json)["items"]] == ["gpu-0"]
    assert yaml.safe_load(as_yaml)["kind"] == "GpuNodeList"


def recorded(folder: Path, *items: Any) -> str:
    """A file of a cluster, as kubectl prints it."""
    path = folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": list(items)}))
    return str(path)


def gpu_pod(name: str, phase: str, *containers: int, **spec: Any) -> dict[str, Any]:
    """A pod on the node."""
    made = [{"name": f"c{n}", "resources": {"limits": {GPU: str(n)}}} for n in containers]
    metadata = {"name": name, "namespace": "a", "uid": name}
    spec = {"nodeName": "gpu-0", "containers": made, **spec}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def test_without_reports_free_gpus_follow_from_the_requests_of_pods(tmp_path: Path) -> None:
    node = {"kind": "Node", **NODE, "status": {"allocatable": {GPU: "8"}, "capacity": {GPU: "8"}}}
    report = {key: value for key, value in STATE.items() if key not in ("allocations", "usage")}
    items = [node, {"kind": "NodeGpus", **report}]
    init = [{"name": "i", "resources": {"limits": {GPU: "3"}}}]
    pods = [gpu_pod("p", "Running", 1, 1, initContainers=init), gpu_pod("q", "Pending", 1), gpu_pod("z", "Failed", 4)]

    def free(*more: Any) -> list[Any]:
        path = recorded(tmp_path, *items, *more)
        table = CliRunner().invoke(nodes, ["--from", path]).stdout
        (item,) = json.loads(CliRunner().invoke(nodes, ["--from", path, "-o", "json"]).stdout)["items"]
        return [re.split(r"  +", table.splitlines()[1])[4], item["free"], item["islands"][0]["free"]]

    assert free(*pods) == ["4/8, indices: ?", 4, None]
    assert free({"kind": "Pod", "metadata": {"name": "web", "namespace": "a"}}) == ["8/8", 8, 8]
    assert free() == ["?", None, None]  # a file without pods: not known


@pytest.mark.parametrize(
    ("allocatable", "free"),
    [
        pytest.param({GPU: "8"}, 6, id="all are offered"),
        pytest.param({GPU: "7"}, 5, id="one is unhealthy"),
        pytest.param({GPU: "0"}, 0, id="no device plugin any more"),
        pytest.param({}, 6, id="no device plugin was ever there"),
        pytest.param({GPU: "7", "nvidia.com/mig-1g.10gb": "7"}, 6, id="one is in MIG mode"),
        pytest.param({GPU: "7", "nvidia.com/gpu.shared": "0"}, 5, id="shares are no longer offered"),
    ],
)
def test_gpus_that_the_device_plugin_does_not_offer_are_not_free(
    tmp_path: Path, allocatable: dict[str, str], free: int
) -> None:
    """As on the page, and for `gputopo what-if`."""
    node = {"kind": "Node", **NODE, "status": {"allocatable": allocatable}}
    path = recorded(tmp_path, node, {"kind": "NodeGpus", **STATE}, gpu_pod("train", "Running", 2))

    (item,) = json.loads(CliRunner().invoke(nodes, ["--from", path, "-o", "json"]).stdout)["items"]

    assert item["free"] == free


@pytest.mark.parametrize(
    ("allocatable", "free"),
    [
        pytest.param({GPU: "7"}, 5, id="one is unhealthy"),
        pytest.param({}, 6, id="no device plugin was ever there"),
        pytest.param({GPU: "7", "nvidia.com/mig-1g.10gb": "7"}, 6, id="one is in MIG mode"),
    ],
)
def test_without_a_report_the_offered_gpus_count_as_with_one(
    tmp_path: Path, allocatable: dict[str, str], free: int
) -> None:
    node = {"kind": "Node", **NODE, "status": {"allocatable": allocatable}}
    report = {key: value for key, value in STATE.items() if key not in ("allocations", "usage")}
    path = recorded(tmp_path, node, {"kind": "NodeGpus", **report}, gpu_pod("train", "Running", 2))

    (item,) = json.loads(CliRunner().invoke(nodes, ["--from", path, "-o", "json"]).stdout)["items"]

    assert item["free"] == free


def test_a_user_who_may_not_list_pods_sees_nodes_with_unknown_free_gpus(tmp_path: Path) -> None:
    def forbidden(request: Asked) -> Answer:
        if request.path == NODE_GPUS.path():
            return listed()
        return Answer({"message": "forbidden"}, 403) if request.path == PODS.path() else cluster(request)

    with api_server(forbidden) as server:
        result = run(nodes, server, tmp_path)

    assert result.exit_code == 0
    assert re.split(r"  +", result.stdout.splitlines()[1])[4] == "?"


def test_a_file_without_nodegpus_does_not_say_that_agents_are_missing(tmp_path: Path) -> None:
    path = recorded(tmp_path, {"kind": "Node", **NODE}, gpu_pod("p", "Running", 2))
    result = CliRunner().invoke(nodes, ["--from", path])

    assert re.split(r"  +", result.stdout.splitlines()[1])[-1] == "?"
    assert "never" not in result.stdout
    assert "no agent" not in result.stderr
    assert result.stderr.startswith("gputopo: the file has no NodeGpus: which GPUs the pods hold")
    assert "kubectl get nodes,pods,nodegpus" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["nodes"], "8", id="nodes"),
        pytest.param(["pods"], "no running GPU pods found", id="pods"),
        pytest.param(["gangs"], "no gangs found", id="gangs"),
        pytest.param(["why", "pod", "p"], "there is no pod p in", id="why"),
        pytest.param(["what-if", "-f", "pod.yaml"], "fits", id="what-if"),
    ],
)
def test_a_file_without_pods_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    path = recorded(tmp_path, {"kind": "Node", **NODE}, {"kind": "NodeGpus", **STATE})
    (tmp_path / "pod.yaml").write_text(json.dumps({"kind": "Pod", **gpu_pod("p", "Pending", 1)}))
    filled = [str(tmp_path / each) if each == "pod.yaml" else each for each in arguments]

    result = CliRunner().invoke(main.main, [*filled, "--from", path])

    assert result.stderr.startswith("gputopo: the file has no Pods: which GPUs they request, and which of them wait")
    assert said in result.output


@pytest.mark.parametrize(
    ("spec", "marked", "reasons"),
    [
        pytest.param({"unschedulable": True}, "0/8 cordoned", ["cordoned"], id="cordoned"),
        pytest.param({"taints": [NOT_READY, {**NOT_READY, "effect": "NoExecute"}]}, "0/8 not ready", ["not ready"],
                     id="not ready"),
        pytest.param({"taints": [UNREACHABLE]}, "0/8 unreachable", ["unreachable"], id="unreachable"),
        pytest.param({"unschedulable": True, "taints": [UNREACHABLE]}, "0/8 cordoned, unreachable",
                     ["cordoned", "unreachable"], id="both"),
        pytest.param({"taints": [{"key": "pool", "value": "a", "effect": "NoSchedule"}]}, "6/8", [], id="a pool"),
        pytest.param({"taints": [{**NOT_READY, "effect": "PreferNoSchedule"}]}, "6/8", [], id="a preference"),
        pytest.param({"taints": [None, 7, {"key": ["x"]}]}, "6/8", [], id="no taints"),
        pytest.param({"taints": "not-ready"}, "6/8", [], id="no list"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_new_pods_is_marked(
    tmp_path: Path, spec: dict[str, Any], marked: str, reasons: list[str]
) -> None:
    def tainted(request: Asked) -> Answer:
        return listed({**NODE, "spec": spec}) if request.path == NODES.path() else cluster(request)

    with api_server(tainted) as server:
        table, as_json = (run(nodes, server, tmp_path, "-o", each).output for each in ("table", "json"))

    (item,) = json.loads(as_json)["items"]
    assert re.split(r"  +", table.splitlines()[1])[4] == marked
    assert (item["unusableReasons"], item["cordoned"]) == (reasons, "cordoned" in reasons)
    expected = (6, 0, 0) if not reasons else (0, 6, 0) if item["cordoned"] else (0, 0, 6)
    assert (item["free"], item["draining"], item["tainted"]) == expected
    assert sum(each["free"] for each in item["islands"]) == item["free"]


def test_nodes_are_listed_once_and_only_the_selected_ones(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        run(nodes, server, tmp_path, "-l", "pool=a")

    assert [each.query["labelSelector"] for each in server.asked if each.path == NODES.path()] == ["pool=a"]


def test_pods_ask_for_the_metadata_of_nodes_with_labels_only(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        run(pods, server, tmp_path)

    asked = {
        request.query.get("labelSelector", ""): "PartialObjectMetadataList" in request.headers["accept"]
        for request in server.asked
        if request.path == NODES.path()
    }
    assert asked == {"": True, "!gputopo.io/schema,!nvidia.com/gpu.count": False}


def test_pods_in_every_format(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        table, wide, as_json, as_yaml = (
            run(pods, server, tmp_path, "-o", each).output for each in ("table", "wide", "json", "yaml")
        )

    row = " ".join(table.splitlines()[1].split())
    assert row == "a train gpu-0 GPU0,1 2 0 50 nvlink 100 nvlink 100 nvlink 50 %"
    assert " ".join(wide.splitlines()[1].split()) == f"{row} 60 % ? 0-30 % 15 GiB"
    assert json.loads(as_json) == yaml.safe_load(as_yaml)
    assert [each["name"] for each in json.loads(as_json)["items"]] == ["train"]


def test_full_pods_are_read_only_from_nodes_without_allocations(tmp_path: Path) -> None:
    asking = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}}, {}], "nodeName": "gpu-0"}

    def silent(request: Asked) -> Answer:
        if request.path == NODE_GPUS.path():
            return Answer("404 page not found", 404)
        if request.path == PODS.path() and "spec.nodeName" in request.query["fieldSelector"]:
            return listed({"metadata": {"name": "train", "namespace": "a"}, "spec": asking})
        return cluster(request)

    with api_server(silent) as server:
        document = json.loads(run(pods, server, tmp_path, "-o", "json").output)

    assert [(each["name"], each["count"], each["gpus"]) for each in document["items"]] == [("train", 2, None)]
    (full,) = [
        request
        for request in server.asked
        if request.headers["accept"] == "application/json" and request.path == PODS.path()
    ]
    assert full.query["fieldSelector"] == "status.phase=Running,spec.nodeName=gpu-0"


def test_pods_are_asked_for_all_at_once_where_many_nodes_are_silent(tmp_path: Path) -> None:
    labelled = [{"metadata": {"name": f"n{i}", "labels": {NVIDIA_COUNT.key: "8"}}} for i in range(40)]
    mig = {"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}]}
    running = [
        {"metadata": {"name": "on-n7", "namespace": "a"}, "spec": mig | {"nodeName": "n7"}},
        {"metadata": {"name": "elsewhere", "namespace": "a"}, "spec": mig | {"nodeName": "other"}},
        {"metadata": {"name": "no-gpu", "namespace": "a"}, "spec": {"nodeName": "n7"}},
    ]

    def silent(request: Asked) -> Answer:
        answers = {NODES.path(): listed(*labelled), PODS.path(): listed(*running)}
        return answers.get(request.path, listed())

    with api_server(silent) as server:
        document = json.loads(run(pods, server, tmp_path, "-o", "json").output)

    assert [(each["name"], each["node"], each["count"]) for each in document["items"]] == [("on-n7", "n7", 1)]
    assert [request.query["fieldSelector"] for request in server.asked if request.path == PODS.path()] == [
        "status.phase=Running"
    ] * 2


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        pytest.param(nodes, "no GPU nodes found\n", id="nodes"),
        pytest.param(pods, "no running GPU pods found\n", id="pods"),
    ],
)
def test_an_empty_cluster_is_reported(command: click.Command, reported: str, tmp_path: Path) -> None:
    with api_server(lambda _: listed()) as server:
        result = run(command, server, tmp_path)

    assert (result.exit_code, result.output) == (0, reported)


def test_a_node_shows_what_it_carries(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        assert topology_of_node("gpu-0", server.kubeconfig(tmp_path / "config")) == dgx1().stable_facts()


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        pytest.param("gone", "gputopo: there is no node 'gone'\n", id="no such node"),
        pytest.param("gpu-00", "gputopo: there is no node 'gpu-00'; did you mean gpu-0?\n", id="nearly a node"),
        pytest.param("bare", "node bare: the node has no annotation", id="a node without labels of ours"),
        pytest.param("broken", "node broken: the topology annotation is damaged", id="a damaged annotation"),
    ],
)
def test_a_node_that_cannot_be_shown_says_why(
    name: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with api_server(cluster) as server, pytest.raises(SystemExit) as ended:
        topology_of_node(name, server.kubeconfig(tmp_path / "config"))

    assert ended.value.code == 4
    assert reported in capsys.readouterr().err


def test_show_and_diff_take_a_node(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        there = ["--node", "gpu-0", "--kubeconfig", server.kubeconfig(tmp_path / "config")]
        shown = CliRunner().invoke(main.main, ["show", *there, "-o", "labels"])
        same = CliRunner().invoke(main.main, ["diff", *there, "gpu-0.json"])
        recorded = CliRunner().invoke(main.main, ["diff", *there, "dgx-1", "--exit-code"])

    assert shown.output == render_labels(dgx1().stable_facts())
    assert (same.exit_code, "'gpu-0.json' is neither a file" in same.output) == (2, True)
    assert recorded.exit_code == 1
    assert "machine: " in recorded.output


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        pytest.param(
            ["show", "--node", "n", "--from", "dgx-1"],
            "--node n and the machine dgx-1 exclude each other",
            id="show of two",
        ),
        pytest.param(
            ["diff", "--node", "n", "a", "b"], "--node n and the machine a exclude each other", id="diff of three"
        ),
        pytest.param(["diff"], "specify BEFORE or --node NAME", id="diff of one"),
    ],
)
def test_a_node_takes_the_place_of_a_file(arguments: list[str], reported: str) -> None:
    result = CliRunner().invoke(main.main, arguments)

    assert result.exit_code == 2
    assert reported in result.output


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        pytest.param([], "specify exactly one of --node NAME and --all", id="neither"),
        pytest.param(["--node", "n", "--all"], "specify exactly one of --node NAME and --all", id="both"),
        pytest.param(["--node", "n", "--crd"], "it requires --all", id="the definition for one node"),
    ],
)
def test_a_clean_up_wants_to_know_of_what(arguments: list[str], reported: str) -> None:
    result = CliRunner().invoke(cleanup, arguments)

    assert result.exit_code == 2
    assert reported in result.output


@pytest.mark.parametrize("command", [pytest.param(each, id=str(each.name)) for each in COMMANDS])
def test_no_cluster_is_an_end_with_advice(command: click.Command, tmp_path: Path) -> None:
    arguments = ["--all"] if command is cleanup else []

    result = CliRunner().invoke(command, ["--kubeconfig", str(tmp_path / "none"), *arguments])

    assert result.exit_code == 4
    assert result.output.startswith(f"gputopo: the kubeconfig {tmp_path}/none cannot be used: ")


@pytest.mark.parametrize("command", [pytest.param(each, id=str(each.name)) for each in COMMANDS])
def test_help_shows_examples_of_itself(command: click.Command) -> None:
    text = CliRunner().invoke(command, ["--help"]).output

    assert "Examples:" in text
    assert f"gputopo {command.name}" in text


def test_the_commands_cost_nothing_until_they_are_used() -> None:
    code = "import sys, click; before = set(sys.modules); import gputopo.cli.cluster; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    names = ("cluster", "complete", "connection", "output", "progress", "terminal", "watch")
    light = {f"gputopo.cli.{name}" for name in names}
    assert set(loaded) <= {"gputopo", "gputopo.cli", "gputopo.cluster_kinds", *light}


DEEP = '{"a":' * 3_000 + "{}" + "}" * 3_000


def test_deep_fields_are_skipped_and_unreadable_objects_are_named(tmp_path: Path) -> None:
    def hostile(request: Asked) -> Answer:
        if request.path == NODES.path():
            annotated = {"name": "odd", "uid": "o", "labels": FACTS.labels, "annotations": {TOPOLOGY.key: DEEP}}
            items = [json.dumps(NODE), json.dumps({"metadata": annotated}), '{"metadata":{"name":"bad","labels":7}}']
            return Answer(f'{{"metadata":{{}},"items":[{",".join(items)}]}}')
        if request.path == PODS.path():
            fields = f'"managedFields":[{{"fieldsV1":{DEEP}}}]'
            return Answer(f'{{"metadata":{{}},"items":[{{"metadata":{{"name":"train","namespace":"a",{fields}}}}}]}}')
        return cluster(request)

    with api_server(hostile) as server:
        of_nodes, of_pods = run(nodes, server, tmp_path), run(pods, server, tmp_path)

    assert (of_nodes.exit_code, of_pods.exit_code) == (0, 0)
    assert [line.split()[0] for line in of_nodes.stdout.splitlines()[1:]] == ["gpu-0", "odd"]
    assert "train" in of_pods.stdout
    left_out = (
        "gputopo: nodes bad cannot be read: Expected `object`, got `int` - at `$.metadata.labels`; it is left out"
    )
    assert left_out in of_nodes.stderr


def test_named_nodes_and_no_titles(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        config = str(server.kubeconfig(tmp_path / "config"))

        def run(command: click.Command, *arguments: str) -> Result:
            return CliRunner().invoke(command, ["--kubeconfig", config, *arguments])

        one, both = run(nodes, "gpu-0", "-A", "--no-headers"), run(nodes, "gpu-0", "gpu-9")
        none, all_pods = run(nodes, "gpu-9"), run(pods, "-A", "--no-headers")
        clash = run(pods, "-A", "-n", "a")

    assert one.stdout.startswith("gpu-0")
    assert (both.exit_code, both.stdout.split()[0], both.stderr) == (
        4,
        "NODE",
        "gputopo: there is no GPU node 'gpu-9'; did you mean gpu-0?\n",
    )
    assert (none.exit_code, none.stdout) == (4, "")
    assert none.stderr == both.stderr
    assert all_pods.stdout.split()[:2] == ["a", "train"]
    assert (clash.exit_code, "exclude each other" in clash.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        pytest.param(["nodes"], True, id="nodes"),
        pytest.param(["why", "pod", "train"], True, id="why"),
        pytest.param(["release", "--all"], False, id="release"),
        pytest.param(["show", "--node", "n"], False, id="show: its files are of a machine"),
    ],
)
def test_without_a_kubeconfig_the_option_for_a_file_is_named(command: list[str], hint: bool, tmp_path: Path) -> None:
    environ = {"KUBECONFIG": str(tmp_path / "none"), "KUBERNETES_SERVICE_HOST": None}
    result = CliRunner(env=environ).invoke(main.main, command)

    assert result.exit_code == 4
    assert "Set KUBECONFIG" in result.stderr
    assert ("; to read a file of the objects of a cluster instead, use --from FILE" in result.stderr) == hint
