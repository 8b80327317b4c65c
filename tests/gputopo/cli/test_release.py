"""``gputopo release``: its output and its requests. ``tests/e2e`` runs it against the real API server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gputopo.cli import main
from gputopo.cli.cleanup import cleanup
from gputopo.cli.release import release
from gputopo.kube.rbac import DEFINITIONS, LEASES, LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.labels import keys
from gputopo.labels import workloads as seen
from gputopo.timestamps import format_timestamp
from tests.api_server import Answer, Asked, api_server

OTHERS = "kueue.x-k8s.io/admission"
GANG = {keys.POD_GANG.key: "llm-7"}


def pod(name: str, *gates: str, namespace: str = "team-a", **metadata: Any) -> dict[str, Any]:
    whole = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7", **metadata}
    return {"metadata": whole, "spec": {"schedulingGates": [{"name": gate} for gate in gates]}}


GATED, BOTH = pod("train-0", keys.GATE, annotations=GANG), pod("train-1", OTHERS, keys.GATE, annotations=GANG)
OTHER, THEIRS = pod("alone", keys.GATE), pod("theirs", OTHERS)
SET = pod("set-0", keys.GATE, namespace="team-b", labels={seen.JOBSET: "llm"})
GROUP = pod("native-0", keys.GATE)
GROUP["spec"]["schedulingGroup"] = {"podGroupName": "llm"}


class Cluster:
    """A fake cluster: pods by name, whose gates patches remove. ``refusals`` are the first answers to patches."""

    def __init__(self, *pods: dict[str, Any], refusals: Iterable[Answer] = ()) -> None:
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.refusals = list(refusals)
        self.patched: list[Any] = []

    def __call__(self, request: Asked) -> Answer:
        """Answer one request."""
        if request.method == "GET":
            assert request.query["fieldSelector"] == "spec.nodeName=,status.phase=Pending"
            here = [
                each
                for each in self.pods.values()
                if PODS.path(namespace=each["metadata"]["namespace"]) == request.path
            ]
            return Answer({"metadata": {}, "items": list(self.pods.values()) if request.path == PODS.path() else here})
        if self.refusals:
            return self.refusals.pop(0)
        self.patched.append(request.body)
        left = request.body["spec"]["schedulingGates"] or []
        name = request.body["metadata"]["name"]
        self.pods[name] = {**self.pods[name], "spec": {"schedulingGates": left}}
        return Answer({"metadata": {"name": name}})


def run(cluster: Cluster, folder: Path, *arguments: str) -> Result:
    with api_server(cluster) as server:
        return CliRunner().invoke(release, ["--kubeconfig", server.kubeconfig(folder / "config"), *arguments])


@pytest.mark.parametrize(
    ("arguments", "released"),
    [
        pytest.param(["--all"], ["alone", "native-0", "set-0", "train-0", "train-1"], id="all"),
        pytest.param(["--all", "-n", "team-b"], ["set-0"], id="all of a namespace"),
        pytest.param(["-n", "team-a", "alone", "train-1"], ["alone", "train-1"], id="pods by name"),
        pytest.param(["-n", "team-a", "--gang", "llm-7"], ["train-0", "train-1"], id="a gang by our annotation"),
        pytest.param(["-n", "team-b", "--gang", "jobset.llm"], ["set-0"], id="a gang by a convention"),
        pytest.param(["-n", "team-a", "--gang", "group.llm"], ["native-0"], id="a gang of Kubernetes' own"),
    ],
)
def test_exactly_the_requested_pods_are_released(arguments: list[str], released: list[str], tmp_path: Path) -> None:
    cluster = Cluster(GATED, BOTH, OTHER, THEIRS, SET, GROUP)

    result = run(cluster, tmp_path, *arguments)

    assert (result.exit_code, sorted(each["metadata"]["name"] for each in cluster.patched)) == (0, released)


def test_a_release_removes_only_our_gate_from_the_same_pod(tmp_path: Path) -> None:
    cluster = Cluster(BOTH, GATED)

    result = run(cluster, tmp_path, "--all")

    metadata = {"namespace": "team-a", "resourceVersion": "7"}
    assert sorted(cluster.patched, key=str) == sorted(
        [
            {"metadata": {"name": "train-0", "uid": "uid-train-0", **metadata}, "spec": {"schedulingGates": []}},
            {
                "metadata": {"name": "train-1", "uid": "uid-train-1", **metadata},
                "spec": {"schedulingGates": [{"name": OTHERS}]},
            },
        ],
        key=str,
    )
    assert result.output == (f"released pods/team-a/train-1 (still held by {OTHERS})\nreleased pods/team-a/train-0\n")


def test_a_dry_run_lists_the_pods_and_writes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(GATED, BOTH, THEIRS)

    result = run(cluster, tmp_path, "--all", "--dry-run")

    assert (result.exit_code, cluster.patched) == (0, [])
    assert result.output == (
        f"would release pods/team-a/train-0\nwould release pods/team-a/train-1 (still held by {OTHERS})\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reported", "code"),
    [
        pytest.param(["--all"], "no pods with gputopo's scheduling gate", 0, id="at all"),
        pytest.param(
            ["--all", "-n", "team-b"],
            "no pods with gputopo's scheduling gate in namespace team-b",
            0,
            id="in a namespace",
        ),
        pytest.param(
            ["-n", "a", "--gang", "g"],
            "no pods with gputopo's scheduling gate in gang g in namespace a",
            0,
            id="of a gang",
        ),
        pytest.param(
            ["-n", "team-a", "theirs", "x"],
            "FAILED pods/team-a/theirs: no such pod with gputopo's scheduling gate\n"
            "FAILED pods/team-a/x: no such pod with gputopo's scheduling gate",
            4,
            id="by name",
        ),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["", "dry"])
def test_pods_without_the_gate_are_reported(
    arguments: list[str], reported: str, code: int, more: list[str], tmp_path: Path
) -> None:
    result = run(Cluster(THEIRS), tmp_path, *arguments, *more)

    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"{reported}\n")


def test_a_conflict_is_retried(tmp_path: Path) -> None:
    cluster = Cluster(GATED, refusals=[Answer({"message": "changed"}, 409)])

    result = run(cluster, tmp_path, "--all")

    assert (result.exit_code, result.output) == (0, "released pods/team-a/train-0\n")


def test_a_pod_that_was_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    def cluster(request: Asked) -> Answer:
        if request.method == "PATCH":
            left.clear()
            return Answer({"message": "gone"}, 404)
        return Answer({"metadata": {}, "items": left})

    left = [GATED]
    with api_server(cluster) as server:
        result = CliRunner().invoke(release, ["--kubeconfig", server.kubeconfig(tmp_path / "config"), "--all"])

    assert (result.exit_code, result.output) == (0, "released pods/team-a/train-0\n")


def test_a_failed_release_is_reported_with_the_reason(tmp_path: Path) -> None:
    result = run(Cluster(GATED, refusals=[Answer({"message": "a policy says no"}, 422)] * 3), tmp_path, "--all")

    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "FAILED PATCH /api/v1/namespaces/team-a/pods/train-0: 422: a policy says no\n"


def test_pods_that_are_gated_again_are_reported(tmp_path: Path) -> None:
    def cluster(request: Asked) -> Answer:
        return Answer(GATED if request.method == "PATCH" else {"metadata": {}, "items": [GATED]})

    with api_server(cluster) as server:
        result = CliRunner().invoke(release, ["--kubeconfig", server.kubeconfig(tmp_path / "config"), "--all"])

    assert result.exit_code == 4
    assert result.stdout.splitlines() == ["released pods/team-a/train-0"] * 3
    assert result.stderr == (
        "FAILED pods/team-a/train-0: it was gated again; remove the planner and its admission policies first\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="nothing"),
        pytest.param(["-n", "team-a"], id="a namespace alone"),
        pytest.param(["--all", "train-0"], id="all and one"),
        pytest.param(["--gang", "g", "train-0"], id="a gang and one"),
        pytest.param(["--all", "--gang", "g"], id="all and a gang"),
    ],
)
def test_exactly_one_way_to_name_pods_is_required(arguments: list[str]) -> None:
    result = CliRunner().invoke(release, arguments)

    assert result.exit_code == 2
    assert "specify exactly one of POD..., --gang NAME and --all" in result.output


def test_the_namespace_defaults_to_that_of_the_context(tmp_path: Path) -> None:
    cluster = Cluster(GATED, pod("train-0", keys.GATE, namespace="default"))

    result = run(cluster, tmp_path, "train-0")

    assert result.output == "released pods/default/train-0\n"


def test_the_list_of_commands_does_not_import_the_command() -> None:
    code = "import sys; from click.testing import CliRunner; from gputopo.cli.main import main;"
    code += "print('release ' in CliRunner().invoke(main, ['--help']).output, 'gputopo.cli.release' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True False\n"
    assert "gputopo release --all" in CliRunner().invoke(main.main, ["release", "--help"]).output


def test_a_clean_up_keeps_the_definitions_while_pods_are_gated(tmp_path: Path) -> None:
    asked: list[Asked] = []

    def cluster(request: Asked) -> Answer:
        asked.append(request)
        return Answer({"metadata": {}, "items": [GATED, BOTH]})

    with api_server(cluster) as server:
        arguments = ["--kubeconfig", server.kubeconfig(tmp_path / "config"), "--all", "--crd"]
        result = CliRunner().invoke(cleanup, arguments)

    assert [each.path for each in asked] == [PODS.path()]
    assert (result.exit_code, result.output) == (
        4,
        (
            "gputopo: the pod team-a/train-0 and 1 more would wait for a planner forever: "
            "remove the planner and its admission policies, then run `gputopo release --all`\n"
        ),
    )


def test_a_clean_up_removes_ledger_reservations_and_definitions_in_this_order(tmp_path: Path) -> None:
    plan = {"metadata": {"name": "llm-7-1a2b3c", "namespace": "team-a", "uid": "r"}}
    items = {
        PODS.path(): [THEIRS],
        NODES.path(): [],
        NODE_GPUS.path(): [],
        LEDGERS.path(): [{"metadata": {"name": "gpus", "uid": "l"}}],
        RESERVATIONS.path(): [plan],
    }

    def cluster(request: Asked) -> Answer:
        if request.path in items:
            return Answer({"metadata": {}, "items": items[request.path]})
        if request.path.startswith(DEFINITIONS.path("")):
            return Answer({"metadata": {"name": request.path.rpartition("/")[2], "uid": "d"}})
        return Answer("404 page not found", 404)

    with api_server(cluster) as server:
        config = server.kubeconfig(tmp_path / "config")
        result = CliRunner().invoke(cleanup, ["--kubeconfig", config, "--all", "--crd", "--dry-run"])

    assert result.output.splitlines() == [
        "would remove placementledgers/gpus",
        "would remove placementreservations/team-a/llm-7-1a2b3c",
        "would remove customresourcedefinitions/placementledgers.gputopo.io",
        "would remove customresourcedefinitions/placementreservations.gputopo.io",
        "would remove customresourcedefinitions/nodegpus.gputopo.io",
    ]


def test_a_clean_up_of_all_removes_leases_of_programs_that_have_ended(tmp_path: Path) -> None:
    now = format_timestamp(time.time())
    ended: dict[str, Any] = {
        "metadata": {"name": "gputopo-planner", "namespace": "gputopo", "uid": "p"},
        "spec": {"holderIdentity": ""},
    }
    running: dict[str, Any] = {
        "metadata": {"name": "gputopo-scheduler", "namespace": "gputopo", "uid": "s"},
        "spec": {"holderIdentity": "scheduler-0", "leaseDurationSeconds": 15, "renewTime": now},
    }
    deleted: list[str] = []

    def cluster(request: Asked) -> Answer:
        if request.method == "DELETE":
            deleted.append(request.path)
            return Answer({})
        named = request.query.get("fieldSelector", "") if request.path == LEASES.path() else ""
        items = [each for each in (ended, running) if each["metadata"]["name"] in named]
        return Answer({"metadata": {}, "items": items})

    with api_server(cluster) as server:
        arguments = ["--kubeconfig", server.kubeconfig(tmp_path / "config")]
        tried = CliRunner().invoke(cleanup, [*arguments, "--all", "--dry-run"])
        untouched = [*deleted]
        done = CliRunner().invoke(cleanup, [*arguments, "--all"])

    assert (tried.stdout, untouched) == ("would remove leases/gputopo/gputopo-planner\n", [])
    assert (done.exit_code, done.stdout) == (0, "removed leases/gputopo/gputopo-planner\n")
    assert deleted == [LEASES.path("gputopo-planner", "gputopo")]
    assert done.stderr.startswith("leases/gputopo/gputopo-scheduler stays: scheduler-0 renewed it ")
    assert done.stderr.endswith(" ago: remove that program, then run `gputopo cleanup --all` again\n")


def _of_scheduler(name: str, scheduler: str) -> dict[str, Any]:
    found = pod(name, keys.GATE)
    return {**found, "spec": {**found["spec"], "schedulerName": scheduler}}


@pytest.mark.parametrize("arguments", [["--all"], ["--all", "--dry-run"]], ids=["release", "dry run"])
def test_the_schedulers_that_released_pods_wait_for_are_named(arguments: list[str], tmp_path: Path) -> None:
    ours = [_of_scheduler(f"ours-{each}", "gputopo-scheduler") for each in range(2)]
    cluster = Cluster(*ours, _of_scheduler("cost", "cost-scheduler"), _of_scheduler("theirs", "default-scheduler"))

    result = run(cluster, tmp_path, *arguments)

    rest = (
        "and will wait until a scheduler of this name runs; otherwise change schedulerName in the templates and create "
        "the pods again"
    )
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"1 pod names the scheduler cost-scheduler {rest}",
        f"2 pods name the scheduler gputopo-scheduler {rest}",
    ]
