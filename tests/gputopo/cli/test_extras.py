"""The command line with the base install: in processes that can import its packages and the standard library only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gputopo.cli.extras import MODULES, install_command, missing_extra_message
from gputopo.labels import encode_topology
from scheduler_core.extender.decision_record import encode_decision
from tests.machines import MACHINES
from tests.ports import free_port
from tests.scheduler_core.builders import pod
from tests.scheduler_core.extender.decisions import decided

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Distribution -> the modules that it installs.
INSTALLED = {
    "click": {"click"},
    "immutables": {"immutables"},
    "msgspec": {"msgspec"},
    "nvidia-ml-py": {"pynvml"},
    "psutil": {"psutil"},
    "pydantic": {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"},
    "PyYAML": {"yaml", "_yaml"},
    "urllib3": {"urllib3"},
    "h2": {"h2"},
    "httptools": {"httptools"},
    "kubernetes": {"kubernetes"},
    "orjson": {"orjson"},
    "prometheus-client": {"prometheus_client"},
    "starlette": {"starlette"},
    "uvicorn": {"uvicorn"},
    "uvloop": {"uvloop"},
}
BASE_ONLY = """
import sys

ALLOWED |= sys.stdlib_module_names

class BaseOnly:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in ALLOWED and not package.startswith("_sysconfigdata_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, BaseOnly())
"""
RUN = "from gputopo.cli import run; run()"
HELP = """
import click
from click.testing import CliRunner
from gputopo.cli.main import main

def paths(group, *names):
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*names, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from paths(command, *names, name)

for path in ((), *paths(main)):
    print(CliRunner().invoke(main, [*path, "--help"]).exit_code, *path)
"""


def modules_of(requirements: Iterable[str]) -> set[str]:
    return {module for each in requirements for module in INSTALLED[Requirement(each).name]}


def run_in_base(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that can import nothing but the base install."""
    allowed = {"gputopo", "agent", "scheduler_core"} | modules_of(PROJECT["dependencies"])
    program = f"ALLOWED = {allowed}{BASE_ONLY}{code}"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    facts = encode_topology(MACHINES["a100_bridged"]())
    metadata = {"name": "gpu-1", "labels": facts.labels, "annotations": facts.annotations}
    node = {
        "kind": "Node",
        "metadata": metadata,
        "status": {"allocatable": {"nvidia.com/gpu": "4"}, "capacity": {"nvidia.com/gpu": "4"}},
    }
    (folder / "node.json").write_text(json.dumps(node))
    idle = {"kind": "Pod", "metadata": {"name": "idle", "namespace": "team"}, "spec": {"nodeName": "gpu-1"}}
    (folder / "nodes.json").write_text(json.dumps({"kind": "List", "items": [node, idle]}))
    (folder / "pod.yaml").write_text(
        "kind: Pod\nmetadata: {name: train, namespace: team}\nspec:\n  containers:\n"
        '  - {name: c, resources: {limits: {nvidia.com/gpu: "2"}}}\n'
    )
    (folder / "policy.yaml").write_text("apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\nprofiles: []\n")
    (folder / "decisions.jsonl").write_bytes(b"".join(map(encode_decision, decided(pod("a", 1), pod("b", 2)))))
    return folder


def test_the_table_of_modules_is_that_of_the_extras() -> None:
    extras = PROJECT["optional-dependencies"]

    assert {extra: set(found) for extra, found in MODULES.items()} == {
        extra: modules_of(extras[extra]) for extra in ("agent", "cluster")
    }
    assert extras["all"] == ["gputopo[agent,cluster]"]


def test_a_module_of_no_extra_that_the_command_needs_is_an_error_of_our_own() -> None:
    assert missing_extra_message("nodes", "gputopo.nothing") is None
    assert missing_extra_message("nodes", "h2.connection") is None
    assert missing_extra_message("nodes", None) is None
    assert missing_extra_message("agent", "h2.connection") == (
        "the Python package 'h2' is not installed: run pip install '.[agent]' in a checkout of gputopo; it "
        "is not published as a package yet"
    )


def test_every_command_has_its_help() -> None:
    ended = run_in_base(HELP)
    codes = [line.split(maxsplit=1)[0] for line in ended.stdout.splitlines()]

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "0 policy check\n" in ended.stdout
    assert len(codes) > 20
    assert set(codes) == {"0"}, ended.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("machines", "dgx-a100"),
        ("completion bash", "_gputopo_completion"),
        ("show --from dgx-a100", "NVSwitch"),
        ("show --from node.json -o yaml", "\nislands:\n"),
        ("labels --from dgx-a100", "gputopo.io/gpus=8\n"),
        ("path 0 3 --from dgx-1", "2 NVLinks"),
        ("diff a100-mesh link-down", "11 of 12 NVLinks active"),
        ("policy check policy.yaml", "valid"),
        ("policy show policy.yaml", "built in"),
        ("simulate --cluster dgx-a100*1 --jobs 20 --policy policy.yaml", "ours:default"),
        ("simulate --cluster nodes.json --jobs 20 -o html", "<h1>"),
        ("replay decisions.jsonl", "2 decisions replayed, 0 differ\n"),
        ("what-if -f pod.yaml --from nodes.json", "gpu-1"),
        ("why -f pod.yaml --from nodes.json", "It fits 1 of 1"),  # the command that what-if names
        ("scheduler-config --from nodes.json", "kind: KubeSchedulerConfiguration\n"),
        ("scheduler-config --resource nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
    ],
)
def test_the_base_install_is_enough(files: Path, command: str, said: str) -> None:
    arguments = [str(files / each) if (files / each).exists() else each for each in command.split()]

    ended = run_in_base(RUN, *arguments)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert said in ended.stdout


