"""Find the programs of the control plane: in a folder that the environment names, or built from source.

    NoBinaries(Exception)    none named, and no Go here to build them: a reason to skip; says how to get them
    BinariesError(Exception) the named folder lacks one, or the build failed: a failure, never a skip

Run as a program it builds what is missing and prints the folder (``make e2e`` does, so that the build is seen).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MODULE = Path(__file__).parent / "controlplane"
PROGRAM = "controlplane"
REQUIRED = ("etcd", "kube-apiserver", "kube-scheduler")
BUILT = (*REQUIRED, "kube-controller-manager")
HOW_TO_GET_THEM = (
    "no control plane: install Go (they are then built once), or set KUBEBUILDER_ASSETS to a folder that holds "
    + ", ".join(REQUIRED)
    + " (docs/testing.md)"
)


class NoBinariesError(Exception):
    """There are no programs, and nothing here can build them."""


class BinariesError(Exception):
    """The programs should be there and are not."""


class Binaries(NamedTuple):
    """A folder of programs that go by the names of the Kubernetes release."""

    folder: Path

    def path(self, name: str) -> Path:
        """The program of that name. Raises ``BinariesError`` that names the folder."""
        if not (found := self.folder / name).exists():
            raise BinariesError(f"{self.folder} has no {name}")
        return found


def find(environ: Mapping[str, str], module: Path = MODULE) -> Binaries:
    """The folder that KUBEBUILDER_ASSETS names, else our build, made now if it is not there yet.

    Raises ``NoBinariesError`` where there is neither a folder nor Go, ``BinariesError`` for a folder that lacks a
    required program and for a build that fails.
    """
    if named := environ.get("KUBEBUILDER_ASSETS"):
        binaries = Binaries(Path(named))
        for name in REQUIRED:
            binaries.path(name)
        return binaries
    if (go := shutil.which("go", path=environ.get("PATH"))) is None:
        raise NoBinariesError(HOW_TO_GET_THEM)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputopo" / "controlplane"
    return Binaries(_built(Path(go), module, cache))


def kubernetes_version(module: Path = MODULE) -> str:
    """The Kubernetes release that go.mod pins: "v1.37.1"."""
    pinned = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    if pinned is None:
        raise BinariesError(f"{module / 'go.mod'} does not require k8s.io/kubernetes")
    return pinned[1]


def _built(go: Path, module: Path, cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / _key(go, module)
    with _lock(cache / "lock"):
        if not target.exists():
            _build(go, module, target)
    return target


def _key(go: Path, module: Path) -> str:
    toolchain = subprocess.run([go, "env", "GOVERSION", "GOOS", "GOARCH"], capture_output=True, check=True, cwd=module)
    digest = hashlib.sha256(toolchain.stdout)
    for source in sorted(
        path for path in module.iterdir() if path.name in {"go.mod", "go.sum"} or path.suffix == ".go"
    ):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _build(go: Path, module: Path, target: Path) -> None:
    version = kubernetes_version(module)
    major, minor = version.removeprefix("v").split(".")[:2]
    package = "k8s.io/component-base/version"
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    ldflags = " ".join(["-s", "-w", *(f"-X {package}.{name}={value}" for name, value in stamps.items())])
    print(
        f"building the Kubernetes {version} control plane, once: minutes on a cold machine", file=sys.stderr, flush=True
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as work:
        folder = Path(work) / target.name
        folder.mkdir()
        command: list[str | Path] = [go, "build", "-trimpath", "-ldflags", ldflags, "-o", folder / PROGRAM, "."]
        done = subprocess.run(command, cwd=module, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
        if done.returncode != 0:
            raise BinariesError(f"`go build` in {module} ended with {done.returncode}; its output is above")
        for name in BUILT:
            (folder / name).symlink_to(PROGRAM)
        folder.rename(target)  # atomic: a build that is killed leaves no half of itself under the final name


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold back a second build of the same checkout: two at once would take twice as long, and twice the memory."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build what is missing; 0 also where there is nothing to build with, for then the tests skip."""
    try:
        print(find(os.environ).folder)
    except NoBinariesError as missing:
        print(missing, file=sys.stderr)
    except BinariesError as broken:
        print(broken, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
