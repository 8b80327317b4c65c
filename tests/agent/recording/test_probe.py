"""Probing a whole machine: each source can fail without affecting the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from agent.recording.io import dump_snapshot, load_snapshot
from agent.recording.probe import ProbeTarget, probe_machine
from agent.recording.scrub import scrub_snapshot
from agent.recording.topology import find_failure, observe_snapshot
from agent.snapshot import Host, Nvml, Output, Snapshot, Sysfs
from tests.agent.sources.fake_nvml import DRIVER_NOT_LOADED, FakeDriver, FakeGpu, plug

BROKEN = SimpleNamespace(**{**vars(pynvml), "nvmlInit": lambda: 1 // 0})


def machine(tmp_path: Path, **parts: Any) -> ProbeTarget:
    """A machine without driver and without nvidia-smi, except for the arguments."""
    bare = ProbeTarget(sys=tmp_path / "sys", proc=tmp_path / "proc", nvidia_smi=None, environ={})
    return bare._replace(**({} if "nvml" in parts else {"nvml": plug(FakeDriver(init=DRIVER_NOT_LOADED))}), **parts)


def test_a_machine_without_driver_is_a_snapshot_with_errors(tmp_path: Path) -> None:
    snapshot = probe_machine(machine(tmp_path))

    assert snapshot.nvml == Nvml(error="nvmlInit_v2: DRIVER_NOT_LOADED")
    assert snapshot.sysfs == Sysfs()
    assert snapshot.smi is None
    assert snapshot.errors == {}
    assert snapshot.recorder is not None
    assert snapshot.recorder.startswith("gputopo ")


def test_all_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0\n")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.95.05\n")
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\necho "$*"\n')
    smi.chmod(0o755)

    snapshot = probe_machine(machine(tmp_path, nvidia_smi=str(smi), nvml=plug(FakeDriver(FakeGpu(minor=5)))))

    assert snapshot.host is not None
    assert snapshot.host.kernel == "6.8.0"
    assert snapshot.nvml is not None
    assert [gpu.minor for gpu in snapshot.nvml.gpus] == [5]
    assert snapshot.smi is not None
    assert snapshot.smi["topo -m"] == Output("topo -m\n")
    assert snapshot.sysfs == Sysfs(files={"module/nvidia/version": "580.95.05\n"})
    assert load_snapshot(dump_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize(
    ("parts", "source", "error"),
    [
        pytest.param({"sys": 3}, "sysfs", "TypeError: unsupported operand type(s) for /: 'int' and 'str'", id="sysfs"),
        pytest.param({"proc": 3}, "host", "TypeError: unsupported operand type(s) for /: 'int' and 'str'", id="host"),
        pytest.param({"nvml": BROKEN}, "nvml", "ZeroDivisionError: integer division or modulo by zero", id="nvml"),
        pytest.param({"nvidia_smi": b"a\0b"}, "smi", "ValueError: embedded null byte", id="smi"),
    ],
)
def test_an_exception_of_a_source_does_not_affect_the_others(
    tmp_path: Path, parts: dict[str, Any], source: str, error: str
) -> None:
    snapshot = probe_machine(machine(tmp_path, **parts))

    assert snapshot.errors == {source: error}
    assert getattr(snapshot, source) is None
    others = {"host", "nvml", "sysfs"} - {source}
    assert [name for name in others if getattr(snapshot, name) is None] == []


def test_this_machine_can_be_probed() -> None:
    """With or without GPU, driver and /sys."""
    snapshot = probe_machine(ProbeTarget(nvidia_smi=None))

    assert isinstance(snapshot, Snapshot)
    assert isinstance(snapshot.host, Host)
    assert isinstance(snapshot.nvml, Nvml)
    assert snapshot.errors == {}
    assert load_snapshot(dump_snapshot(snapshot)) == snapshot


def test_a_recording_is_a_scrubbed_snapshot(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("node1\n")
    gpu = FakeGpu(uuid=b"GPU-31515c3d-1414-7c2c-004a-f86a898946ac")

    probed = probe_machine(machine(tmp_path, nvml=plug(FakeDriver(gpu))))
    snapshot = load_snapshot(dump_snapshot(scrub_snapshot(probed, uuids=True)))

    assert snapshot.scrubbed == ("hostname", "processes", "serial", "uuid")
    assert snapshot.host is not None
    assert snapshot.host.name is None
    assert snapshot.nvml is not None
    assert snapshot.nvml.gpus[0].uuid == "GPU-00000000-0000-0000-0000-000000000001"


def test_the_live_machine_goes_through_the_same_discovery(tmp_path: Path) -> None:
    seen = observe_snapshot(probe_machine(machine(tmp_path, nvml=plug(FakeDriver(FakeGpu(name=b"NVIDIA L4"))))))

    assert [gpu.product for gpu in seen.topology.gpus] == ["NVIDIA L4"]
    assert seen.snapshot is not None
    assert find_failure(seen.snapshot) is None
