"""The workflows of the forge: pinned actions, few rights, targets that exist, three Kubernetes minors."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
workflows = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps(file: Path) -> list[Any]:
    return [step for job in loaded(file)["jobs"].values() for step in job["steps"]]


@workflows
def test_every_action_is_pinned_by_commit_and_names_its_version(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))

    assert used
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_one_action_has_one_pin() -> None:
    used = {each for file in FILES for each in re.findall(r"uses: (\S+)", file.read_text(encoding="utf-8"))}

    assert len({each.partition("@")[0] for each in used}) == len(used)


@workflows
def test_the_rights_are_to_read_unless_a_job_names_more(file: Path) -> None:
    workflow = loaded(file)

    assert workflow["permissions"] == {"contents": "read"}
    writers = [name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()]
    assert writers == (["publish"] if file.stem == "release" else [])
    assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())


def test_only_a_tag_starts_a_release() -> None:
    workflow = loaded(ROOT / ".github/workflows/release.yml")

    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert workflow["jobs"]["publish"]["environment"] == "release"


@workflows
def test_the_targets_and_scripts_exist(file: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = "\n".join(step.get("run", "") for step in steps(file))
    named = {word for words in re.findall(r"\bmake ((?:[a-z][\w-]* ?)+)", commands) for word in words.split()}

    assert named
    assert named <= targets
    assert all((ROOT / script).is_file() for script in re.findall(r"\bscripts/[\w-]+", commands))


def test_the_end_to_end_tests_run_on_three_minors_the_newest_of_which_is_built() -> None:
    minors = loaded(ROOT / ".github/workflows/ci.yml")["jobs"]["e2e"]["strategy"]["matrix"]["kubernetes"]
    module = (ROOT / "tests/e2e/controlplane/go.mod").read_text(encoding="utf-8")
    newest = re.search(r"k8s\.io/kubernetes v1\.(\d+)\.", module)

    assert newest
    assert minors == [f"1.{int(newest[1]) - age}" for age in range(3)]
    assert f"matrix.kubernetes != '{minors[0]}'" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


def test_the_end_to_end_job_installs_a_browser_and_requires_it() -> None:
    workflow = loaded(ROOT / ".github/workflows/ci.yml")
    job = workflow["jobs"]["e2e"]
    commands = [step["run"] for step in job["steps"] if "run" in step]

    assert job["env"] == {"GPUTOPO_REQUIRE_BROWSER": "1"}
    assert commands.index("make browser") < commands.index("make e2e")
    assert workflow["env"] == {"PYTEST_ADDOPTS": "-rs"}
    assert "PYTEST_ADDOPTS=-rs" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_make_help_lists_every_target_with_a_line() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    command = ["make", "--no-print-directory", "help"]  # which a make that runs the tests asks for
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown.splitlines()}

    assert sorted(listed) == sorted(phony.split())
    assert sorted(listed) == sorted(set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE)))
