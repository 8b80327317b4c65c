"""Build the documentation as a static site: stage the pages, run mkdocs in strict mode, check every link of the result.

python docs/build_site.py FOLDER    needs the packages of locks/site.lock; ``make site`` brings them

The menu is docs/README.md: its groups and their order. Pages of the repository's root are staged beside the
others. Links to files that are no pages become plain text, because the site has no address of the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from gputopo.cli.progress import ProgressLine

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# Pages outside of docs/ -> their names on the site. The first page of the site is README.md of the repository.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "fixtures/README.md": "example-machines.md",
}
INDEX = "docs/README.md"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_IMAGE_PATH = re.compile(r'((?:src|srcset)=")docs/')
_CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]*\]\([^`\n]*`)", re.MULTILINE | re.DOTALL)  # with links that are none

# use_directory_urls: raw HTML (<picture>) keeps its relative paths. slugify: anchors as GitHub forms them.
_CONFIG = """\
site_name: gputopo
site_description: Topology-aware GPU scheduling for Kubernetes
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.sections, navigation.top, search.highlight, content.code.copy]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: teal
      toggle: {icon: material/weather-night, name: Dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: teal
      toggle: {icon: material/weather-sunny, name: Light}
markdown_extensions:
  - tables
  - md_in_html
  - pymdownx.superfences
  - pymdownx.highlight
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
plugins: [search]
validation:
  nav: {omitted_files: warn, not_found: warn, absolute_links: warn}
  links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}
"""


def stage(folder: Path) -> None:
    """Write the pages, images and schemas of the site, and mkdocs.yml, into a folder."""
    pages = folder / "pages"
    pages.mkdir(parents=True)
    for source in site_pages():
        text = staged_text(source, (ROOT / source).read_text(encoding="utf-8"))
        (pages / site_name(source)).write_text(text, encoding="utf-8")
    for name in ("images", "schema"):
        shutil.copytree(DOCS / name, pages / name)
    (folder / "mkdocs.yml").write_text(configuration(folder), encoding="utf-8")


def configuration(folder: Path) -> str:
    """Return mkdocs.yml for pages that are staged in the folder."""
    return (
        _CONFIG
        + f"docs_dir: {folder / 'pages'}\n"
        + yaml.safe_dump({"nav": menu((ROOT / INDEX).read_text(encoding="utf-8"))}, sort_keys=False)
    )


def site_pages() -> list[str]:
    """Return the pages of the site, relative to the root of the repository; the index becomes the menu."""
    inside = (path.relative_to(ROOT).as_posix() for path in sorted(DOCS.glob("*.md")))
    return [*OUTSIDE, *(name for name in inside if name != INDEX)]


def site_name(source: str) -> str:
    """Return the file name of a page on the site."""
    return OUTSIDE.get(source) or Path(source).name


def menu(index: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return mkdocs' ``nav``: the groups of docs/README.md with their pages, under the same titles."""
    groups = []
    for title, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL):
        entries = re.findall(r"^- \[([^\]]+)\]\(([^)#\s]+\.md)\)", body, re.MULTILINE)
        groups.append({title: [{name: site_name(_target(INDEX, path))} for name, path in entries]})
    return groups


def staged_text(source: str, text: str) -> str:
    """Return the text of a page with its links changed to those of the site. Code is left as it is."""
    parts = _CODE.split(_IMAGE_PATH.sub(r"\1", text))
    return "".join(
        part if index % 2 else _LINK.sub(lambda found: _link(source, found), part) for index, part in enumerate(parts)
    )


def _link(source: str, found: re.Match[str]) -> str:
    image, label, address = found.groups()
    path, _, anchor = address.partition("#")
    if not path or "://" in path:
        return found[0]
    target = _target(source, path)
    if target == INDEX:
        target = "README.md"
    anchor = f"#{anchor}" if anchor else ""
    if target in site_pages():
        return f"{image}[{label}]({site_name(target)}{anchor})"
    if target.startswith(("docs/images/", "docs/schema/")):
        return f"{image}[{label}]({target.removeprefix('docs/')})"
    return label


def _target(source: str, path: str) -> str:
    return (ROOT / source).parent.joinpath(path).resolve().relative_to(ROOT.resolve()).as_posix()


class _SitePage(HTMLParser):
    """The links, images and anchors of one HTML file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses of links, images, styles and scripts, and all ids."""
        for name, value in attrs:
            if name in {"href", "src", "srcset"} and value and tag != "base":
                self.addresses.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield "PAGE: ADDRESS" for each link of a built site to a file or an anchor that does not exist."""
    pages = {path: _SitePage(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else None
            if not target.exists() or (
                parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            ):
                yield f"{path.relative_to(site)}: {address}"


def external_addresses(site: Path) -> set[str]:
    """Return the hosts from which a browser would load something; links that a reader follows do not count."""
    found = set()
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'<(?:script|img|source|iframe)[^>]*(?:src|srcset)="(?:https?:)?//([^/"]+)', text))
        found |= set(
            re.findall(r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(?:https?:)?//([^/"]+)', text)
        )
    return found


def main(output: Path) -> int:
    """Build the site into a folder; 1 if a link is broken or a page loads something from elsewhere."""
    with tempfile.TemporaryDirectory() as temporary, ProgressLine("building the pages") as shown:
        shown.draw()
        stage(Path(temporary) / "site")
        built = output.resolve()
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        command += ["--config-file", str(Path(temporary) / "site/mkdocs.yml"), "--site-dir", str(built)]
        if (status := subprocess.run(command, check=False).returncode) != 0:  # noqa: S603
            return status
    with ProgressLine("checking links") as shown:
        shown.draw()
        faults = [f"broken link: {each}" for each in broken_links(built)]
    faults += [f"loaded from elsewhere: {each}" for each in sorted(external_addresses(built))]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{output}: {len(list(built.glob('*.html')))} pages")
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build_site.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
