"""HTML and SVG elements. Only this module makes ``Html`` out of text, and it escapes all of it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NewType
from urllib.parse import urlencode

from gputopo.render.wording import escape_invisible, shorten_names

Html = NewType("Html", str)  # markup; a plain str is text that was not escaped yet
NOTHING = Html("")
_SHOWN = frozenset({"title", "aria_label", "alt"})  # attributes with text for people
_VOID = frozenset({"link", "meta", "input", "img", "br"})


def text(words: str) -> Html:
    """Return text as markup. Control and direction characters are made visible, names of a file shortened."""
    return Html(escape(escape_invisible(shorten_names(words)), quote=False))


def element(name: str, /, *inside: Html, **attributes: str | float | None) -> Html:
    """Return an element, without None attributes. ``class_`` is class, ``data_x`` is data-x, ``viewBox`` stays."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(escape_invisible(_value(key, value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{pairs}>" if name in _VOID else f"<{name}{pairs}>{''.join(inside)}</{name}>")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Return the parts one after the other, with text between them."""
    return Html(text(between).join(parts))


def link(words: str, page: str, /, **query: str | int | None) -> Html:
    """Return a link to a page of this server. Addresses are relative, so a proxy may serve the pages at any path."""
    return element("a", text(words), href=address(page, **query))


def address(page: str, /, **query: str | int | None) -> str:
    """Return the relative address of a page."""
    pairs = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{page or './'}{'?' if pairs else ''}{urlencode(pairs)}"


def table_head(titles: Iterable[str]) -> Html:
    """Return the head of a table."""
    return element("thead", element("tr", *(element("th", text(title), scope="col") for title in titles)))


def table_row(head: Html, *cells: Html, id: str | None = None) -> Html:  # noqa: A002  the attribute of HTML
    """Return a row of a table; ``head`` is its title."""
    return element("tr", element("th", head, scope="row"), *(element("td", cell) for cell in cells), id=id)


def text_list(lines: Iterable[str], class_: str | None = None) -> Html:
    """Return a list of texts. ``class_``: of each of them."""
    return element("ul", *(element("li", text(line), class_=class_) for line in lines))


def _value(key: str, value: str | float) -> str:
    if isinstance(value, str):
        return shorten_names(value) if key in _SHOWN else value
    return f"{value:.1f}".removesuffix(".0")
