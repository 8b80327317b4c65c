"""The recorded machines that come with gputopo, by name: `gputopo show --from dgx-a100`.

In a wheel they lie in the package (``gputopo/machines``), in a checkout under ``fixtures/machines``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gputopo


class Machine(NamedTuple):
    """A recorded machine."""

    name: str  # its folder, named by its shape: "8a100-4n-nvswitch12"
    aliases: tuple[str, ...]  # what people call it: "dgx-a100"
    title: str
    snapshot: Path


def folder() -> Path:
    """Where the recorded machines lie."""
    package = Path(gputopo.__file__).parent
    installed = package / "machines"
    return installed if installed.is_dir() else package.parent / "fixtures" / "machines"


def machines(root: Path) -> Iterator[Machine]:
    """The machines below a folder, by name."""
    for case in sorted(root.glob("*/case.toml")):
        facts = tomllib.loads(case.read_text(encoding="utf-8"))
        yield Machine(case.parent.name, tuple(facts["aliases"]), facts["title"], case.parent / "snapshot.json")


def find(name: str, root: Path) -> Machine | None:
    """The machine of that name or alias; None where there is none."""
    return next((each for each in machines(root) if name == each.name or name in each.aliases), None)
