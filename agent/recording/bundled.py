"""The bundled example machines, by name: `gputopo show --from dgx-a100`.

A wheel has them in the package (``gputopo/machines``), a checkout in ``fixtures/machines``: a directory each. Paths are
text, because importing ``pathlib`` takes longer (8 ms) than finding and reading a machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

import gputopo


class BundledMachine(msgspec.Struct, frozen=True):
    """A bundled example machine."""

    name: str  # of its directory, named by its shape: "8a100-4n-nvswitch12"
    aliases: tuple[str, ...]  # other names: "dgx-a100"
    title: str
    snapshot: str  # path of its recording


def bundled_directory() -> str:
    """Return the directory of the bundled machines."""
    package = os.path.dirname(gputopo.__file__)
    installed = os.path.join(package, "machines")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "fixtures", "machines")


def list_machines(root: str) -> Iterator[BundledMachine]:
    """Yield the machines in a directory, by name."""
    import tomllib  # noqa: PLC0415  only for the list

    for name in _machine_names(root):
        facts = tomllib.loads(_read_case(root, name))
        yield BundledMachine(name, tuple(facts["aliases"]), facts["title"], _snapshot_path(root, name))


def find_recording(name: str, root: str) -> str | None:
    """Return the path of the recording of a machine by name or alias; None where there is no such machine.

    The aliases are on one line of each ``case.toml``, so that the rest need not be parsed.
    """
    return next(
        (
            _snapshot_path(root, each)
            for each in _machine_names(root)
            if name == each or name in _machine_aliases(root, each)
        ),
        None,
    )


def _machine_names(root: str) -> list[str]:
    return sorted(each for each in os.listdir(root) if os.path.exists(os.path.join(root, each, "case.toml")))


def _machine_aliases(root: str, name: str) -> list[str]:
    line = next(line for line in _read_case(root, name).splitlines() if line.startswith("aliases"))
    return line.split('"')[1::2]


def _read_case(root: str, name: str) -> str:
    with open(os.path.join(root, name, "case.toml"), encoding="utf-8") as file:
        return file.read()


def _snapshot_path(root: str, name: str) -> str:
    return os.path.join(root, name, "snapshot.json")
