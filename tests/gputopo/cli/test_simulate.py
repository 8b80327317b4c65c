"""``gputopo simulate`` and ``gputopo what-if``, as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.labels import encode_topology
from tests.machines import MACHINES

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,96000,400000,8,G2\nb,104000,500000,2,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,8000,1,1,1000\ny,8000,1,2,1000\nz,4000,1,1,500\n"
POD = "kind: Pod\nmetadata: {name: train, namespace: team}\nspec:\n  containers:\n  - name: c\n    resources: "


CAVEATS_OF_MATRIX = (
    "NVLink bandwidth unknown on 8 nodes",
    "PCIe distances of GPUs with NVLinks unknown on 8 nodes",
    "`gputopo record` on the machine writes a file with these facts",
)


def _run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main.main, list(arguments))
    return found.exit_code, found.output


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    facts = encode_topology(MACHINES["a100_bridged"]())
    metadata = {"name": "gpu-1", "labels": facts.labels, "annotations": facts.annotations}
    node = {"kind": "Node", "metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    idle = {"kind": "Pod", "metadata": {"name": "idle", "namespace": "team"}, "spec": {"nodeName": "gpu-1"}}
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [node, idle]}))
    (tmp_path / "pod.yaml").write_text(POD + '{limits: {nvidia.com/gpu: "2"}}\n')
    (tmp_path / "plain.yaml").write_text(POD + "{}\n")
    return tmp_path


def test_trace_files(files: Path) -> None:
    code, said = _run(
        "simulate", "--cluster", str(files / "nodes.csv"), "--workload", str(files / "pods.csv"), "-o", "json"
    )

    assert code == 0, said
    assert [row["policy"] for row in json.loads(said)["replays"]] == ["ours", "spread", "pack", "fgd"]


def test_each_profile_of_a_policy_file_is_a_policy_of_its_own(files: Path) -> None:
    """Judged by what its file says that pods ask for."""
    (files / "policy.yaml").write_text(
        "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\nprofiles:\n"
        "  - {name: machines, match: {}, mix: [{gpus: 8, weight: 1.0}]}\n"
    )
    nodes, pods, policy = (str(files / name) for name in ("nodes.csv", "pods.csv", "policy.yaml"))
    asked = ["simulate", "--cluster", nodes, "--workload", pods, "--policies", "spread"]

    code, said = _run(*asked, "--policy", policy, "-o", "json")
    _, text = _run(*asked, "--policy", policy)

    assert code == 0, said
    assert [row["policy"] for row in json.loads(said)["replays"]] == ["spread", "ours:machines", "ours:default"]
    assert "gputopo, all pods by the profile machines" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [pytest.param(b"\xff", "not UTF-8 text", id="no text"), pytest.param(b"kind: X", "1:1", id="no policy")],
)
def test_an_invalid_policy_file_is_an_error(files: Path, content: bytes, said: str) -> None:
    (files / "policy.yaml").write_bytes(content)

    code, output = _run("simulate", "--cluster", "8a100-2n-pairs12*4", "--policy", str(files / "policy.yaml"))

    assert code == 2
    assert said in output


def _figures(*arguments: str) -> tuple[list[dict[str, Any]], str]:
    """Return the figures without the times per decision, and standard error."""
    found = CliRunner().invoke(main.main, ["simulate", *arguments, "-o", "json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["replays"]
    return [{key: value for key, value in row.items() if "latency" not in key} for row in rows], found.stderr


@pytest.mark.parametrize("machine", ["a100-pcie", "dgx-1"])
@pytest.mark.parametrize("names", [True, False], ids=["with -L", "alone"])
def test_a_pasted_matrix_gives_the_figures_of_the_bundled_machine(tmp_path: Path, machine: str, names: bool) -> None:
    product = {"a100-pcie": "NVIDIA A100 80GB PCIe", "dgx-1": "Tesla V100-SXM2-16GB"}[machine]
    lines = [f"GPU {gpu}: {product} (UUID: GPU-0000000{gpu}-aaaa-bbbb-cccc-1234567890ab)\n" for gpu in range(8)]
    matrix = CliRunner().invoke(main.main, ["show", machine, "-o", "matrix"]).stdout
    pasted = tmp_path / "pasted.txt"
    pasted.write_text("".join(lines if names else []) + matrix)
    asked = ("--jobs", "150", "--policies", "ours,ours-required,spread,pack")

    known, _ = _figures("--cluster", f"{machine}*8", *asked)
    found, caveats = _figures("--cluster", f"{pasted}*8", *asked)

    without = {} if names else {"bandwidth": None, "unknown": ["bandwidth"]}
    assert found == [row | without for row in known]
    assert all(row["island_share"] is not None for row in found)
    assert ("50 GB/s per NVLink" in caveats) is not names


def test_what_a_pasted_matrix_hides_is_said_once_and_an_unknown_percentage_is_a_question_mark(tmp_path: Path) -> None:
    pasted = tmp_path / "pasted.txt"
    pasted.write_text(CliRunner().invoke(main.main, ["show", "a100-pcie", "-o", "matrix"]).stdout)
    asked = ["simulate", "--cluster", f"{pasted}*8", "--jobs", "30", "--policies", "ours,spread"]

    text, page = (CliRunner().invoke(main.main, [*asked, "-o", output]) for output in ("text", "html"))

    assert [text.stderr.count(each) for each in CAVEATS_OF_MATRIX] == [1, 1, 1]
    assert all(line.split().count("?") == 1 for line in text.stdout.splitlines()[3:5])
    assert all(each in page.stdout for each in CAVEATS_OF_MATRIX[:2])
    assert "<td>?</td>" in page.stdout


def test_nodes_with_unknown_nvlinks_do_not_count_in_islands_and_bandwidth(tmp_path: Path) -> None:
    """``nvidia-smi -L`` alone."""
    pasted = tmp_path / "list.txt"
    pasted.write_text("".join(f"GPU {gpu}: NVIDIA A100 80GB PCIe (UUID: GPU-{gpu})\n" for gpu in range(8)))
    asked = ("--jobs", "30", "--policies", "spread")

    (alone,), said = _figures("--cluster", f"{pasted}*2", *asked)
    (beside,), _ = _figures("--cluster", f"{pasted}*1", "--cluster", "dgx-a100*1", *asked)

    assert (alone["island_share"], alone["bandwidth"]) == (None, None)
    assert alone["unknown"] == ["island_share", "bandwidth"]
    assert (beside["island_share"], beside["bandwidth"], beside["unknown"]) == (1.0, 1.0, [])
    assert said.count("NVLinks unknown on 2 nodes") == 1


def test_the_spelling_of_a_machine_changes_no_placement(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.json"
    recorded.write_bytes(Path("fixtures/machines/8a100-2n-pairs12/snapshot.json").read_bytes())
    asked = ("--jobs", "100", "--policies", "ours,pack")
    sources = ("a100-pcie*8", "8a100-2n-pairs12*8", f"{recorded}*8")

    one, other, file = (_figures("--cluster", source, *asked) for source in sources)
    twice = _figures("--cluster", "a100-pcie*4", "--cluster", "a100-pcie*4", *asked)

    assert one == other == file == twice


def test_the_figures_of_the_readme() -> None:
    text = Path("README.md").read_text(encoding="utf-8").replace("\n", " ")
    assert "gputopo simulate --cluster 'a100-pcie*8' --jobs 1000 " in text

    rows, _ = _figures("--cluster", "a100-pcie*8", "--jobs", "1000", "--policies", "ours,pack,spread")

    inside, waits = ([row[key] for row in rows] for key in ("island_share", "mean_wait_s"))
    shares = "gputopo places {:.0f} % of the pods with two GPUs in one island; kube-scheduler places {:.0f} % "
    shares += "(MostAllocated) or {:.0f} % (LeastAllocated)"
    assert shares.format(*(100 * share for share in inside)) in text
    means = "The mean wait is {:.0f} s with gputopo, {:.0f} s with MostAllocated and {:.0f} s with LeastAllocated"
    assert means.format(*waits) in text


def test_a_file_of_one_machine_without_a_number_is_an_error_that_names_the_number(tmp_path: Path) -> None:
    pasted, recorded = tmp_path / "pasted.txt", Path("fixtures/machines/8a100-2n-pairs12/snapshot.json")
    pasted.write_text(CliRunner().invoke(main.main, ["show", "a100-pcie", "-o", "matrix"]).stdout)

    for file in (pasted, recorded):
        code, said = _run("simulate", "--cluster", str(file))

        assert code == 2
        assert f"for a file that describes one machine: --cluster '{file}*1'" in said


def test_jobs_larger_than_any_node_are_an_error_if_all_are_and_are_counted_else(files: Path) -> None:
    cluster = ("simulate", "--cluster", "a100-pcie*2", "--policies", "spread", "--jobs", "20")

    code, said = _run(*cluster, "--sizes", "9:1")
    mixed = CliRunner().invoke(main.main, [*cluster, "--sizes", "9:1,2:1", "--seeds", "3", "-o", "html"])

    assert (code, said) == (2, "gputopo: --sizes '9:1': no node has 9 GPUs; the largest has 8\n")
    assert mixed.exit_code == 0
    assert mixed.stderr.count("no node has 9 GPUs; the largest has 8") == 1
    assert "jobs of 20 can never be scheduled" in mixed.stderr
    assert "jobs of 20 can never be scheduled" in mixed.stdout

    (files / "large.csv").write_text(PODS.replace("y,8000,1,2", "y,8000,1,9"))
    large = _run("simulate", "--cluster", "a100-pcie*2", "--policies", "spread", "--workload", str(files / "large.csv"))
    assert "large.csv: no node has 9 GPUs; the largest has 8. " in large[1]

    tiers = files / "tiers.csv"
    tiers.write_text("name,pods,num_gpu,arrival_s,duration_s,priority\na,1,2,0,60,0\nb,1,9,0,60,0\n")
    code, said = _run("simulate", "--cluster", "a100-pcie*2", "--workload", str(tiers))
    assert code == 0
    assert "no node has 9 GPUs; the largest has 8. 1 job of 2 can never be scheduled" in said


def test_nodes_that_ordinary_gpu_pods_cannot_use_are_left_out(files: Path) -> None:
    cluster = files / "cluster.json"
    node, _ = json.loads(cluster.read_text())["items"]
    specs = {
        "free": {},
        "tainted": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "avoided": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]},
        "control": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]},
        "cordoned": {"unschedulable": True},
    }
    nodes = [node | {"metadata": node["metadata"] | {"name": name}, "spec": spec} for name, spec in specs.items()]
    cluster.write_text(json.dumps({"kind": "List", "items": nodes}))

    found = CliRunner().invoke(main.main, ["simulate", "--cluster", str(cluster), "--sizes", "1:1", "--jobs", "9"])

    assert found.stdout.startswith("3 nodes with 12 GPUs")
    (said,) = found.stderr.splitlines()
    assert said == (
        "gputopo: 2 nodes left out: pods that tolerate only the taint nvidia.com/gpu cannot use them: control "
        "(the taint node-role.kubernetes.io/control-plane:NoSchedule of the node is not tolerated), cordoned (the node "
        "is cordoned)"
    )


@pytest.mark.parametrize("output", ["text", "html"])
def test_machines_by_name(output: str) -> None:
    code, said = _run("simulate", "--cluster", "8a100-2n-pairs12*4", "--jobs", "40", "-o", output)

    assert code == 0, said
    assert "4 nodes with 32 GPUs" in said


def test_cluster_as_kubectl_prints_it(files: Path) -> None:
    code, said = _run("simulate", "--cluster", str(files / "cluster.json"), "--sizes", "1:1", "--jobs", "9")

    assert (code, said.split(";")[0]) == (0, "1 node with 4 GPUs")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--policies", "best"], "unknown policy 'best'", id="policy"),
        pytest.param(["--sizes", "1-2"], "expected GPUS:WEIGHT", id="sizes"),
        pytest.param(["--workload", "NODES"], "has no name", id="workload"),
        pytest.param(["--cluster", "PODS"], "expected columns: sn", id="cluster"),
    ],
)
def test_invalid_input_is_an_error(files: Path, arguments: list[str], said: str) -> None:
    places = {"NODES": str(files / "nodes.csv"), "PODS": str(files / "pods.csv")}
    code, output = _run(
        "simulate", "--cluster", str(files / "nodes.csv"), *(places.get(each, each) for each in arguments)
    )

    assert code == 2
    assert said in output


def test_the_table_fits_a_terminal_and_a_pipe_has_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    call = ("simulate", "--cluster", "dgx-a100*2", "--jobs", "20", "--policies", "spread,pack")
    _, piped = _run(*call)
    monkeypatch.setattr("gputopo.cli.simulate.terminal_width", lambda: 80)
    _, shown = _run(*call)

    assert "time per decision" in piped
    assert max(map(len, piped.splitlines())) > 120
    assert "time per decision" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_if(files: Path) -> None:
    code, said = _run("what-if", "-f", str(files / "pod.yaml"), "--from", str(files / "cluster.json"))

    assert code == 0, said
    assert said.startswith("team/train fits on gpu-1")
    assert "ring 600 GB/s nvlink, one island" in said
    assert "free GPUs by island: 2+2 before" in said


def test_what_if_is_about_the_first_gpu_pod_as_why_is(files: Path) -> None:
    """The pod of a database beside it, first in the file, requests no GPU."""
    first = "apiVersion: v1\nkind: Pod\nmetadata: {name: database}\nspec: {containers: [{name: main}]}\n---\n"
    both = files / "both.yaml"
    both.write_text(first + (files / "pod.yaml").read_text())
    cluster = ("--from", str(files / "cluster.json"))

    assert _run("what-if", "-f", str(both), *cluster) == _run("what-if", "-f", str(files / "pod.yaml"), *cluster)


def test_what_if_by_a_policy_file(files: Path) -> None:
    """The profile that matches the pod decides."""
    (files / "policy.yaml").write_text(
        "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
        "profiles: [{name: fast, match: {namespace: team}, requiredTopologies: [nvswitch]}]\n"
    )
    asked = ["what-if", "-f", str(files / "pod.yaml"), "--from", str(files / "cluster.json")]

    code, said = _run(*asked, "--policy", str(files / "policy.yaml"))

    assert (code, said.splitlines()) == (
        0,
        [
            "team/train fits no node now.",
            "1 node rejected: interconnect below what is requested",
            f"The reasons in detail: gputopo why -f {asked[2]} --from {asked[4]} --policy {files / 'policy.yaml'}",
        ],
    )
    code, said = _run(*asked, "--policy", str(files / "nodes.csv"))
    assert code == 2
    assert "nodes.csv" in said
    code, said = _run("what-if", "-f", "-", "--from", str(files / "cluster.json"), "--policy", "-")
    assert code == 2
    assert "only one of -f, --from and --policy can be standard input" in said


def test_what_if_for_programs(files: Path) -> None:
    asked = ("-f", str(files / "pod.yaml"), "--from", str(files / "cluster.json"))
    code, said = _run("what-if", *asked, "-o", "json")

    assert code == 0
    assert json.loads(said)["placements"][0]["node"] == "gpu-1"
    assert yaml.safe_load(_run("what-if", *asked, "-o", "YAML")[1]) == json.loads(said)


@pytest.mark.parametrize(
    ("pod", "cluster", "said"),
    [
        pytest.param("plain.yaml", "cluster.json", "requests no GPU", id="no GPU"),
        pytest.param("nodes.csv", "cluster.json", "no Pod found", id="no pod"),
        pytest.param("pod.yaml", "nodes.csv", "invalid JSON, or not printed by kubectl", id="no cluster"),
    ],
)
def test_what_if_without_a_gpu_pod_or_a_cluster_is_an_error(files: Path, pod: str, cluster: str, said: str) -> None:
    code, output = _run("what-if", "-f", str(files / pod), "--from", str(files / cluster))

    assert code == 2
    assert said in output
