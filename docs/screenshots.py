"""Take the screenshots of `gputopo ui` in docs/images, light and dark: make screenshots. It needs a Chromium.

The cluster is synthetic and always the same; nothing here is recorded from a real one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from scheduler_core.ui.main import file_service, static_page
from tests.scheduler_core.ui.cluster_documents import cluster_text

IMAGES = Path(__file__).parent / "images"
NODES = 20
RECORDED = 1_790_000_000.0  # seconds since 1970
SIZE: ViewportSize = {"width": 1240, "height": 800}


def main() -> None:
    """Write ui-light.png and ui-dark.png."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on PATH; with Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "cluster.html"
        file.write_text(static_page(file_service(cluster_text(NODES, at=RECORDED), "cluster.json")), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(file.as_uri())
            page.screenshot(path=IMAGES / f"ui-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
