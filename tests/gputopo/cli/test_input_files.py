"""The files that commands read: packed by gzip, damaged, not text, or empty."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputopo.cli import terminal
from gputopo.cli.main import main
from scheduler_core.extender.decision_record import encode_decision
from scheduler_core.extender.scheduler_config import render_configuration
from tests.gputopo.cli import pod_objects
from tests.gputopo.cli.cluster_files import file_of
from tests.scheduler_core.extender.decisions import PODS, decided

POD = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
POLICY = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\nprofiles: [{name: a, match: {namespace: x}}]\n"
JOBS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,8000,1,1,1000\ny,8000,1,2,1000\n"
SIMULATE = ("simulate", "--cluster", "8a100-2n-pairs12*1", "--policies", "spread", "-o", "json")
CALLS = {
    "manifest": ("what-if", "-f", "{file}", "--from", "{cluster}"),
    "manifest of why": ("why", "-f", "{file}", "--from", "{cluster}"),
    "policy of what-if": ("what-if", "-f", "{pod}", "--from", "{cluster}", "--policy", "{file}"),
    "policy": ("policy", "check", "{file}"),
    "workload": (*SIMULATE, "--workload", "{file}"),
    "nodes": ("scheduler-config", "--from", "{file}"),
    "configuration": ("scheduler-config", "--resource", "nvidia.com/gpu", "--check", "{file}"),
    "decisions": ("replay", "{file}"),
}


def contents(cluster: str) -> dict[str, bytes]:
    """Return a valid file of each kind."""
    return {
        "manifest": POD.encode(),
        "manifest of why": POD.encode(),
        "policy of what-if": POLICY.encode(),
        "policy": POLICY.encode(),
        "workload": JOBS.encode(),
        "nodes": Path(cluster).read_bytes(),
        "configuration": render_configuration(["nvidia.com/gpu"]).encode(),
        "decisions": b"".join(encode_decision(each).rstrip(b"\n") + b"\n" for each in decided(*PODS.values())),
    }


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=given)


def called(folder: Path, kind: str, data: bytes | None = None, *, packed: bool = False) -> Result:
    """Call the command of this kind of file; ``data``: the content instead of a valid one."""
    cluster = file_of(folder, pod_objects.THERE)
    (folder / "pod.yaml").write_text(POD)
    given = contents(cluster)[kind] if data is None else data
    file = folder / "input"
    file.write_bytes(gzip.compress(given) if packed else given)
    names = {"{file}": str(file), "{cluster}": cluster, "{pod}": str(folder / "pod.yaml")}
    return run(*(names.get(word, word) for word in CALLS[kind]))


@pytest.mark.parametrize("kind", CALLS)
def test_a_packed_file_is_read_as_the_file(tmp_path: Path, kind: str) -> None:
    plain, packed = called(tmp_path, kind), called(tmp_path, kind, packed=True)

    assert plain.exit_code == 0, plain.output
    without_times = [line for line in packed.stdout.splitlines() if "latency" not in line]
    assert packed.exit_code == 0, packed.output
    assert without_times == [line for line in plain.stdout.splitlines() if "latency" not in line]


@pytest.mark.parametrize("kind", CALLS)
def test_a_packed_file_that_ends_early(tmp_path: Path, kind: str) -> None:
    whole = gzip.compress(contents(file_of(tmp_path, pod_objects.THERE))[kind])
    found = called(tmp_path, kind, whole[:-9])

    assert found.exit_code == 2
    assert f"gputopo: {tmp_path / 'input'}: the gzip data ends early\n" in found.stderr


@pytest.mark.parametrize("kind", CALLS)
def test_a_damaged_packed_file(tmp_path: Path, kind: str) -> None:
    found = called(tmp_path, kind, b"\x1f\x8b" + bytes(40))

    assert found.exit_code == 2
    assert "input: not a valid gzip file: " in found.stderr


@pytest.mark.parametrize("kind", [each for each in CALLS if each not in ("nodes", "decisions")])
def test_a_file_that_is_not_text_says_what_is_expected(tmp_path: Path, kind: str) -> None:
    found = called(tmp_path, kind, b"ab\xffcd")

    assert found.exit_code == 2
    assert "input: not UTF-8 text (byte 0xff at offset 2); expected " in found.stderr
    assert "codec" not in found.stderr


def test_nodes_of_a_simulation_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_bytes(b"sn\xff")
    found = run("simulate", "--cluster", str(tmp_path / "nodes.csv"))

    assert found.exit_code == 2
    assert "not UTF-8 text (byte 0xff at offset 2); expected nodes in CSV" in found.stderr


def test_nodes_of_a_simulation_with_a_long_cell(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{'a' * 200_000},1,1,1,T4\n")
    found = run("simulate", "--cluster", str(tmp_path / "nodes.csv"))

    assert found.exit_code == 2
    assert "invalid CSV: field larger than field limit (131072); expected columns" in found.stderr


def test_a_token_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    found = run("gangs", "--token-file", str(tmp_path / "token"))

    assert found.exit_code == 2
    assert "not a file with a bearer token: it is not text\n" in found.stderr


def test_all_parts_of_a_packed_file_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "two.gz"
    file.write_bytes(gzip.compress(b"first ") + gzip.compress(b"second") + b"\0\0")

    assert terminal.read_packed(str(file)) == b"first second"
    monkeypatch.setattr(terminal, "MAX_BYTES", 100)
    assert "it unpacks to more than 0 MiB" in run("policy", "check", "-", given=gzip.compress(b"x" * 101)).stderr


def test_a_configuration_is_read_before_the_cluster(tmp_path: Path) -> None:
    found = run("scheduler-config", "--check", str(tmp_path / "nosuch.yaml"), "--kubeconfig", str(tmp_path / "none"))

    assert (found.exit_code, found.stderr) == (
        2,
        f"gputopo: cannot read {tmp_path}/nosuch.yaml: No such file or directory\n",
    )


def test_a_workload_from_standard_input_is_read_once() -> None:
    found = run(*SIMULATE, "--workload", "-", given=JOBS.encode())

    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("data", [b"", gzip.compress(b"")], ids=["empty", "empty and packed"])
def test_a_file_without_decisions_is_an_error(tmp_path: Path, data: bytes) -> None:
    found = called(tmp_path, "decisions", data)

    assert (found.exit_code, found.stdout) == (2, "")
    assert "input: no decisions found; expected the file of an extender's option --decisions-file" in found.stderr


def test_a_name_that_no_pod_can_have(tmp_path: Path) -> None:
    found = run("why", "pod", "\udcff", "--from", file_of(tmp_path, pod_objects.THERE))

    assert found.exit_code == 2
    assert "'\\udcff' is not the name of a pod; expected at most 253 characters" in found.stderr
