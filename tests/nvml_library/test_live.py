"""The command line with a loadable NVML: real symbols, structures and calling convention."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libnvidia_ml.c")
COMPILER = shutil.which("cc") or ""
pytestmark = pytest.mark.skipif(
    not COMPILER or not sys.platform.startswith("linux"), reason="no C compiler (cc): install one to run these tests"
)

GPUTOPO = [sys.executable, "-c", "from gputopo.cli.main import main; main()"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library; return the folder that contains it."""
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-std=gnu11", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def gputopo(folder: Path) -> Run:
    """Run ``gputopo`` on a machine: ``gputopo("show", NVML_GPUS=4)``."""

    def run(*arguments: str, **machine: object) -> subprocess.CompletedProcess[str]:
        variables = {name: str(value) for name, value in machine.items()}
        environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "PATH": ""} | variables
        return subprocess.run(
            [*GPUTOPO, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    return run


def labels(gputopo: Run, **machine: object) -> dict[str, str]:
    """Return the labels of a machine."""
    lines = gputopo("labels", **machine).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def ports(gpu: int, numbers: range) -> str:
    """Return the value of NVML_DOWN for these ports."""
    return ";".join(f"{gpu}:{port}" for port in numbers)


MESH = {"NVML_GPUS": 4, "NVML_PEERS": "mesh", "NVML_LINKS": 12, "NVML_NAME": "NVIDIA A100-SXM4-80GB"}


@pytest.mark.parametrize(
    ("machine", "islands"),
    [
        pytest.param({"NVML_GPUS": 1}, "1", id="one GPU"),
        pytest.param({"NVML_GPUS": 2}, "2", id="two on a switch"),
        pytest.param(MESH, "4", id="a mesh of four"),
        pytest.param({}, "8", id="eight on a switch"),
        pytest.param({"NVML_GPUS": 10, "NVML_LINKS": 0}, "1-1-1-1-1-1-1-1-1-1", id="ten PCIe cards"),
        pytest.param({"NVML_GPUS": 16, "NVML_LINKS": 6}, "16", id="sixteen on a switch"),
        pytest.param({"NVML_GPUS": 4, "NVML_FABRIC": 1}, "4", id="a multi-node fabric"),
    ],
)
def test_healthy_machines_of_each_shape(gputopo: Run, machine: dict[str, object], islands: str) -> None:
    checked = gputopo("show", "--check", **machine)
    found = labels(gputopo, **machine)

    assert (checked.returncode, found["gputopo.io/islands"]) == (0, islands), checked.stdout
    assert found["gputopo.io/degraded"] == "false"


@pytest.mark.parametrize(
    ("machine", "subject"),
    [
        pytest.param({"NVML_FAULT": "*:15:3"}, "gpu3", id="lost after its handle"),
        pytest.param({"NVML_FAULT": "nvmlDeviceGetHandleByIndex_v2:15:3"}, "gpu3", id="lost before its handle"),
        pytest.param({"NVML_FAULT": "nvmlDeviceGetNvLinkState:15:0"}, "gpu0", id="one call says lost"),
        pytest.param({"NVML_FAULT": "*:999:7"}, "gpu7", id="answers no call"),
        pytest.param({"NVML_GPUS": 2, "NVML_DOWN": ports(1, range(18))}, "gpu1.nvlink", id="0 of 18, beside one"),
        pytest.param({"NVML_GPUS": 2, "NVML_DOWN": "0:17"}, "gpu0.nvlink", id="17 of 18, beside one"),
        pytest.param({**MESH, "NVML_DOWN": ports(2, range(12))}, "gpu2.nvlink", id="all links of a mesh"),
        pytest.param({"NVML_FABRIC": 1, "NVML_HEALTH": "0x4"}, "gpu1.fabric", id="route recovery"),
        pytest.param({"NVML_FABRIC": 1, "NVML_HEALTH": "0x1"}, "gpu1.fabric", id="degraded bandwidth"),
    ],
)
def test_faults_are_found(gputopo: Run, machine: dict[str, object], subject: str) -> None:
    checked = gputopo("show", "--check", "-o", "json", **machine)
    found = json.loads(checked.stdout)

    assert checked.returncode == 1
    assert subject in {each["what"] for each in found["degraded"]}
    if machine.get("NVML_FABRIC"):  # health is no part of the identity
        assert labels(gputopo, **machine)["gputopo.io/fabric"] == "7b7b7b7b-7b7b-7b7b-7b7b-7b7b7b7b7b7b.2"


def test_failing_functions_raise_nothing_and_hide_no_lost_gpu(folder: Path) -> None:
    """Every function of the library, for GPU 1 of 4, in one process."""
    declared = [line for line in SOURCE.read_text().splitlines() if line.startswith(("DEVICE(", "ABSENT("))]
    names = [line.split("(")[1].split(",")[0].split(")")[0] for line in declared]
    cases = [f"{name}:{code}:1" for name in names for code in (15, 16, 3, 10, 999, 4321)]

    found = subprocess.run(
        [sys.executable, "-c", DISCOVER_EACH],
        input=json.dumps(cases),
        env=os.environ | {"LD_LIBRARY_PATH": str(folder), "NVML_GPUS": "4"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    lost = {case: [0, 2, 3] for case in cases if case.split(":")[1] in ("15", "16")}
    assert json.loads(found.stdout) == {case: [0, 1, 2, 3] for case in cases} | lost


DISCOVER_EACH = """
import json, os, sys
import pynvml
from agent.discover import discover
from agent.snapshot import Snapshot
from agent.sources.nvml import read_nvml

usable = {}
for fault in json.load(sys.stdin):
    os.environ["NVML_FAULT"] = fault
    topology = discover(Snapshot(nvml=read_nvml(pynvml, 4)))
    usable[fault] = [gpu.index for gpu in topology.usable]
print(json.dumps(usable))
"""


def test_a_lost_gpu_comes_back_without_a_restart(folder: Path) -> None:
    """The agent's passes in one process; the GPU counts again after the recovery hold-down."""
    found = subprocess.run(
        [sys.executable, "-c", LOSE_AND_RECOVER],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder), "NVML_GPUS": "4"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert json.loads(found.stdout) == [[[0, 1, 2, 3], 0], [[0, 2, 3], 1], [[0, 2, 3], 1], [[0, 1, 2, 3], 0]]


LOSE_AND_RECOVER = """
import json, os
import pynvml
from agent.daemon.discovery_pass import DiscoveryState, run_discovery_pass
from agent.snapshot import Host, Snapshot
from agent.sources.nvml import read_nvml

state, seen = DiscoveryState(), []
for now, fault in ((0, ""), (60, "*:15:1"), (120, ""), (480, "")):
    os.environ["NVML_FAULT"] = fault
    snapshot = Snapshot(nvml=read_nvml(pynvml, 4), host=Host(boot_id="b"))
    state = run_discovery_pass(state, snapshot, float(now), 300.0)
    seen.append([[gpu.index for gpu in state.topology.usable], len(state.topology.degraded)])
print(json.dumps(seen))
"""


def test_a_driver_that_does_not_start_is_reported(gputopo: Run) -> None:
    found = gputopo("show", NVML_FAULT="nvmlInitWithFlags:18:*;nvmlInit_v2:18:*")

    assert found.returncode == 3
    assert "LIB_RM_VERSION_MISMATCH" in found.stderr or "restart" in found.stderr
