"""``gputopo scheduler-config``, up to the wire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gputopo.cli.config import CALLERS
from gputopo.cli.main import main
from gputopo.kube.rbac import NODES
from scheduler_core.extender.scheduler_config import Caller, render_configuration
from tests.api_server import Answer, api_server

CAPACITY = {"cpu": "64", "nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": "7"}
LISTED = {"metadata": {}, "items": [{"metadata": {"name": "n"}, "status": {"capacity": CAPACITY}}, {"metadata": {}}]}


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["scheduler-config", *arguments], input=given)


def test_the_resources_are_those_of_the_nodes_of_a_cluster_or_of_a_list_or_named(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps(LISTED))
    with api_server(lambda _: Answer(LISTED)) as server:
        of_cluster = run("--kubeconfig", server.kubeconfig(tmp_path / "config"))
        assert [each.path for each in server.asked] == [NODES.path()]

    assert of_cluster.exit_code == 0
    assert of_cluster.stdout == render_configuration(CAPACITY)
    assert run("--from", str(tmp_path / "nodes.json")).stdout == of_cluster.stdout
    assert run("--from", "-", given=json.dumps(LISTED)).stdout == of_cluster.stdout
    assert run("--resource", "nvidia.com/mig-1g.10gb").stdout == of_cluster.stdout


def test_the_configuration_is_printed_for_either_caller() -> None:
    assert tuple(each.value for each in Caller) == CALLERS
    for caller in Caller:
        printed = run("--for", caller.value, "--resource", "nvidia.com/gpu").stdout
        assert printed == render_configuration(["nvidia.com/gpu"], caller)


def test_another_namespace_is_where_the_lease_and_the_service_are() -> None:
    second, cluster = (
        run("--for", each, "--resource", "nvidia.com/gpu", "--namespace", "gpu-system").stdout for each in CALLERS
    )

    assert yaml.safe_load(second)["leaderElection"]["resourceNamespace"] == "gpu-system"
    assert yaml.safe_load(cluster)["extenders"][0]["tlsConfig"]["serverName"] == "gputopo-extender.gpu-system.svc"
    assert "kubectl -n gpu-system get service" in cluster
    assert "is not a valid namespace name" in run("--resource", "nvidia.com/gpu", "--namespace", "a: b").stderr


def test_a_check_prints_what_is_wrong_and_ends_with_1(tmp_path: Path) -> None:
    good = render_configuration([])
    (tmp_path / "config.yaml").write_text(good)

    fine = run("--check", str(tmp_path / "config.yaml"), "--resource", "nvidia.com/gpu")
    assert (fine.exit_code, fine.output) == (0, "")

    wrong = run("--check", "-", "--resource", "nvidia.com/mig-1g.10gb", given=good.replace("weight: 75", "weight: 1"))
    assert wrong.exit_code == 1
    assert wrong.stderr == "gputopo: -: 2 errors\n"
    assert wrong.stdout.splitlines() == [
        "extenders[0].weight is 1: the plugins, 1400, outweigh an island of 2 points x weight x 10; set 71 or more",
        (
            "extenders[0].managedResources has no nvidia.com/mig-1g.10gb: nodes have it, and pods that request it are "
            "placed without the extender"
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "given", "code", "message"),
    [
        pytest.param(
            ["--check", "-", "--resource", "nvidia.com/gpu"],
            "kind: Pod",
            2,
            "-: not a KubeSchedulerConfiguration but a 'Pod'",
            id="another kind",
        ),
        pytest.param(["--check", "-", "--resource", "nvidia.com/gpu"], "{", 2, "-: while parsing a flow", id="no YAML"),
        pytest.param(
            ["--from", "-"], "[]", 2, "-: not the output of `kubectl get nodes -o json`", id="no list of nodes"
        ),
        pytest.param(["--from", "x", "--resource", "y"], None, 2, "exclude each other", id="two sources of resources"),
        pytest.param(["--from", "-", "--check", "-"], None, 2, "cannot both be standard input", id="two files in one"),
        pytest.param(["--resource", "nvidia.com/gpus"], None, 2, "is not a GPU resource", id="a resource misspelled"),
        pytest.param(["--kubeconfig", "/nowhere"], None, 4, "/nowhere", id="no cluster"),
    ],
)
def test_errors_have_exit_codes_and_messages(arguments: list[str], given: str | None, code: int, message: str) -> None:
    done = run(*arguments, given=given)

    assert done.exit_code == code
    assert message in done.stderr
