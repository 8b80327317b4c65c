"""The pages of the documentation."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"
PAGES = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "fixtures/README.md")),
    *sorted(DOCS.glob("*.md")),
)
