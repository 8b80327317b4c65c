"""The manual pages: one for each command, up to date, rendered without a warning, and part of the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gputopo.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
MANUAL = ROOT / "docs/man"
PAGES = sorted(MANUAL.glob("*.1"), key=lambda page: page.stem)


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it, by the name of the manual page."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from commands(f"{path}-{name}", below)


def shown(page: Path) -> str:
    """The page as `man` shows it, without bold face, hyphenation and extra spaces."""
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    source = ".nr HY 0\n.ll 1000n\n" + page.read_text(encoding="utf-8")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=1000n"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return re.sub(r" +", " ", done.stdout)


def test_every_command_has_a_page_and_every_page_a_command() -> None:
    assert [page.stem for page in PAGES] == sorted(name for name, _ in commands("gputopo", main))


def test_the_pages_are_as_generated() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )

    assert [line for line in done.stdout.splitlines() if "docs/man/" in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_rendered_without_a_warning_and_names_every_option(page: Path) -> None:
    text = shown(page)
    command = dict(commands("gputopo", main))[page.stem]
    options = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}

    assert [name for name in options if not re.search(rf"^ *(-\w, )?.*{re.escape(name)}\b", text, re.MULTILINE)] == []
    assert re.search(r"^NAME\n +gputopo", text, re.MULTILINE)
    for section in ("SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS"):
        assert f"\n{section}\n" in text


def test_man_itself_warns_about_no_page() -> None:
    if shutil.which("man") is None:
        pytest.skip("needs man")
    done = subprocess.run(
        ["man", "--warnings", "-l", *PAGES], capture_output=True, text=True, check=False, env={"MANPAGER": "cat"}
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_examples_keep_their_lines_and_quotes() -> None:
    text = shown(MANUAL / "gputopo-show.1")

    assert (
        '\n gputopo show --check; test $? -eq 1 && echo "call the vendor"\n gputopo show --from topo.txt -o json'
        in text
    )
    assert "the output of nvidia-smi topo -m or of kubectl get node -o json" in text


def test_the_first_page_lists_all_commands_and_exit_codes() -> None:
    text = shown(MANUAL / "gputopo.1")

    assert [name for name in COMMANDS if f"gputopo-{name}(1)\n" not in text] == []
    assert "70 an internal error of gputopo, please report it; 130 ended by Ctrl-C" in " ".join(text.split())


def test_the_wheel_installs_the_pages_where_man_looks(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = [Path(name).name for name in names if re.search(r"\.data/data/share/man/man1/[^/]+\.1$", name)]

    assert sorted(found) == sorted(page.name for page in PAGES)
