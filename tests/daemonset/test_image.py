"""The image definition. No engine builds it here, but its build stage is run step by step where it may reach PyPI."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gputopo import __version__
from tests.daemonset.tools import DAEMONSET, ROOT

LOCK, BUILD_LOCK = DAEMONSET / "requirements.lock", DAEMONSET / "build.lock"


class Step(NamedTuple):
    """One instruction."""

    stage: int
    word: str  # "RUN"
    text: str  # continued lines joined


def steps() -> list[Step]:
    text = re.sub(r"\\\n\s*", "", (DAEMONSET / "Dockerfile").read_text())
    found, stage = [], -1
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word in {"", "#"}:
            continue
        stage += word == "FROM"
        found.append(Step(stage, word, rest))
    return found


def copied() -> list[tuple[list[str], str]]:
    """Sources and target of what is copied from the repository."""
    pairs = [step.text.split() for step in steps() if step.word == "COPY" and not step.text.startswith("--from")]
    return [(sources, target) for *sources, target in pairs]


def test_copied_files_exist_and_are_not_ignored() -> None:
    ignore = (DAEMONSET / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    sources = {source for group, _ in copied() for source in group}

    assert "*" in ignore
    assert sources == allowed
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_wheel_needs_nothing_that_is_not_copied() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    sources = {source for group, _ in copied() for source in group}

    assert {*build["targets"]["wheel"]["only-include"], *build["targets"]["wheel"]["shared-data"]} <= sources


def test_the_base_image_has_a_digest_and_nothing_of_it_is_in_the_image_uncopied() -> None:
    (default,) = (step.text for step in steps() if step.word == "ARG" and step.stage == -1)
    images = [step.text for step in steps() if step.word == "FROM"]

    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", default)
    assert images == ["${PYTHON_IMAGE} AS build", "scratch"]


def test_pip_installs_nothing_without_a_hash() -> None:
    """Not even what builds the wheel: without build isolation pip takes the build backend of build.lock."""
    commands = [line for step in steps() if step.word == "RUN" for line in step.text.split(" && ")]
    installs = [words for line in commands if (words := line.split())[0] == "pip"]

    assert len(installs) == 4
    for words in installs:
        assert "--require-hashes" in words or {"--no-index", "--no-deps"} <= set(words), words
    assert "--no-build-isolation" in installs[2]
    for lock in (LOCK, BUILD_LOCK):
        assert len(re.findall(r"^\S+==\S+", lock.read_text(), re.MULTILINE)) > 0
        assert re.findall(r"^\S+==\S+.*[^\\]$", lock.read_text(), re.MULTILINE) == []  # a line without hashes below


def test_the_image_is_labelled_and_runs_the_agent_as_an_unprivileged_user() -> None:
    last = {step.word: step.text for step in steps() if step.stage == 1}

    assert last["USER"] == "65532:65532"
    assert (last["ENTRYPOINT"], last["CMD"]) == ('["gputopo"]', '["agent"]')
    assert f"VERSION={__version__}" in [step.text for step in steps() if step.word == "ARG"]
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in last["LABEL"]


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        pytest.param(LOCK, {"agent", "cluster"}, id="image"),
        pytest.param(ROOT / "locks/test.lock", {"agent", "cluster", "build", "test", "e2e"}, id="tests"),
        pytest.param(
            ROOT / "locks/check.lock", {"agent", "cluster", "build", "test", "e2e", "check", "manifests"}, id="tools"
        ),
    ],
)
def test_a_lock_meets_every_requirement_with_hashes(lock: Path, extras: set[str]) -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)(?: ;.*)? \\$", lock.read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    wanted = [each for each in map(Requirement, listed) if each.name != "gputopo"]
    unmet = [str(each) for each in wanted if locked.get(canonicalize_name(each.name), "0") not in each.specifier]

    assert unmet == [], "run `make lock`"
    assert lock.read_text().count("--hash=sha256:") >= len(locked)


def test_make_installs_no_tool_without_a_hash() -> None:
    """But the base install of `make demo`, which a reader tries."""
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if " pip install " in line]
    demo, *others = installs

    assert set(re.findall(r"\$\(VENV\)/\.\w+", makefile)) == set(
        re.findall(r"^(\$\(VENV\)/\.\w+):", makefile, re.MULTILINE)
    )
    assert "-e . &&" in demo
    assert all("--require-hashes" in line or "--no-index" in line for line in others)
    assert len(others) == 3


def copy_context(source: Path) -> None:
    """Copy what the COPY instructions name, with other time stamps and modes than in the checkout."""
    for sources, target in copied():
        for each in sources:
            place = source / target / (Path(each).name if target.endswith((".", "/")) else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, place, ignore=shutil.ignore_patterns("__pycache__", "*.golden.*"))
            else:
                shutil.copy(ROOT / each, place)


def run_step(command: str, folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-ec", command], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


class Built(NamedTuple):
    """The result of the build stage."""

    source: Path
    prefix: Path  # /opt/gputopo
    root: Path  # /rootfs
    printed: str  # by the last step
    environ: dict[str, str]

    def inside(self, *command: str) -> str:
        """Run a command in the root file system, as the user of the image. Return its output."""
        (variables,) = (step.text for step in steps() if step.stage == 1 and step.word == "ENV")
        environ = dict(each.split("=", 1) for each in variables.split())
        return run_step(
            shlex.join(("/usr/sbin/chroot", "--userspec=65532:65532", str(self.root), *command)), self.root, environ
        )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The build stage, run step by step with this Python. Needs PyPI, and root for ``chroot``."""
    if "IMAGE_STEPS" not in os.environ:
        pytest.skip("runs pip against PyPI: `make manifests`")
    if os.geteuid() != 0:
        pytest.skip("runs chroot, which needs root")
    folder = tmp_path_factory.mktemp("image")
    source, programs = folder / "src", folder / "bin"
    programs.mkdir()
    for name, command in (("python", ""), ("pip", "-m pip")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
        (programs / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    copy_context(source)
    for step in steps():
        if step.stage == 0 and step.word == "RUN":
            # Not in the build's machines: there /usr is the image's.
            command = step.text.replace("/opt/", f"{folder}/opt/").replace("/rootfs", f"{folder}/rootfs")
            printed = run_step(command, source, environ)
    return Built(source, folder / "opt/gputopo", folder / "rootfs", printed, environ)


def test_the_agent_runs_in_the_root_file_system(built: Built) -> None:
    assert "gputopo.io/interconnect=nvswitch\n" in built.printed


def test_the_image_has_no_shell_no_pip_and_no_program_but_its_own(built: Built) -> None:
    files = [path for path in built.root.rglob("*") if path.is_file() and not path.is_symlink()]
    programs = {path.name for path in files if path.stat().st_mode & 0o111 and ".so" not in path.name}
    texts = {path.name for path in files if path.suffix == ".py" and path.stat().st_mode & 0o111}
    packages = {path.name.partition("-")[0] for path in built.root.rglob("*.dist-info")}

    assert programs - texts == {"gputopo", Path(sys.executable).resolve().name}
    assert {"pip", "setuptools", "hatchling", "aiohttp"}.isdisjoint(packages)
    assert not list(built.root.rglob("ensurepip"))


def test_every_module_of_the_programs_can_be_imported_in_the_image(built: Built) -> None:
    """Without the packages and modules that are left out; compiled, so that a read-only file system costs no time."""
    code = """
import importlib, os, pkgutil, sys
for package in ("gputopo", "agent", "scheduler_core"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_kube_config
from kubernetes.config.incluster_config import InClusterConfigLoader
ApiClient(Configuration())
import ctypes, ssl, uvloop, httptools
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 50
cached = {name: getattr(each, "__cached__", None) for name, each in sys.modules.items()}
print([name for name, path in cached.items() if path and not os.path.exists(path)], len(cached) > 500)
"""

    assert built.inside(str(built.prefix / "bin/python"), "-c", code) == "[] True\n"


def test_scanners_find_the_debian_packages_of_the_libraries(built: Built) -> None:
    described = {path.name for path in (built.root / "var/lib/dpkg/status.d").iterdir()}

    assert {"libc6", "libgcc-s1", "zlib1g"} <= described
    assert "\nVersion: " in (built.root / "var/lib/dpkg/status.d/libc6").read_text()


def test_a_wheel_built_again_elsewhere_and_later_has_the_same_bytes(built: Built, tmp_path: Path) -> None:
    (first,) = (built.source / "dist").glob("*.whl")
    again = tmp_path / "other"
    copy_context(again)
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    (build,) = (step.text for step in steps() if " wheel " in step.text)
    command = build.partition(" && ")[0].replace("/opt/", f"{built.prefix.parent}/")
    run_step(command, again, built.environ)

    (second,) = (again / "dist").glob("*.whl")
    assert hashlib.sha256(second.read_bytes()).digest() == hashlib.sha256(first.read_bytes()).digest()


def test_the_image_with_an_extension_runs_no_program_of_the_image_and_has_its_packages_path() -> None:
    """The image has neither shell nor pip (docs/extensions.md)."""
    page = (ROOT / "docs/extensions.md").read_text()
    build, image = page.partition("```dockerfile\n")[2].partition("```")[0].split("\n\n")
    found = re.search(r"library/python:(\d+\.\d+)", (DAEMONSET / "Dockerfile").read_text())
    assert found is not None
    version = found[1]

    assert f"FROM docker.io/library/python:{version}-" in build
    assert [line.split(" ")[0] for line in image.splitlines() if line] == ["FROM", "COPY"]
    assert image.split()[-1] == f"/opt/gputopo/lib/python{version}/site-packages"
