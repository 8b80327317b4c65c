"""The image definition. No engine builds it here, but its build stage is run step by step where it may reach PyPI."""

from __future__ import annotations

import os
import re
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

LOCK = DAEMONSET / "requirements.lock"


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


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignore = (DAEMONSET / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    sources = {source for group, _ in copied() for source in group}

    assert "*" in ignore
    assert sources == allowed
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_wheel_needs_nothing_that_is_not_copied() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    sources = {source for group, _ in copied() for source in group}

    assert set(build["targets"]["wheel"]["only-include"]) <= sources


def test_both_stages_have_the_same_pinned_python() -> None:
    (default,) = (step.text for step in steps() if step.word == "ARG" and step.stage == -1)
    images = [step.text for step in steps() if step.word == "FROM"]

    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+", default)
    assert images == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]


def test_the_image_is_labelled_and_runs_the_agent_as_nobody() -> None:
    last = {step.word: step.text for step in steps() if step.stage == 1}

    assert last["USER"] == "65532:65532"
    assert (last["ENTRYPOINT"], last["CMD"]) == ('["gputopo"]', '["agent"]')
    assert f"VERSION={__version__}" in [step.text for step in steps() if step.word == "ARG"]
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in last["LABEL"]


def test_the_lock_meets_every_requirement_with_hashes() -> None:
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)(?: ;.*)? \\$", LOCK.read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = map(Requirement, [*project["dependencies"], *extras["agent"], *extras["cluster"]])
    unmet = [str(each) for each in wanted if locked.get(canonicalize_name(each.name), "0") not in each.specifier]

    assert unmet == [], "run `make lock`"
    assert LOCK.read_text().count("--hash=sha256:") >= len(locked)


@pytest.mark.skipif("IMAGE_STEPS" not in os.environ, reason="runs pip against PyPI: `make manifests`")
def test_the_build_stage_runs_and_its_agent_works(tmp_path: Path) -> None:
    source, prefix, programs = tmp_path / "src", tmp_path / "opt", tmp_path / "bin"
    programs.mkdir()
    for name, command in (("python", ""), ("pip", "-m pip")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command} "$@"\n')
        (programs / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for sources, target in copied():
        for each in sources:
            place = source / target / (Path(each).name if target.endswith((".", "/")) else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / each).is_dir():
                shutil.copytree(ROOT / each, place, ignore=shutil.ignore_patterns("__pycache__", "*.golden.*"))
            else:
                shutil.copy(ROOT / each, place)

    for step in steps():
        if step.stage == 0 and step.word == "RUN":
            command = step.text.replace("/opt/gputopo", str(prefix))
            done = subprocess.run(
                ["/bin/sh", "-ec", command], cwd=source, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    assert "gputopo.io/interconnect=nvswitch\n" in done.stdout  # of the last step
    compiled = {
        path.name.partition(".")[0] for path in prefix.glob("lib/python3.*/site-packages/agent/__pycache__/*.pyc")
    }
    assert compiled == {path.stem for path in (ROOT / "agent").glob("*.py")}
