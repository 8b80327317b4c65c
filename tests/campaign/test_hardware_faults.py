"""``gputopo show --check`` finds every injected fault, and no fault on a healthy machine."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from agent.recording.bundled import bundled_directory
from agent.recording.io import load_snapshot
from agent.snapshot import Snapshot
from gputopo.cli.show import show
from tests.campaign.hardware_faults import faults_of, shapes

SHAPES = shapes()
INJECTED = [(shape, fault) for shape, machine in SHAPES.items() for fault in faults_of(machine)]
CORPUS = sorted((Path(__file__).parents[2].parent / "shared" / "corpus").glob("[0-9]*"))
MACHINES = sorted(path.parent for path in Path(bundled_directory()).glob("*/case.toml"))


def check(snapshot: Snapshot) -> int:
    """The exit code of ``gputopo show --check``."""
    document = msgspec.json.encode(msgspec.to_builtins(snapshot) | {"format": snapshot.format})
    result = CliRunner().invoke(show, ["--check", "--from", "-", "-o", "labels"], input=document)
    assert result.exit_code in (0, 1), result.output
    return result.exit_code


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_a_table_of_faults_and_is_healthy_without_one(shape: str) -> None:
    assert len(faults_of(SHAPES[shape])) >= 30
    assert check(SHAPES[shape]) == check(replace(SHAPES[shape], smi=None)) == 0


@pytest.mark.parametrize("smi", [True, False], ids=["beside nvidia-smi", "alone"])
@pytest.mark.parametrize(("shape", "fault"), INJECTED, ids=lambda each: each.replace(" ", "-"))
def test_a_fault_is_found(shape: str, fault: str, *, smi: bool) -> None:
    machine = SHAPES[shape] if smi else replace(SHAPES[shape], smi=None)

    assert check(faults_of(SHAPES[shape])[fault](machine)) == 1


def test_a_link_of_one_end_only_names_both_ends_and_the_crash_of_the_plugin() -> None:
    machine = faults_of(SHAPES["cube"])["all links to one GPU down at one end"](SHAPES["cube"])
    document = msgspec.json.encode(msgspec.to_builtins(machine) | {"format": machine.format})

    result = CliRunner().invoke(show, ["--check", "--from", "-"], input=document)

    assert result.exit_code == 1
    assert "(gpu0 reports 1, gpu1 reports none): NVIDIA's device plugin crashes on this" in result.output


@pytest.mark.parametrize("folder", MACHINES, ids=lambda each: each.name)
def test_a_bundled_machine_is_degraded_as_its_case_states(folder: Path) -> None:
    expect = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))["expect"]
    if "error" in expect:
        return

    result = CliRunner().invoke(show, ["--check", "--from", str(folder / "snapshot.json")])

    assert result.exit_code == int(bool(expect["degraded"]))


@pytest.mark.skipif(not CORPUS, reason="../shared/corpus is not here")
@pytest.mark.parametrize("path", CORPUS, ids=lambda each: each.name)
def test_no_recording_of_a_real_machine_is_degraded(path: Path) -> None:
    """Exit codes 2, 3 and 5: of a command that shows no GPUs, of a machine without GPUs, of an incomplete text."""
    result = CliRunner().invoke(show, ["--check", "--from", str(path)])

    assert result.exit_code in (0, 2, 3, 5)


def _healthy(folder: Path) -> Snapshot | None:
    """Return a healthy bundled machine with several GPUs that NVML sees."""
    expect = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))["expect"]
    snapshot = load_snapshot((folder / "snapshot.json").read_text(encoding="utf-8"))
    several = snapshot.nvml is not None and len(snapshot.nvml.gpus) > 1
    return snapshot if several and "error" not in expect and not expect["degraded"] else None


@pytest.mark.parametrize("folder", MACHINES, ids=lambda each: each.name)
def test_faults_of_every_bundled_machine_are_found(folder: Path) -> None:
    """Every fourth fault; the machines of ``shapes`` have all. With all faults, none is missed either."""
    if (machine := _healthy(folder)) is None:
        return
    faults = faults_of(machine)

    assert len(faults) >= 30
    assert [name for name, inject in list(faults.items())[::4] if check(inject(machine)) != 1] == []
