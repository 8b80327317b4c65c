"""The documentation holds together: links lead somewhere, the index lists every page, the glossary is in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import DOCS, PAGES, REPOSITORY


def _prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> list[str]:
    """Return the anchors of a page's headings, formed as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def _broken_links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(_broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_no_two_headings_of_a_page_have_the_same_anchor(page: Path) -> None:
    anchors = _anchors(page)

    assert sorted(anchors) == sorted(set(anchors))


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[ok](#a-heading) [no](#another) [gone](gone.md) [out](https://example.com/#x)\n")

    assert list(_broken_links(page)) == ["#another", "gone.md"]


def test_the_index_lists_every_page_once_in_five_groups() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\(([^)#]+\.md)\)", text)

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Get started",
        "Concepts",
        "Tasks",
        "Reference",
        "Explanation",
    ]
    assert sorted((DOCS / each).resolve() for each in listed) == sorted(set(PAGES) - {DOCS / "README.md"})


def test_the_glossary_is_alphabetical_and_one_sentence_each() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \| \[.+\]\(.+\) \|$", text, re.MULTILINE)
    terms = [term for term, _ in rows]

    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)
    assert [term for term, meaning in rows if not meaning.endswith(".") or ". " in meaning] == []
