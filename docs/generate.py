"""Write the generated pages below docs/, or with --check say which of them are stale (exit code 1)."""

from __future__ import annotations

import sys
from pathlib import Path

from gputopo.labels.reference import reference

DOCS = Path(__file__).parent
PAGES = {"labels.md": reference}


def stale() -> list[str]:
    """The names of pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def main(check: bool) -> int:
    """Write what is stale, or only name it."""
    names = stale()
    for name in names:
        if not check:
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name}: {'stale; run `make docs`' if check else 'written'}")
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
