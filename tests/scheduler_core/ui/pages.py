"""Services of small clusters, and their pages as a reader of HTML sees them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from html.parser import HTMLParser

from scheduler_core.ui.main import file_service, static_page
from scheduler_core.ui.model import NodeRow
from scheduler_core.ui.service import UiService
from tests.api_objects import Object

VOID = frozenset({"link", "meta", "input", "img", "br"})


def service_of(items: Iterable[Object]) -> UiService:
    """A service that shows these objects."""
    service = file_service(json.dumps({"kind": "List", "items": list(items)}).encode(), "test.json")
    service.tick()
    return service


def row_of(items: Iterable[Object], name: str) -> NodeRow:
    """The row of a node."""
    found = service_of(items).row(name)
    assert found is not None
    return found


def now() -> float:
    """The present."""
    return time.time()


class Page(HTMLParser):
    """The tags, attributes and texts of a page. Raises ``AssertionError`` where an end tag does not match."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def words(self) -> str:
        """All text in one line."""
        return " ".join(" ".join(self.texts).split())

    def ids(self) -> list[str]:
        """The ids of all elements."""
        return [found for _, attributes in self.tags if (found := attributes.get("id"))]


def page_of(items: Iterable[Object]) -> Page:
    """The page of a cluster, as one file."""
    return Page(static_page(service_of(items)))
