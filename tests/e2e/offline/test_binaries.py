"""Finding and building the control plane: with a compiler that is a shell script, for this is about what we do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import binaries
from tests.e2e.binaries import BUILT, MODULE, REQUIRED, BinariesError, NoBinariesError

COMPILES = """
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh' > "$2"; chmod +x "$2"
echo built >> "$BUILDS"
"""
FAILS = "echo 'main.go:1: no' >&2; exit 2"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a folder for compilers first on its path, and a cache of its own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    return {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def _compiler(environ: dict[str, str], build: str, version: str = "go1.26.0") -> None:
    go = Path(environ["PATH"]) / "go"
    go.write_text(f"#!/bin/sh\nif [ $1 = env ]; then echo {version}; exit; fi\n{build}\n")
    go.chmod(0o755)


def _builds(environ: dict[str, str]) -> int:
    log = Path(environ["PATH"]).parent / "builds"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_named_folder_is_used(tmp_path: Path) -> None:
    for name in REQUIRED:
        (tmp_path / name).touch()

    found = binaries.find({"KUBEBUILDER_ASSETS": str(tmp_path)})

    assert found.path("etcd") == tmp_path / "etcd"


def test_named_folder_that_lacks_a_program_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()

    with pytest.raises(BinariesError, match="has no kube-apiserver"):
        binaries.find({"KUBEBUILDER_ASSETS": str(tmp_path)})


def test_without_go_there_are_none_and_one_line_says_how_to_get_them(environ: dict[str, str]) -> None:
    with pytest.raises(NoBinariesError) as missing:
        binaries.find(environ)

    assert str(missing.value) == (
        "no control plane: install Go (they are then built once), or set KUBEBUILDER_ASSETS to a folder that holds "
        "etcd, kube-apiserver, kube-scheduler (docs/testing.md)"
    )


def test_built_once_under_every_name(environ: dict[str, str]) -> None:
    _compiler(environ, COMPILES)

    found, again = binaries.find(environ), binaries.find(environ)

    assert found == again
    assert _builds(environ) == 1
    assert {path.name for path in found.folder.iterdir()} == {*BUILT, "controlplane"}
    assert all(os.access(found.path(name), os.X_OK) for name in BUILT)


def test_another_compiler_builds_again(environ: dict[str, str]) -> None:
    _compiler(environ, COMPILES)
    first = binaries.find(environ)
    _compiler(environ, COMPILES, version="go1.27.0")

    assert binaries.find(environ).folder != first.folder


def test_build_that_fails_is_a_failure_and_leaves_nothing(environ: dict[str, str]) -> None:
    _compiler(environ, FAILS)

    with pytest.raises(BinariesError, match="ended with 2"):
        binaries.find(environ)

    assert [path.name for path in Path(environ["XDG_CACHE_HOME"]).glob("*/*/*")] == ["lock"]


def test_second_build_waits_for_the_first(environ: dict[str, str]) -> None:
    _compiler(environ, f"sleep 0.5\n{COMPILES}".replace("sleep", "/bin/sleep"))
    command = [sys.executable, "-m", "tests.e2e.binaries"]
    started = time.monotonic()
    both = [
        subprocess.Popen(command, env=os.environ | environ, stdout=subprocess.PIPE, text=True, cwd=MODULE.parents[2])
        for _ in range(2)
    ]

    folders = {process.communicate()[0] for process in both}

    assert len(folders) == 1
    assert _builds(environ) == 1
    assert time.monotonic() - started > 0.5


def test_go_mod_pins_one_kubernetes_release() -> None:
    go_mod = (MODULE / "go.mod").read_text()
    staging = f"v0.{binaries.kubernetes_version().removeprefix('v1.')}"

    assert {line.split()[-1] for line in go_mod.splitlines() if " => " in line} == {staging}
    assert f"k8s.io/component-base {staging}" in go_mod


def test_go_mod_without_kubernetes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")

    with pytest.raises(BinariesError, match="does not require"):
        binaries.kubernetes_version(tmp_path)
