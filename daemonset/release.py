"""Prepare a release: check the checkout, write the version and the changelog, commit and tag.

python -m daemonset.release 1.2.3            commit and tag v1.2.3; push both yourself
python -m daemonset.release 1.2.3 --check    only the checks

The version stands in ``gputopo/__init__.py``; ``daemonset.copies`` copies it to the chart, manifests and Dockerfile.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

import gputopo

ROOT = Path(__file__).parents[1]
VERSION_FILE = Path("gputopo/__init__.py")
PAGES = (
    Path("docs/install.md"),
    Path("docs/kubectl-plugin.md"),
    Path("docs/release.md"),
)  # whose commands name the current version
CHANGELOG = Path("CHANGELOG.md")
BRANCH = "main"
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_ASSIGNMENT = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)
_UNRELEASED = "## Unreleased\n"
_HEADING = re.compile(r"^## ", re.MULTILINE)


class ReleaseError(Exception):
    """A release cannot be made; the message says why and what to do."""


def parsed_version(text: str) -> tuple[int, int, int]:
    """Return major, minor and patch. Raises ``ReleaseError``."""
    if (match := _VERSION.fullmatch(text)) is None:
        raise ReleaseError(f"{text!r} is not a version: write MAJOR.MINOR.PATCH, for example 1.2.3")
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def check_version(version: str, current: str, changelog: str) -> None:
    """Raise ``ReleaseError`` unless the version follows the current one, or is the current one and not yet released."""
    released = re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    if version in released:
        raise ReleaseError(f"{version} is already in CHANGELOG.md: choose a higher version")
    if parsed_version(version) < parsed_version(current):
        raise ReleaseError(f"{version} is lower than the current version {current}: choose a higher version")


def released_changelog(text: str, version: str, date: dt.date) -> str:
    """Return the changelog with its entries under Unreleased moved to the version. Raises ``ReleaseError``."""
    before, heading, rest = text.partition(_UNRELEASED)
    if not heading:
        raise ReleaseError("CHANGELOG.md has no heading '## Unreleased': add it above the newest version")
    following = _HEADING.search(rest)
    entries = rest[: following.start()] if following else rest
    if not re.search(r"^(?:-|\d+\.) ", entries, re.MULTILINE):
        raise ReleaseError("CHANGELOG.md has no entries under '## Unreleased': nothing to release")
    return f"{before}{heading}\n## {version} - {date.isoformat()}\n{rest}"


def with_version(text: str, version: str) -> str:
    """Return ``gputopo/__init__.py`` with this version. Raises ``ReleaseError``."""
    changed, count = _ASSIGNMENT.subn(f'__version__ = "{version}"', text)
    if count != 1:
        raise ReleaseError(f'{VERSION_FILE} has {count} lines __version__ = "...", not one')
    return changed


def check_checkout(root: Path, version: str) -> None:
    """Raise ``ReleaseError`` if the working tree has changes, is on another branch, or the tag exists."""
    if changes := _git(root, "status", "--porcelain"):
        raise ReleaseError(f"the checkout has changes; commit or remove them first:\n{changes}")
    if (branch := _git(root, "branch", "--show-current")) != BRANCH:
        raise ReleaseError(f"the checkout is on {branch or 'no branch'!r}: releases are made from {BRANCH!r}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists: choose a higher version")


def prepare_release(root: Path, version: str, date: dt.date, *, only_check: bool = False) -> None:
    """Check everything, then write, commit and tag. Nothing is written if a check fails. Raises ``ReleaseError``."""
    found = re.search(r'__version__ = "([^"]*)"', (root / VERSION_FILE).read_text(encoding="utf-8"))
    current = found[1] if found else "0.0.0"
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    parsed_version(version)
    check_version(version, current, changelog)
    new_changelog = released_changelog(changelog, version, date)
    new_version = with_version((root / VERSION_FILE).read_text(encoding="utf-8"), version)
    check_checkout(root, version)
    if only_check:
        return
    (root / CHANGELOG).write_text(new_changelog, encoding="utf-8")
    (root / VERSION_FILE).write_text(new_version, encoding="utf-8")
    for page in PAGES:
        text = (root / page).read_text(encoding="utf-8")
        (root / page).write_text(re.sub(rf"\b{re.escape(current)}\b", version, text), encoding="utf-8")
    # Another process: this one has imported the version before.
    subprocess.run([sys.executable, "-m", "daemonset.copies"], check=True, cwd=root, stdout=subprocess.DEVNULL)
    _git(root, "commit", "--quiet", "--all", "--message", f"release {version}")
    _git(root, "tag", "--annotate", f"v{version}", "--message", f"gputopo {version}")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    """Run the program; 1 if a release cannot be made, 2 if the arguments are wrong."""
    versions = [each for each in arguments if not each.startswith("--")]
    if len(versions) != 1 or {*arguments} - {*versions, "--check"}:
        print("usage: make release VERSION=MAJOR.MINOR.PATCH", file=sys.stderr)
        return 2
    try:
        prepare_release(ROOT, versions[0], dt.datetime.now(dt.UTC).date(), only_check="--check" in arguments)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{gputopo.__version__} -> {versions[0]}: committed and tagged v{versions[0]}")
    print(f"next: git push origin {BRANCH} v{versions[0]}    (CI builds, signs and publishes the tag)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
