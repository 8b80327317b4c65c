"""`what-if -f` and `why -f` with several pods: those of a gang are planned together, and no pod is ignored silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gputopo.cli.main import main
from gputopo.labels import encode_topology, keys
from tests.api_objects import GPU, gpu_node
from tests.machines import hgx_h100


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Three nodes of eight GPUs; a pod holds four of one node."""
    facts = encode_topology(hgx_h100())
    nodes = [gpu_node(f"n{number}", 8, dict(facts.labels)) for number in range(3)]
    for node in nodes:
        node["metadata"]["annotations"] = dict(facts.annotations)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": [*nodes, pod("train", 4, nodeName="n0")]}))
    return path


def pod(name: str, gpus: int, gang: str | None = None, size: int = 2, **spec: Any) -> dict[str, Any]:
    """A pod, perhaps of a gang."""
    annotations = {} if gang is None else {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: str(size)}
    containers = [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": containers, **spec}}


def run(command: str, cluster: Path, *pods: dict[str, Any], options: tuple[str, ...] = ()) -> Result:
    path = cluster.parent / "pods.yaml"
    path.write_text(yaml.safe_dump_all(pods))
    return CliRunner().invoke(main, [command, "-f", str(path), "--from", str(cluster), *options])


@pytest.mark.parametrize("command", ["what-if", "why"])
@pytest.mark.parametrize("gates", [(), ({"name": keys.GATE},)], ids=["not gated", "gated"])
def test_all_pods_of_a_gang_are_planned(command: str, gates: tuple[dict[str, str], ...], cluster: Path) -> None:
    fits = run(command, cluster, *(pod(f"g-{n}", 8, "g", schedulingGates=list(gates)) for n in range(2)))
    three = run(command, cluster, *(pod(f"g-{n}", 8, "g", 3) for n in range(3)))

    assert fits.exit_code == three.exit_code == 0
    assert fits.stdout.startswith("gang default/g: queued: 2 members to be placed.")
    assert "It fits now, on 2 nodes" in fits.stdout
    assert fits.stderr == three.stderr == ""
    assert "It does not fit now: 2 of 3 members fit at once." in three.stdout


def test_a_gang_as_a_document(cluster: Path) -> None:
    found = run("what-if", cluster, *(pod(f"g-{n}", 8, "g") for n in range(2)), options=("-o", "json"))

    (place,) = json.loads(found.stdout)["places"]
    assert (place["of"], [each["gpus"] for each in place["stops"]]) == ("now", [8, 8])


@pytest.mark.parametrize("command", ["what-if", "why"])
def test_pods_that_are_not_considered_are_named(command: str, cluster: Path) -> None:
    web = {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}
    alone = run(command, cluster, web, pod("a", 4), web, pod("b", 8), pod("c", 1))
    gang = run(command, cluster, pod("g-0", 8, "g"), pod("b", 8), pod("g-1", 8, "g"))
    quiet = run(command, cluster, web, pod("a", 4), web)

    assert "further pods with GPUs, which are not considered: b, c; to explain one" in alone.stderr
    assert "further pods with GPUs, which are not considered: b; to explain one" in gang.stderr
    assert gang.stdout.startswith("gang default/g: queued: 2 members")
    assert quiet.stderr == ""


def test_pods_of_a_gang_that_exists_are_not_counted_twice(cluster: Path) -> None:
    members = [pod(f"g-{n}", 8, "g", schedulingGates=[{"name": keys.GATE}]) for n in range(2)]
    document = json.loads(cluster.read_text())
    cluster.write_text(json.dumps({**document, "items": [*document["items"], *members]}))
    found = run("why", cluster, *members)

    assert "the gang default/g exists already: its pods are explained" in found.stderr
    assert found.stdout.startswith("gang default/g: queued: 2 members to be placed.")


def test_one_pod_of_a_gang_is_explained_as_a_pod(cluster: Path) -> None:
    found = run("what-if", cluster, pod("g-0", 8, "g"))
    node = run("why", cluster, *(pod(f"g-{n}", 8, "g") for n in range(2)), options=("--node", "n1"))

    assert found.stdout.startswith("default/g-0 fits on n")
    assert node.stdout.startswith("pod default/g-0")
    assert "not considered: g-1" in node.stderr
