"""The kubectl plugin of a release: the manifest against krew's rules, and the archive as krew unpacks it.

krew itself is not run. The schema below states the checks of its documentation and of its ``ValidatePlugin``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import gputopo
from daemonset.krew import PROGRAM, PluginError, main, plugin_archive, plugin_manifest
from tests.daemonset.tools import ROOT, tool

URL = "https://example.com/gputopo/releases/download/v1"
TEXT = {"type": "string", "minLength": 1}
SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": r"^[\w-]+$"}}},
        "spec": {
            "type": "object",
            "required": ["version", "shortDescription", "platforms"],
            "additionalProperties": False,
            "properties": {
                "version": {"type": "string", "pattern": r"^v\d+\.\d+\.\d+$"},
                "shortDescription": {"type": "string", "pattern": r"^[^\r\n]{1,50}$"},
                **dict.fromkeys(("description", "caveats", "homepage"), TEXT),
                "platforms": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["selector", "uri", "sha256", "bin"],
                        "additionalProperties": False,
                        "properties": {
                            "uri": {"type": "string", "pattern": r"^https://.*\.(tar\.gz|zip)$"},
                            "sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
                            "bin": TEXT,
                            "files": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"required": ["from", "to"], "properties": {"from": TEXT, "to": TEXT}},
                            },
                            "selector": {
                                "required": ["matchLabels"],
                                "properties": {
                                    "matchLabels": {
                                        "minProperties": 1,
                                        "propertyNames": {"enum": ["os", "arch"]},
                                    }
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release with its wheel, the archive and the manifest."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert main([str(folder), URL]) == 0
    return folder


@pytest.fixture(scope="module")
def manifest(dist: Path) -> Any:
    return yaml.safe_load((dist / "gputopo.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def plugin(dist: Path, manifest: Any, tmp_path: Path) -> Path:
    """The plugin as krew installs it: unpacked into its store, and linked by the name of the manifest's `bin`."""
    (files,) = {str(each["files"]) for each in manifest["spec"]["platforms"]}
    assert files == "[{'from': '*', 'to': '.'}]"
    store = tmp_path / "store/gputopo" / manifest["spec"]["version"]
    with tarfile.open(dist / f"{PROGRAM}-{gputopo.__version__}.tar.gz") as archive:
        archive.extractall(store, filter="data")
    link = tmp_path / "bin" / PROGRAM
    link.parent.mkdir()
    link.symlink_to(store / manifest["spec"]["platforms"][0]["bin"])
    return link


def test_the_manifest_keeps_the_rules_of_krew(manifest: Any) -> None:
    jsonschema.validate(manifest, SCHEMA)

    assert manifest["metadata"]["name"] == "gputopo"  # the name of the file, as krew demands
    assert manifest["spec"]["version"] == f"v{gputopo.__version__}"
    selected = [tuple(each["selector"]["matchLabels"].values()) for each in manifest["spec"]["platforms"]]
    assert selected == [("darwin", "amd64"), ("darwin", "arm64"), ("linux", "amd64"), ("linux", "arm64")]


def test_the_digest_and_the_address_are_those_of_the_archive(dist: Path, manifest: Any) -> None:
    for platform in manifest["spec"]["platforms"]:
        base, _, name = platform["uri"].rpartition("/")
        assert base == URL
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == platform["sha256"]


def test_the_archive_has_the_same_bytes_whenever_it_is_packed(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    copy = tmp_path / wheel.name
    shutil.copyfile(wheel, copy)
    copy.chmod(0o700)

    assert plugin_archive(copy, 0) == plugin_archive(wheel, 0)
    assert (dist / plugin_archive(wheel, 0)[0]).read_bytes() == plugin_archive(wheel, 0)[1]


def test_the_archive_contains_the_program_the_licence_and_what_the_program_installs(dist: Path) -> None:
    with tarfile.open(dist / f"{PROGRAM}-{gputopo.__version__}.tar.gz") as archive:
        modes = {each.name: each.mode for each in archive}

    assert modes == {
        "LICENSE": 0o644,
        f"gputopo-{gputopo.__version__}-py3-none-any.whl": 0o644,
        PROGRAM: 0o755,
        "requirements.lock": 0o644,
    }


@pytest.mark.parametrize("url", ["http://example.com/x", "example.com", "https://", "file:///tmp"])
def test_an_address_that_krew_cannot_download_from_is_refused(url: str) -> None:
    with pytest.raises(PluginError, match="is not the https:// URL of a folder"):
        plugin_manifest("a.tar.gz", b"", url)


def test_a_missing_wheel_or_address_is_an_error(dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "build the wheel first" in capsys.readouterr().err
    (wheel,) = dist.glob("*.whl")
    shutil.copy(wheel, tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "make dist DOWNLOADS=URL" in capsys.readouterr().out
    assert not (tmp_path / "gputopo.yaml").exists()


def test_without_a_suitable_python_the_plugin_says_what_to_do_and_installs_nothing(plugin: Path) -> None:
    done = subprocess.run(
        [plugin, "show"], env=os.environ | {"GPUTOPO_PYTHON": "false"}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "Python 3.11, 3.12 or 3.13 is needed" in done.stderr
    assert not (plugin.resolve().parent / "env").exists()


def test_a_failed_installation_leaves_nothing_and_the_next_start_tries_again(plugin: Path) -> None:
    home = plugin.resolve().parent
    (home / "requirements.lock").write_text("gputopo-missing==1 --hash=sha256:" + "0" * 64 + "\n")
    environment = os.environ | {"PIP_NO_INDEX": "1", "GPUTOPO_PYTHON": sys.executable}
    for _ in range(2):
        done = subprocess.run([plugin, "show"], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "the packages could not be installed" in done.stderr
        assert sorted(each.name for each in home.iterdir() if each.is_dir()) == []


def test_a_second_first_start_does_not_disturb_the_first(plugin: Path) -> None:
    (plugin.resolve().parent / "installing").mkdir()
    environment = os.environ | {"GPUTOPO_PYTHON": sys.executable}

    done = subprocess.run([plugin, "show"], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "Another first start is running" in done.stderr
    assert (plugin.resolve().parent / "installing").exists()


def test_kubectl_runs_the_plugin_after_its_first_start(plugin: Path) -> None:
    """Needs PyPI."""
    if "IMAGE_STEPS" not in os.environ:
        pytest.skip("runs pip against PyPI: `make manifests`")
    path = os.pathsep.join((str(plugin.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    starts = [
        subprocess.run(
            [tool("kubectl"), "gputopo", "labels", "--from", "dgx-1"],
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]

    assert [each.returncode for each in starts] == [0, 0], starts[0].stderr
    assert "first start: installing" in starts[0].stderr
    assert starts[1].stderr == ""
    assert "gputopo.io/gpus=8" in starts[1].stdout
