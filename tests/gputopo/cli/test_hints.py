"""The commands that messages name: they read the cluster or the file of the command that printed the message."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputopo.cli.connection import cluster_options_text
from gputopo.cli.main import main
from tests.gputopo.cli import gang_objects, pod_objects
from tests.gputopo.cli.cluster_files import file_of
from tests.gputopo.cli.cluster_objects import pod

GATED = pod("waits", 2, annotations={"gputopo.io/gang": "llm", "gputopo.io/gang-size": "2"}, phase="Pending")
GATED["spec"]["schedulingGates"] = [{"name": "gputopo.io/gang"}]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"COLUMNS": "1000"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, None, None), ""),
        ((None, None, "c.json"), " --from c.json"),
        ((None, None, "my $(file).json"), " --from 'my $(file).json'"),
        (("k", "a b", None), " --kubeconfig k --context 'a b'"),
    ],
)
def test_options_that_name_the_cluster(given: tuple[str | None, str | None, str | None], words: str) -> None:
    assert cluster_options_text(*given) == words


def test_why_pod_names_the_gang_in_the_same_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, [GATED])
    shown = run("why", "pod", "waits", "-n", "a", "--from", file)

    assert f"see `gputopo why gang llm -n a --from {file}`." in shown.stdout


def test_an_unknown_gang_of_a_file(tmp_path: Path) -> None:
    file = file_of(tmp_path, gang_objects.THERE)
    shown = run("why", "gang", "nosuch", "-n", "a", "--from", file)

    assert shown.exit_code == 4
    assert f"`gputopo gangs --from {file}` lists all" in shown.stderr


def test_a_node_that_a_file_does_not_have(tmp_path: Path) -> None:
    file = file_of(tmp_path, pod_objects.THERE)
    near, other = (run("nodes", name, "--from", file) for name in ("gpu-00", "other"))

    assert (near.exit_code, near.stderr) == (4, "gputopo: there is no GPU node 'gpu-00'; did you mean gpu-0?\n")
    assert other.stderr == f"gputopo: there is no GPU node 'other'; `gputopo nodes --from {file}` lists all\n"
    explained = run("why", "pod", "waits", "-n", "a", "--node", "gpu-00", "--from", file)
    assert (explained.exit_code, explained.stderr) == (4, "gputopo: node gpu-00 not found; did you mean gpu-0?\n")


def test_gangs_of_a_file_without_gates(tmp_path: Path) -> None:
    ungated = pod("g-0", 2, annotations={"gputopo.io/gang": "g"}, phase="Pending")
    file = file_of(tmp_path, [ungated])

    assert f"see `gputopo why gang NAME -n NAMESPACE --from {file}`" in run("gangs", "--from", file).stderr


def test_the_reasons_of_what_if_are_those_of_the_same_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "p.yaml"
    manifest.write_text(
        "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 64}}}]}\n"
    )
    file = file_of(tmp_path, [])
    *_, rejected, hint = run("what-if", "-f", str(manifest), "--from", file).stdout.splitlines()

    assert rejected == "1 node rejected: too few free healthy GPUs"
    assert hint == f"The reasons in detail: gputopo why -f {manifest} --from {file}"
    assert run(*hint.partition("gputopo ")[2].split()).exit_code == 0


def test_a_pod_that_a_file_does_not_have(tmp_path: Path) -> None:
    file = file_of(tmp_path, pod_objects.THERE)
    shown = run("why", "pod", "trian", "-n", "a", "--from", file)

    assert (shown.exit_code, shown.stderr) == (
        4,
        "gputopo: there is no pod trian in the namespace a; did you mean train?\n",
    )
