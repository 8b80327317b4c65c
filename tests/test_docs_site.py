"""The static site of the documentation: its menu, its links, and what a browser loads from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pages import PAGES

ROOT = Path(__file__).parents[1]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs/build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = _load()


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    SITE.stage(folder)
    return folder / "pages"


def test_every_page_is_on_the_site_and_only_once(staged: Path) -> None:
    names = [SITE.site_name(source) for source in SITE.site_pages()]

    assert sorted(path.name for path in staged.glob("*.md")) == sorted(names)
    assert len(set(names)) == len(names)
    assert set(names) >= {path.name for path in PAGES if path.parent.name == "docs"} - {"README.md"}


def test_the_menu_has_the_groups_of_the_index_and_names_pages_that_exist(staged: Path) -> None:
    config = (staged.parent / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(config[config.index("\nnav:") :])["nav"]
    groups = [name for group in nav for name in group]
    pages = [page for group in nav for entries in group.values() for entry in entries for page in entry.values()]

    assert groups == ["Get started", "Concepts", "Tasks", "Reference", "Explanation"]
    assert pages[0] == "index.md"
    assert [page for page in pages if not (staged / page).is_file()] == []
    unlisted = {path.name for path in staged.glob("*.md")} - set(pages)
    assert unlisted <= {"security-policy.md"}


def test_no_link_of_a_staged_page_leads_nowhere(staged: Path) -> None:
    broken = [
        f"{page.name}: {target}"
        for page in staged.glob("*.md")
        for part in SITE._CODE.split(page.read_text(encoding="utf-8"))[::2]
        for _, _, target in SITE._LINK.findall(part)
        if "://" not in target and target.partition("#")[0] and not (staged / target.partition("#")[0]).exists()
    ]

    assert broken == []


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("docs/ui.md", "[a](../README.md#try-it)", "[a](index.md#try-it)"),
        ("docs/ui.md", "[a](gangs.md#limits) [b](#c)", "[a](gangs.md#limits) [b](#c)"),
        ("README.md", "![a](docs/images/dgx-1.svg)", "![a](images/dgx-1.svg)"),
        ("README.md", "[a](docs/README.md)", "[a](index.md)"),
        ("README.md", '<img src="docs/images/a.png">', '<img src="images/a.png">'),
        ("docs/ui.md", "[`x.py`](../gputopo/gpu.py) [w](https://e.com/a.md)", "`x.py` [w](https://e.com/a.md)"),
        ("docs/ui.md", "`[a](../README.md)`", "`[a](../README.md)`"),
    ],
)
def test_links_are_changed_to_those_of_the_site(source: str, text: str, expected: str) -> None:
    assert SITE.staged_text(source, text) == expected


def test_broken_links_and_anchors_of_a_built_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"><a href="#gone"><a href="b.html#x"><img src="no.png">'
    )
    (tmp_path / "b.html").write_text('<p id="x"><a href="a.html"><a href="https://example.com/"><a href="a.html#y">')

    assert list(SITE.broken_links(tmp_path)) == ["a.html: #gone", "a.html: no.png", "b.html: a.html#y"]


def test_addresses_that_a_browser_would_load_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://cdn.example.com/x.js"></script><a href="https://example.org/">x</a>'
        '<link rel="stylesheet" href="//fonts.example.net/a.css">'
    )

    assert SITE.external_addresses(tmp_path) == {"cdn.example.com", "fonts.example.net"}


def test_mkdocs_builds_the_site_in_strict_mode(tmp_path: Path) -> None:
    """The folder into which `make site` installed mkdocs."""
    python = ROOT / "build/site-venv/bin/python"
    if not python.exists() or shutil.which(str(python)) is None:
        pytest.skip("no mkdocs: `make site` brings it")
    done = subprocess.run(
        [python, ROOT / "docs/build_site.py", tmp_path / "site"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ pages$", done.stdout.strip())
