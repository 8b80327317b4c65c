"""Size on disk of the base install: gputopo and the packages that it needs without extras.

Counts the files that each distribution names in its RECORD, byte code included, and for gputopo its own packages too:
an editable install names none of them. Packages of the extras are not counted, installed or not. Run: make demo
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import agent
import gputopo
import scheduler_core
from agent.recording.bundled import bundled_directory

_MB = 1_000_000


def base_distributions(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return that distribution and all that it needs without extras, by name. ``found``: those known already."""
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:
        return found  # of another platform or another Python
    for requirement in found[name].requires or ():
        needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if "extra ==" not in requirement and needed not in found:
            base_distributions(needed, found)
    return found


def list_files(installed: Distribution) -> Iterator[Path]:
    """Return the files of a distribution."""
    for name in installed.files or ():
        yield Path(str(installed.locate_file(name))).resolve()
    if installed.metadata["Name"] == "gputopo":
        for package in (agent, gputopo, scheduler_core):
            yield from Path(package.__path__[0]).resolve().rglob("*")
        yield from Path(bundled_directory()).resolve().rglob("*")


def disk_usage(installed: Distribution) -> int:
    """Return the bytes that the files of a distribution take on disk."""
    return sum(file.stat().st_blocks * 512 for file in set(list_files(installed)) if file.is_file())


def main(seconds: str) -> None:
    """Print a line for each distribution, the largest first, and the sum. ``seconds``: of the install, or ""."""
    sizes = {name: disk_usage(each) for name, each in base_distributions("gputopo", {}).items()}
    for name, each in sorted(sizes.items(), key=lambda pair: -pair[1]):
        print(f"{each / _MB:8.1f} MB  {name}")
    took = f"installed in {seconds} s" if seconds else "install time not measured: run `make clean demo`"
    print(f"{sum(sizes.values()) / _MB:8.1f} MB  the base install; {took}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8").strip())
