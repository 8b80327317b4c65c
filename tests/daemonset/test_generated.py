"""Manifests that are copies of something else are not stale."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from daemonset.copies import FILES, HERE, stale_files
from gputopo.crd.nodegpus import nodegpus_crd


def test_no_copy_is_stale() -> None:
    assert stale_files() == []


def test_a_copy_that_was_edited_or_is_missing_is_named(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / name, tmp_path / name)
    (tmp_path / "base/crd.yaml").write_text("edited: true\n")
    (tmp_path / "chart/files/alerts.yaml").unlink()

    assert stale_files(tmp_path) == ["base/crd.yaml", "chart/files/alerts.yaml"]


def test_the_definition_is_the_one_that_the_code_writes_by() -> None:
    assert yaml.safe_load((HERE / "base/crd.yaml").read_text()) == nodegpus_crd()
