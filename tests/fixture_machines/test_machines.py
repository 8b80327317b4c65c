"""Every machine in ``fixtures/machines`` can be read, is documented, and is written again unchanged."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.recording.io import dump_snapshot, load_snapshot
from agent.snapshot import Snapshot
from fixtures.generate.__main__ import main
from fixtures.generate.catalogue import MACHINES
from fixtures.generate.write import snapshot_text

ROOT = Path(__file__).parents[2] / "fixtures" / "machines"
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
CONSTRUCTED = {machine.shape: machine for machine in MACHINES}


def case(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name / "case.toml").read_text(encoding="utf-8"))


def snapshot(name: str) -> Snapshot:
    return load_snapshot((ROOT / name / "snapshot.json").read_bytes())


@pytest.mark.parametrize("shape", sorted(CONSTRUCTED))
def test_a_constructed_machine_is_what_the_generator_writes(shape: str) -> None:
    assert (ROOT / shape / "snapshot.json").read_text(encoding="utf-8") == snapshot_text(CONSTRUCTED[shape])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_recording_is_stored_as_the_recorder_writes_it(name: str) -> None:
    assert (ROOT / name / "snapshot.json").read_text(encoding="utf-8") == dump_snapshot(snapshot(name))


def test_the_generator_writes_only_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(tmp_path)
    (tmp_path / "1l4-1n" / "snapshot.json").write_text("{}", encoding="utf-8")
    capsys.readouterr()

    main(tmp_path)

    assert capsys.readouterr().out == "1l4-1n: written\n"


def test_every_folder_is_constructed_or_recorded() -> None:
    recorded = {name for name in FOLDERS if case(name)["provenance"] == "recorded"}

    assert set(FOLDERS) - recorded == set(CONSTRUCTED)
    assert len(CONSTRUCTED) == len(MACHINES)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_case_says_what_it_proves_and_where_its_facts_come_from(name: str) -> None:
    result = case(name)

    assert sorted(result) == ["aliases", "expect", "facts", "provenance", "proves", "title"]
    assert result["title"]
    assert result["proves"]
    assert result["facts"]
    assert result["provenance"] in {"recorded", "derived", "fake"}
    assert name.startswith("fake-") == (result["provenance"] == "fake")


def test_the_names_for_users_are_unique_and_lower_case() -> None:
    names = FOLDERS + [alias for name in FOLDERS for alias in case(name)["aliases"]]

    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if name != name.lower() or " " in name] == []


@pytest.mark.parametrize("name", FOLDERS)
def test_the_expectation_is_about_the_gpus_that_there_are(name: str) -> None:
    expect = case(name)["expect"]
    gpus = _gpus(snapshot(name))

    assert sorted(index for island in expect["islands"] for index in island) == [
        index for index, lost in gpus.items() if not lost
    ]
    assert len(expect["numa"]) == len(gpus)
    assert ("error" in expect) == (not gpus)
    assert set(expect) <= {"islands", "interconnect", "numa", "degraded", "partial", "error"}
    assert {"islands", "interconnect", "numa", "degraded"} <= set(expect)


def _gpus(recorded: Snapshot) -> dict[int, bool]:
    """The GPUs of the recording, and whether each is lost."""
    if recorded.nvml is not None:
        return {gpu.index: "nvmlDeviceGetHandleByIndex_v2" in gpu.errors for gpu in recorded.nvml.gpus}
    listed = (recorded.smi or {})["-L"].stdout.splitlines()
    return {index: False for index, line in enumerate(listed) if line.startswith(f"GPU {index}: ")}
