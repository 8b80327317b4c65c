"""A release: version, changelog, tag, the archive of the chart, and the wheel as users install it."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import gputopo
from daemonset.chart_package import packaged
from daemonset.copies import PINNED
from daemonset.release import (
    ReleaseError,
    check_version,
    main,
    parsed_version,
    prepare_release,
    released_changelog,
    with_version,
)
from tests.daemonset.tools import CHART, DAEMONSET, ROOT, run, tool

DATE = dt.date(2026, 11, 22)
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Fixed\n\n- a fault\n\n## 0.1.0 - 2026-01-01\n\n- the first\n"
COPIED = ("gputopo", "agent", "scheduler_core", "daemonset", "fixtures", "docs", "CHANGELOG.md", "pyproject.toml")


def test_the_version_is_the_same_everywhere() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in DAEMONSET.rglob("kustomization.yaml")}
    tags = {path: found for path, text in texts.items() if (found := re.findall(r"- name: gputopo\n.*?: (.*)", text))}
    chart = (CHART / "Chart.yaml").read_text(encoding="utf-8")

    assert len(tags) >= 5
    assert {f"{path.parent.relative_to(DAEMONSET)}/kustomization.yaml" for path in tags} <= set(PINNED)
    assert {tag for found in tags.values() for tag in found} == {gputopo.__version__}
    assert re.findall(r"(?m)^(?:v|appV)ersion: (.*)$", chart) == [gputopo.__version__] * 2
    assert f"ARG VERSION={gputopo.__version__}\n" in (DAEMONSET / "Dockerfile").read_text(encoding="utf-8")


def test_entries_move_to_the_version_and_unreleased_stays_empty() -> None:
    assert released_changelog(CHANGELOG, "0.2.0", DATE) == CHANGELOG.replace(
        "## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-11-22\n"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("# Changelog\n\n## 0.1.0\n\n- x\n", "no heading '## Unreleased'", id="no heading"),
        pytest.param("## Unreleased\n\n## 0.1.0\n\n- x\n", "no entries under '## Unreleased'", id="no entries"),
        pytest.param("## Unreleased\n\n### Added\n", "no entries under '## Unreleased'", id="headings only"),
    ],
)
def test_a_changelog_without_entries_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ReleaseError, match=complaint):
        released_changelog(text, "0.2.0", DATE)


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "1.2.3-rc1", "01.2.3", "", "1.2.3\n"])
def test_an_invalid_version_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(repr(text))):
        parsed_version(text)


@pytest.mark.parametrize(
    ("version", "complaint"), [("0.0.9", "lower than the current version"), ("0.1.0", "already in CHANGELOG.md")]
)
def test_a_version_only_rises(version: str, complaint: str) -> None:
    with pytest.raises(ReleaseError, match=complaint):
        check_version(version, "0.1.0", CHANGELOG)


def test_numbers_are_compared_as_numbers() -> None:
    check_version("0.10.0", "0.9.0", CHANGELOG)


def test_two_versions_in_one_file_are_refused() -> None:
    with pytest.raises(ReleaseError, match="2 lines"):
        with_version('__version__ = "1"\n__version__ = "2"\n', "0.2.0")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own with the files that a release reads and writes."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "machines"))
        else:
            shutil.copy(source, folder / name)
    for name, value in (("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")):
        monkeypatch.setenv(name, value)
    for variable in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{variable}_NAME", "Tester")
        monkeypatch.setenv(f"{variable}_EMAIL", "tester@example.com")
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


def test_a_release_is_one_commit_and_one_tag(checkout: Path) -> None:
    prepare_release(checkout, "7.8.9", DATE)

    assert git(checkout, "log", "-1", "--format=%s") == "release 7.8.9"
    assert git(checkout, "cat-file", "-t", "v7.8.9") == "tag"
    assert git(checkout, "status", "--porcelain") == ""
    changed = set(git(checkout, "show", "--name-only", "--format=").splitlines())
    assert changed >= {"CHANGELOG.md", "gputopo/__init__.py", "daemonset/chart/Chart.yaml", "daemonset/Dockerfile"}
    assert "## Unreleased\n\n## 7.8.9 - 2026-11-22\n" in (checkout / "CHANGELOG.md").read_text()
    assert "gputopo:7.8.9" in (checkout / "docs/install.md").read_text()
    rest = "\n".join(path.read_text() for path in (checkout / "daemonset").rglob("kustomization.yaml"))
    assert f"newTag: {gputopo.__version__}\n" not in rest


@pytest.mark.parametrize("fault", ["change", "branch", "tag"])
def test_a_checkout_that_is_not_ready_is_left_as_it_is(checkout: Path, fault: str) -> None:
    if fault == "change":
        (checkout / "new.txt").write_text("x")
    elif fault == "branch":
        git(checkout, "switch", "--quiet", "--create", "other")
    else:
        git(checkout, "tag", "v7.8.9")
    before = git(checkout, "rev-parse", "HEAD"), git(checkout, "status", "--porcelain")

    with pytest.raises(ReleaseError):
        prepare_release(checkout, "7.8.9", DATE)

    assert (git(checkout, "rev-parse", "HEAD"), git(checkout, "status", "--porcelain")) == before


def test_the_program_answers_mistakes_with_its_usage_or_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["1.2.3", "--force"]) == 2
    assert main(["next"]) == 1
    assert "'next' is not a version" in capsys.readouterr().err


def test_the_archive_of_the_chart_has_the_same_bytes_wherever_it_is_packed(tmp_path: Path) -> None:
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)

    assert packaged(copy, 1_000_000) == packaged(CHART, 1_000_000)


def test_helm_renders_the_archive_like_the_chart(tmp_path: Path) -> None:
    name, content = packaged(CHART, 0)
    (tmp_path / name).write_bytes(content)

    assert name == f"gputopo-{gputopo.__version__}.tgz"
    with tarfile.open(tmp_path / name) as archive:
        assert {(each.mtime, each.uid, each.mode) for each in archive} == {(0, 0, 0o644)}
    assert run("helm", "template", "x", tmp_path / name) == run("helm", "template", "x", CHART)
    assert tool("helm")


def test_the_alerts_of_a_packaged_chart_link_to_the_runbooks_of_the_release(tmp_path: Path) -> None:
    runbooks = "https://git.example.com/gputopo/blob/v0.1.0/docs/runbooks.md"
    name, content = packaged(CHART, 0, runbooks)
    (tmp_path / name).write_bytes(content)
    with tarfile.open(tmp_path / name) as archive:
        values = archive.extractfile("gputopo/values.yaml")
        assert values is not None
        loaded = yaml.safe_load(values.read())

    assert loaded["monitoring"]["prometheusRule"]["runbookUrl"] == runbooks
    assert packaged(CHART, 0, "") == packaged(CHART, 0)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in an empty folder with the base install of a wheel. Needs PyPI."""
    if "IMAGE_STEPS" not in os.environ:
        pytest.skip("runs pip against PyPI: `make manifests`")
    folder = tmp_path_factory.mktemp("installed")
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run([sys.executable, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    subprocess.run([folder / "env/bin/pip", "install", "--quiet", wheel], check=True)
    return folder


def gputopo_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "env/bin/gputopo"
    return subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False, env={"HOME": str(folder)}
    )


def test_the_base_install_shows_a_bundled_machine(installed: Path) -> None:
    for arguments in (
        ("--version",),
        ("machines",),
        ("show", "dgx-h100"),
        ("labels", "--from", "dgx-1"),
        ("policy", "show"),
    ):
        done = gputopo_in(installed, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert done.stdout
    assert gputopo.__version__ in gputopo_in(installed, "--version").stdout


def test_a_command_without_its_extra_names_it_and_works_with_it(installed: Path) -> None:
    without = gputopo_in(installed, "nodes")
    assert without.returncode != 0
    assert "pip install '.[cluster]' in a checkout of gputopo" in without.stderr
    (wheel,) = installed.glob("*.whl")
    subprocess.run([installed / "env/bin/pip", "install", "--quiet", f"{wheel}[all]"], check=True)

    done = gputopo_in(installed, "nodes", "--kubeconfig", "missing")

    assert "pip install" not in done.stderr
    assert "missing" in done.stderr
