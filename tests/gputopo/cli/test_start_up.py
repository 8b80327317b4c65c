"""The modules that `gputopo show --from` loads: they decide its start-up time, which bench/start_up.py measures."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.recording.bundled import bundled_directory, find_recording

TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t0-15\t0\n"
SHOW = """
import sys
from gputopo.cli.main import main
main(["show", "--from", sys.argv[1]], standalone_mode=False)
print("loaded:", *sys.modules)
"""
LIBRARIES = ("h2", "kubernetes", "prometheus_client", "psutil", "pydantic", "pynvml", "urllib3", "yaml")
SERVERS = ("httptools", "immutables", "orjson", "starlette", "uvicorn", "uvloop", "scheduler_core")
STANDARD = ("asyncio", "dataclasses", "json", "logging", "pathlib", "subprocess", "tomllib", "urllib", "xml")
OTHER_INPUTS = (
    "agent.failures",
    "agent.recording.node_input",
    "agent.recording.probe",
    "agent.sources.nccl",
    "agent.sources.nvml",
)
OTHER_OUTPUTS = ("gputopo.cluster", "gputopo.kube", "gputopo.labels", "gputopo.render.document", "gputopo.render.svg")
OTHER_SOURCES = ("agent.recording.io", "agent.sources.pci", "agent.sources.smi.listing", "agent.sources.smi.nvlink")


def loaded(source: str) -> set[str]:
    """The modules in a fresh process that has shown a machine."""
    ended = subprocess.run([sys.executable, "-c", SHOW, source], capture_output=True, text=True, check=True)
    return set(ended.stdout.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize("module", [*LIBRARIES, *SERVERS, *STANDARD, *OTHER_INPUTS, *OTHER_OUTPUTS, *OTHER_SOURCES])
def test_every_module_that_is_missed_below_exists(module: str) -> None:
    assert find_spec(module) is not None


def test_a_pasted_matrix_loads_its_own_parser_and_no_other(tmp_path: Path) -> None:
    pasted = tmp_path / "topo.txt"
    pasted.write_text(TOPO, encoding="utf-8")

    unwanted = {*LIBRARIES, *SERVERS, *STANDARD, *OTHER_INPUTS, *OTHER_OUTPUTS, *OTHER_SOURCES}

    assert loaded(str(pasted)) & {*unwanted, "agent.sources.smi.topo", "gputopo.render.tree"} == {
        "agent.sources.smi.topo",
        "gputopo.render.tree",
    }


def test_a_recorded_machine_loads_what_it_holds_and_neither_finds_nor_reads_it_dearly() -> None:
    by_name, by_path = loaded("dgx-a100"), loaded(str(find_recording("dgx-a100", bundled_directory())))

    assert by_name & {*LIBRARIES, *SERVERS, *STANDARD, *OTHER_INPUTS, *OTHER_OUTPUTS} == set()
    assert by_name - by_path == {"agent.recording.bundled"}
    assert {*OTHER_SOURCES} <= by_path
