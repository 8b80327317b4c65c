"""`gputopo ui` in a real Chromium, on a real control plane with simulated nodes: what a person sees.

It needs a Chromium (`make browser`, or Debian: `apt install chromium`); without one these tests are skipped.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from gputopo.kube.rbac import UI
from tests.api_objects import pod
from tests.e2e.agent.access import grant, user
from tests.e2e.cluster import Cluster
from tests.e2e.process import Server
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.gated_pods import gated
from tests.e2e.scheduler.running import prepare, started
from tests.ports import free_port
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4, nvswitch_8

pytestmark = pytest.mark.e2e
ACCOUNT = "viewer"
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}
_SOON = 20_000  # milliseconds


@pytest.fixture
def url(cluster: Cluster, fleet: Fleet, agents_of: StartAgents, tmp_path: Path) -> Iterator[str]:
    """The pages of a cluster of two nodes with agents, served with a viewer's rights."""
    prepare(cluster)
    fleet.add(NodeSpec(name="pairs", shape=islands_4_4()), NodeSpec(name="switch", shape=nvswitch_8()))
    agents_of()
    grant(cluster, ACCOUNT, UI)
    config = cluster.kubeconfig(tmp_path / "viewer.kubeconfig", cluster.token(ACCOUNT))
    port = free_port()
    command = [sys.executable, "-m", "gputopo", "ui", "--kubeconfig", str(config), "--listen", f"127.0.0.1:{port}"]
    server = Server("ui", command, tmp_path / "ui.log", _CLEAN)
    address = f"http://localhost:{port}"
    try:
        server.wait_until(lambda: urllib.request.urlopen(f"{address}/readyz", timeout=5).status == 200)
        yield address
    finally:
        server.stop()
    assert [write for write in cluster.writes() if write.user == user(cluster, ACCOUNT)] == []


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """The page of the cluster; it must cause no error in the browser."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    page.goto(url)
    yield page
    context.close()
    assert errors == []


def _is_error(message: ConsoleMessage) -> bool:
    """Return whether the page caused an error. A stream that a test cuts does not count."""
    return message.type == "error" and "net::ERR_FAILED" not in message.text


def test_a_person_sees_what_happens_without_loading_the_page_again(
    cluster: Cluster, fleet: Fleet, url: str, page: Page
) -> None:
    expect(page.locator("#state")).to_have_text("live", timeout=_SOON)
    expect(page.locator("#summary")).to_contain_text("16 of 16 GPUs free", timeout=_SOON)
    expect(page.locator("#node-pairs .isl")).to_have_count(2)
    expect(page.locator("#node-switch .isl")).to_have_count(1)
    page.evaluate("window.notReloaded = true")

    cluster.create_pod(pod("train", 4, nodeName="switch"))
    started(cluster, "train")
    row = page.locator("#node-switch")
    expect(row).to_contain_text("4 of 8 free", timeout=_SOON)
    expect(row.locator("b.u")).to_have_count(4, timeout=_SOON)
    expect(row).to_contain_text(f"{cluster.namespace}/train (4)")
    expect(page.locator("#history")).to_contain_text("train bound to switch", timeout=_SOON)

    fleet.kill_gpu("pairs", 2)
    expect(page.locator("#node-pairs b.x.bad")).to_have_count(1, timeout=2 * _SOON)
    expect(page.locator("#node-pairs")).to_contain_text("gpu2")

    for rank in range(2):
        cluster.create_pod(gated("llm", rank, 3))
    gangs = page.locator("#gangs")
    expect(gangs).to_contain_text(f"{cluster.namespace}/llm", timeout=_SOON)
    expect(gangs).to_contain_text("2 of 3")
    assert page.evaluate("window.notReloaded")

    page.get_by_role("link", name=f"{cluster.namespace}/llm").first.click()
    expect(page.locator("main")).to_contain_text("gang")
    page.goto(f"{url}/node?name=switch")
    expect(page.locator("img.drawing")).to_be_visible()
    assert page.locator("img.drawing").evaluate("image => image.naturalWidth") > 100


def test_the_page_works_without_javascript(cluster: Cluster, browser: Browser, url: str) -> None:
    cluster.create_pod(pod("train", 2, nodeName="pairs"))
    started(cluster, "train")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url)
    page.get_by_label("Free in one island, at least").fill("8")
    page.get_by_role("button", name="Show").click()

    assert page.url.endswith("free=8")
    expect(page.locator("#node-switch")).to_be_visible()
    expect(page.locator("#node-pairs")).to_have_count(0)
    page.get_by_role("link", name="Where would it fit?").click()
    page.get_by_role("button", name="Where?").click()
    expect(page.locator(".answer")).to_contain_text("2 x 8 GPUs do not fit now")
    context.close()


def test_a_stream_that_was_cut_is_opened_again(url: str, page: Page) -> None:
    page.route("**/events", lambda route: route.abort())
    page.goto(url)
    expect(page.locator("#state")).to_have_text("polling", timeout=_SOON)
    page.unroute("**/events")

    expect(page.locator("#state")).to_have_text("live", timeout=3 * _SOON)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(cluster: Cluster, browser: Browser, url: str, scheme: Literal["light", "dark"]) -> None:
    cluster.create_pod(pod("train", 2, nodeName="pairs"))
    cluster.create_pod(gated("llm", 0, 2))
    started(cluster, "train")
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    for path in (
        "/",
        "/?q=train",
        "/node?name=pairs",
        "/where?pods=1&gpus=4",
        f"/pod?namespace={cluster.namespace}&name=train",
        f"/gang?namespace={cluster.namespace}&name=llm",
    ):
        page.goto(f"{url}{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, (path, found.generate_report())
    context.close()


def test_a_narrow_screen_shows_all_of_a_row(cluster: Cluster, browser: Browser, url: str) -> None:
    cluster.create_pod(pod("train", 2, nodeName="pairs"))
    started(cluster, "train")
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(url)
    table = page.locator("main > .wide")
    expect(table).to_be_visible()

    assert table.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    expect(page.get_by_role("row", name="pairs")).to_contain_text(f"{cluster.namespace}/train (2)")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    context.close()


def test_the_keyboard_reaches_every_row(url: str, page: Page) -> None:
    expect(page.locator("#node-switch")).to_be_visible(timeout=_SOON)
    names = []
    for _ in range(20):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent"))

    assert {"Cluster", "Where would it fit?", "pairs", "switch"} <= set(names)
    assert url in page.url


def test_an_update_of_a_filtered_page_keeps_the_focus_and_what_is_typed(cluster: Cluster, url: str, page: Page) -> None:
    expect(page.locator("#state")).to_have_text("live", timeout=_SOON)
    page.goto(f"{url}/?free=1")
    expect(page.locator("#state")).to_have_text("live", timeout=_SOON)
    row = page.locator("#node-switch")
    row.get_by_role("link", name="switch").focus()

    cluster.create_pod(pod("train", 2, nodeName="switch"))
    started(cluster, "train")
    expect(row).to_contain_text("train", timeout=_SOON)
    assert page.evaluate("document.activeElement.textContent") == "switch"

    page.get_by_label("Find").press_sequentially("pai")
    cluster.create_pod(pod("more", 2, nodeName="switch"))
    started(cluster, "more")
    expect(row).to_contain_text("more", timeout=_SOON)
    assert page.evaluate("document.activeElement.value") == "pai"
