"""Pages of recorded clusters in a real Chromium: every state of a GPU, long names, wide and narrow, light and dark.

It needs a Chromium (`make browser`, or Debian: `apt install chromium`); without one these tests are skipped.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ViewportSize

from scheduler_core.ui.detail_pages import node_page
from scheduler_core.ui.main import static_page
from scheduler_core.ui.model import GpuState
from scheduler_core.ui.rows_html import Viewer
from scheduler_core.ui.server import style_sheet
from tests.api_objects import Object, gpu_node
from tests.scheduler_core.ui.cluster_documents import (
    RACK,
    allocation,
    capacity_hold,
    gpu_machine,
    gpu_pod,
    node_gpus,
    waiting_gang,
)
from tests.scheduler_core.ui.pages import service_of

pytestmark = pytest.mark.e2e
LONG = "n" * 253
WIDE: ViewportSize = {"width": 1240, "height": 800}
NARROW: ViewportSize = {"width": 390, "height": 844}


def machine(
    name: str, shape: str, held: dict[str, int], at: float, bound: int = 0, replica: int | None = None, **spec: object
) -> list[Object]:
    """A node whose GPUs are held by one pod of each namespace, and by a pod that is not reported yet."""
    node, topology = gpu_machine(name, shape, {RACK: "r" * 63})
    node["spec"] = spec
    if replica is not None:
        node["status"]["allocatable"]["nvidia.com/gpu.shared"] = "8"
    free = [gpu.uuid or "" for gpu in topology.usable]
    pods, allocations = [], []
    for namespace, gpus in held.items():
        pods.append(gpu_pod(namespace, f"{name}-{namespace}"[:253], gpus, name, at))
        pods[-1]["metadata"]["uid"] = f"{namespace}-{name[:9]}"
        for gpu in free[:gpus]:
            allocations.append({**allocation(gpu, namespace, pods[-1]["metadata"]["name"]), "replica": replica})
            allocations[-1]["pod"]["uid"] = pods[-1]["metadata"]["uid"]
        free = free[gpus:]
    pods += [gpu_pod("new", f"{name}-new"[:253], bound, name, at)] if bound else []
    return [node, *pods, node_gpus(name, node, allocations, at)]


def every_state() -> list[Object]:
    """A cluster with GPUs in every state, and pods of 40 namespaces."""
    at = time.time()
    many = {f"team-{number}": 1 for number in range(40)}
    teams = [dict(list(many.items())[start : start + 8]) for start in range(0, 40, 8)]
    items = [
        each for number, team in enumerate(teams) for each in machine(f"full-{number}", "8h100-2n-nvswitch18", team, at)
    ]
    items += machine("cordoned", "8h100-2n-nvswitch18", {"a": 2}, at, unschedulable=True)
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    items += machine("tainted", "8h100-2n-nvswitch18", {}, at, taints=[taint])
    items += machine("lost", "fake-8a100-lost-gpu", {"a": 2}, at)
    items += machine("pending", "8h100-2n-nvswitch18", {"a": 2}, at, bound=2)
    items += machine("shared", "8h100-2n-nvswitch18", {"a": 1}, at, replica=0)
    items += machine("held", "8h100-2n-nvswitch18", {"a": 6}, at)
    items += machine("whole", "8h100-2n-nvswitch18", {}, at)
    items += [*capacity_hold("team", "big", "held", 1), gpu_node("no-agent", 8), gpu_pod("a", "x", 3, "no-agent", at)]
    return [*items, *waiting_gang("team", "big", 2, 8, at)]


def long_names() -> list[Object]:
    """A cluster whose names are as long as Kubernetes permits."""
    at = time.time()
    items = machine(LONG, "8h100-2n-nvswitch18", {"s" * 63: 2, "a": 1}, at)
    return [*items, *waiting_gang("s" * 63, "g" * 253, 2, 8, at)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_axe_finds_nothing_in_any_state(
    browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"], size: ViewportSize
) -> None:
    service = service_of(every_state())
    states = {cell.state for group in service.overview.groups for row in group.rows for cell in row.cells}
    assert set(GpuState) - states <= {GpuState.RESERVED}  # the kubelet chooses which GPU stays free
    (tmp_path / "page.html").write_text(static_page(service), encoding="utf-8")
    page = browser.new_page(color_scheme=scheme, viewport=size)
    page.goto((tmp_path / "page.html").as_uri())
    page.locator("summary").click()
    found = Axe().run(page)
    page.close()

    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_long_names_widen_neither_the_page_nor_its_tables(browser: Browser, tmp_path: Path, size: ViewportSize) -> None:
    (tmp_path / "page.html").write_text(static_page(service_of(long_names())), encoding="utf-8")
    page = browser.new_page(viewport=size)
    page.goto((tmp_path / "page.html").as_uri())
    nodes = page.locator("main > .wide")
    page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")  # the layout may come late
    table = nodes.evaluate("each => [each.scrollWidth, each.clientWidth]")
    page.close()

    assert table[0] <= table[1]


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_long_names_do_not_widen_the_page_of_a_node(browser: Browser, tmp_path: Path, size: ViewportSize) -> None:
    row = service_of(long_names()).row(LONG)
    assert row is not None
    viewer = Viewer(live=False, style=style_sheet())
    (tmp_path / "page.html").write_text(node_page(row, has_drawing=False, viewer=viewer), encoding="utf-8")
    page = browser.new_page(viewport=size)
    page.goto((tmp_path / "page.html").as_uri())
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    page.close()

    assert widths[0] <= widths[1]


def test_on_a_narrow_screen_no_table_scrolls_and_reasons_are_seen(browser: Browser, tmp_path: Path) -> None:
    items = [*every_state(), gpu_pod("s" * 63, "w" * 253, 16, None, time.time())]
    (tmp_path / "page.html").write_text(static_page(service_of(items)), encoding="utf-8")
    page = browser.new_page(viewport={"width": NARROW["width"], "height": 9000})  # what is not seen is not laid out
    page.goto((tmp_path / "page.html").as_uri())
    tables = page.locator(".wide").evaluate_all("all => all.map(each => [each.scrollWidth, each.clientWidth])")
    reasons = page.locator("#gangs td:last-child, #pending td:last-child")
    boxes = [each.bounding_box() for each in reasons.all()]
    words = page.locator("#pending").inner_text()
    page.close()

    assert len(tables) == 3
    assert all(inside <= outside for inside, outside in tables)
    assert len(boxes) == 2
    assert all(each is not None and each["x"] + each["width"] <= NARROW["width"] for each in boxes)
    assert "no node has 16 GPUs known to be free" in words


def test_on_a_narrow_screen_the_figures_are_in_equal_cells(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(static_page(service_of(every_state())), encoding="utf-8")
    page = browser.new_page(viewport=NARROW)
    page.goto((tmp_path / "page.html").as_uri())
    boxes = [each.bounding_box() for each in page.locator(".figures li").all()]
    page.close()

    assert len(boxes) > 3
    assert len({each and round(each["width"]) for each in boxes}) == 1
    assert len({each and round(each["x"]) for each in boxes}) == 2


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_eight_gpus_are_side_by_side_also_if_one_is_lost(browser: Browser, tmp_path: Path, size: ViewportSize) -> None:
    (tmp_path / "page.html").write_text(static_page(service_of(every_state())), encoding="utf-8")
    page = browser.new_page(viewport=size)
    page.goto((tmp_path / "page.html").as_uri())
    tops = page.locator("#node-lost .gpus b").evaluate_all("all => all.map(each => each.getBoundingClientRect().top)")
    page.close()

    assert (len(tops), len({round(top) for top in tops})) == (8, 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bar_of_a_cluster_shows_free_and_used_gpus_apart(
    browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    (tmp_path / "page.html").write_text(static_page(service_of(every_state())), encoding="utf-8")
    page = browser.new_page(viewport=WIDE, color_scheme=scheme)
    page.goto((tmp_path / "page.html").as_uri())
    ground = rgb(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    free, opacity, used = (
        page.locator(f"#summary .{name}").evaluate(f"each => getComputedStyle(each).{key}")
        for name, key in (("f", "fill"), ("f", "fillOpacity"), ("u", "fill"))
    )
    page.close()
    share = float(opacity)
    mixed = [share * one + (1 - share) * other for one, other in zip(rgb(free), ground, strict=True)]

    assert contrast(mixed, rgb(used)) > 1.5
    assert contrast(mixed, ground) > (3 if scheme == "dark" else 1.3)


def rgb(text: str) -> list[float]:
    """The parts of a computed colour."""
    return [float(each) for each in re.findall(r"[0-9.]+", text)[:3]]


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast of two colours, as WCAG defines it."""
    light = [
        sum(
            weight * (part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4)
            for weight, part in zip((0.2126, 0.7152, 0.0722), each, strict=True)
        )
        for each in (one, other)
    ]
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_a_page_is_printed_on_white_with_its_cells(browser: Browser, tmp_path: Path) -> None:
    """Browsers print no background unless the page asks for it, and letters in cells would be white on white."""
    (tmp_path / "page.html").write_text(static_page(service_of(every_state())), encoding="utf-8")
    page = browser.new_page(color_scheme="dark")
    page.goto((tmp_path / "page.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    adjusted = page.locator(".gpus b").first.evaluate("each => getComputedStyle(each).printColorAdjust")
    page.close()

    assert (background, adjusted) == ("rgb(255, 255, 255)", "exact")