def test_the_base_install_records_a_machine() -> None:
    ended = run_in_base(RUN, "record")

    assert '"nvml"' in ended.stdout
    assert ended.returncode == 0 or (
        ended.returncode == 3 and ended.stderr.startswith("gputopo: this recording shows no")
    )


def test_the_base_install_checks_a_scheduler_configuration_and_asks_a_running_extender(files: Path) -> None:
    printed = run_in_base(RUN, "scheduler-config", "--from", str(files / "nodes.json")).stdout
    (files / "printed.yaml").write_text(printed)
    server = f"http://127.0.0.1:{free_port()}"

    checked = run_in_base(
        RUN, "scheduler-config", "--from", str(files / "nodes.json"), "--check", str(files / "printed.yaml")
    )
    asked = run_in_base(RUN, "why", "pod", "train", "-n", "team", "--server", server)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert asked.returncode == 4
    assert asked.stderr.startswith(f"gputopo: no answer from {server}/explain/team/train: ")


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("agent --once --publish stdout", "agent"),
        ("cleanup --all", "cluster"),
        ("diff --node gpu-1 dgx-a100", "cluster"),
        ("extender", "cluster"),
        ("gangs", "cluster"),
        ("nodes", "cluster"),
        ("observe", "cluster"),
        ("planner", "cluster"),
        ("pods", "cluster"),
        ("release --all", "cluster"),
        ("scheduler-config", "cluster"),
        ("show --node gpu-1", "cluster"),
        ("ui-server", "cluster"),
        ("what-if -f pod.yaml", "cluster"),
        ("why -f pod.yaml", "cluster"),
        ("why gang llm -n team", "cluster"),
        ("why pod train", "cluster"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(files: Path, command: str, extra: str) -> None:
    arguments = [str(files / each) if (files / each).exists() else each for each in command.split()]

    ended = run_in_base(RUN, *arguments)

    assert (ended.returncode, ended.stdout) == (2, "")
    result = re.fullmatch(
        rf"gputopo: {arguments[0]}: the Python package '(\w+)' is not installed: "
        rf"run pip install '\.\[{extra}\]' in a checkout of gputopo; it is not published as a package yet\n",
        ended.stderr,
    )
    assert result is not None, ended.stderr
    assert result[1] in MODULES[extra]


def test_one_constant_decides_where_packages_are_installed_from() -> None:
    assert install_command("cluster", is_published=True) == "pip install 'gputopo[cluster]'"
    assert install_command("cluster", is_published=False).startswith(
        "pip install '.[cluster]' in a checkout of gputopo"
    )
