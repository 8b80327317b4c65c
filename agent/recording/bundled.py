"""The recorded machines that come with gputopo, by name: `gputopo show --from dgx-a100`.

In a wheel they lie in the package (``gputopo/machines``), in a checkout under ``fixtures/machines``: a folder each.
Paths are text here, since ``pathlib`` takes longer to import (8 ms) than a machine takes to be found and read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

import gputopo


class Machine(msgspec.Struct, frozen=True):
    """A recorded machine."""

    name: str  # its folder, named by its shape: "8a100-4n-nvswitch12"
    aliases: tuple[str, ...]  # what people call it: "dgx-a100"
    title: str
    snapshot: str  # path of its recording


def folder() -> str:
    """Where the recorded machines lie."""
    package = os.path.dirname(gputopo.__file__)
    installed = os.path.join(package, "machines")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "fixtures", "machines")


def machines(root: str) -> Iterator[Machine]:
    """The machines below a folder, by name."""
    import tomllib  # noqa: PLC0415  only who lists them

    for name in _names(root):
        facts = tomllib.loads(_case(root, name))
        yield Machine(name, tuple(facts["aliases"]), facts["title"], _snapshot(root, name))


def find(name: str, root: str) -> str | None:
    """The path of the recording of the machine of that name or alias; None where there is none.

    The aliases stand on one line of each ``case.toml``, which is found without parsing the rest of it.
    """
    return next((_snapshot(root, each) for each in _names(root) if name == each or name in _aliases(root, each)), None)


def _names(root: str) -> list[str]:
    return sorted(each for each in os.listdir(root) if os.path.exists(os.path.join(root, each, "case.toml")))


def _aliases(root: str, name: str) -> list[str]:
    line = next(line for line in _case(root, name).splitlines() if line.startswith("aliases"))
    return line.split('"')[1::2]


def _case(root: str, name: str) -> str:
    with open(os.path.join(root, name, "case.toml"), encoding="utf-8") as file:
        return file.read()


def _snapshot(root: str, name: str) -> str:
    return os.path.join(root, name, "snapshot.json")
