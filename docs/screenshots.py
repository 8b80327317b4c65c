"""Take the screenshots of `gputopo ui` and of a terminal in docs/images: make screenshots. It needs a Chromium.

Also write docs/examples/cluster.json.gz, the cluster of the picture in the README.

The clusters are synthetic and always the same; nothing here is recorded from a real one.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from click.testing import CliRunner
from playwright.sync_api import ViewportSize, sync_playwright

from gputopo.cli.main import main as gputopo
from tests.e2e.browser import MISSING, find_chromium
from tests.scheduler_core.ui.cluster_documents import cluster_text

IMAGES = Path(__file__).parent / "images"
PICTURES = {20: "ui", 1: "ui-1", 300: "ui-300", 5_000: "ui-5000"}  # name by number of nodes
EXAMPLE = Path(__file__).parent / "examples/cluster.json.gz"
RECORDED = 1_790_000_000.0  # seconds since 1970
SIZE: ViewportSize = {"width": 1240, "height": 800}
ADDRESS = re.compile(r"http://\S+")
COMMAND = ["show", "--from", "dgx-1"]
TERMINAL = (
    "<!doctype html><meta charset=utf-8><style>body{margin:0;background:#16191d;color:#e6e6e6;display:inline-block}"
    "pre{margin:16px 20px;font:14px/1.3 'DejaVu Sans Mono',monospace}</style><pre>"
)


def main() -> None:
    """Write the pictures of pages, light and dark, terminal.png, and the example cluster."""
    EXAMPLE.write_bytes(gzip.compress(cluster_text(20, at=RECORDED), mtime=0))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = find_chromium(playwright.chromium.executable_path)
        if chromium is None:
            sys.exit(MISSING)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for nodes, name in PICTURES.items():
            cluster = Path(folder) / "cluster.json"
            cluster.write_bytes(cluster_text(nodes, at=RECORDED))
            with pages(cluster) as url:
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport=SIZE, color_scheme=scheme)
                    page.goto(url)
                    page.screenshot(path=IMAGES / f"{name}-{scheme}.png")
        printed = CliRunner(env={"COLUMNS": "110"}).invoke(gputopo, COMMAND).output
        shown = f"$ gputopo {' '.join(COMMAND)}\n{printed}"
        file = Path(folder) / "page.html"
        file.write_text(f"{TERMINAL}{escape(shown)}</pre>", encoding="utf-8")
        page = browser.new_page(viewport=SIZE)
        page.goto(file.as_uri())
        page.locator("body").screenshot(path=IMAGES / "terminal.png")
        browser.close()


@contextmanager
def pages(cluster: Path) -> Iterator[str]:
    """Serve the pages of a file, and return their address."""
    command = [sys.executable, "-m", "gputopo", "ui", "--from", cluster.name, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603  our own program
        command, cwd=cluster.parent, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            found = ADDRESS.search(server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
