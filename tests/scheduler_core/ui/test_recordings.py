"""Pages of a cluster that was recorded in a file: they show the time of the file, whenever they are read."""

from __future__ import annotations

import json
import time

from scheduler_core.ui.main import file_service, static_page
from scheduler_core.ui.model import GpuState
from scheduler_core.ui.server import ui_app
from scheduler_core.ui.service import UiService
from tests.api_objects import gpu_node
from tests.scheduler_core.ui.cluster_documents import cluster_text, waiting_gang
from tests.scheduler_core.ui.pages import Page
from tests.scheduler_core.ui.requests import ask

DAY = 86_400.0
RECORDED = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def pages(service: UiService, *paths: str) -> list[str]:
    """The pages at these paths, as a browser on this machine gets them."""
    app = ui_app(service)
    return [ask(app, path, "", ("host", "localhost")).text for path in paths]


def test_a_file_of_yesterday_shows_what_was_free_yesterday() -> None:
    old = file_service(cluster_text(20, at=time.time() - DAY), "c.json").overview
    new = file_service(cluster_text(20), "c.json").overview

    assert old.totals == new.totals
    assert old.totals.count(GpuState.UNKNOWN) == 0
    assert [gang.waiting_seconds for gang in old.gangs] == [
        870.0
    ]  # its pods are 900 s old, the newest report is 30 s old


def test_pages_of_a_file_say_when_it_was_recorded_and_are_not_live() -> None:
    service = file_service(cluster_text(20, at=RECORDED + 30), "c.json")

    found = pages(service, "/", "/node?name=gpu-0002", "/gang?namespace=llm&name=next-model", "/where")
    for markup in (*found, static_page(service)):
        page = Page(markup)
        assert "recorded 2023-11-14 22:13 UTC" in page.words
        assert "live" not in page.words
        assert not {"script", "noscript"} & {tag for tag, _ in page.tags}
    assert "The last hour" not in Page(found[0]).words


def test_time_does_not_pass_in_a_file() -> None:
    service = file_service(cluster_text(20, at=RECORDED), "c.json")
    service.tick()
    before = service.version
    service.tick()

    assert service.version == before
    assert not service.history.samples


def test_without_reports_the_time_of_a_file_is_unknown() -> None:
    items = [gpu_node("n", 8), *waiting_gang("team", "g", 2, 8, RECORDED)]
    service = file_service(json.dumps({"kind": "List", "items": items}).encode(), "-")

    assert "recorded at an unknown time" in Page(static_page(service)).words
    assert "From standard input" in Page(static_page(service)).words


def test_a_file_without_pods_says_that_its_gpus_are_only_shown_as_free() -> None:
    warning = "the file has no Pods: GPUs are shown as free"
    without, beside = (
        file_service(json.dumps({"kind": "List", "items": items}).encode(), "c.json")
        for items in ([gpu_node("n", 8)], [gpu_node("n", 8), *waiting_gang("team", "g", 2, 8, RECORDED)])
    )

    assert warning in Page(static_page(without)).words
    assert warning not in Page(static_page(beside)).words


def test_a_watched_cluster_is_live() -> None:
    found = pages(UiService(), "/")[0]

    assert {"script", "noscript"} <= {tag for tag, _ in Page(found).tags}
    assert "refreshed every 10 s" in Page(found).words
    assert "recorded" not in Page(found).words
