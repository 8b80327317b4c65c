"""Parses untrusted XML to a small tree: no internal DTD, no entities, limited depth.

``xml.etree`` expands internal entities, so that a few lines can become gigabytes. This module uses the same expat
without them: a DOCTYPE that only names a file is accepted (nvidia-smi and hwloc write one; nothing is fetched), a
document that declares or uses an entity is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.sources.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.parsers.expat import XMLParserType

MAX_DEPTH = 64  # hwloc nests about 20 deep, NCCL 6; recursion over the tree stays far below Python's limit


class Element(msgspec.Struct):
    """An element: its children in order, and its own text without the white space around it."""

    tag: str
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    children: list[Element] = msgspec.field(default_factory=list)
    text: str = ""
    line: int = 0  # of its start, from 1

    def all(self, tag: str) -> Iterator[Element]:
        """Return the children with that tag."""
        return (child for child in self.children if child.tag == tag)

    def find(self, path: str) -> Element | None:
        """Return the first descendant along a path of tags, "pci/pci_bus_id"; None where there is none."""
        element: Element | None = self
        for tag in path.split("/"):
            element = next(element.all(tag), None) if element is not None else None
        return element


def parse_xml(text: str, start: int = 0) -> Element:
    """Return the root element of the XML document that begins at ``start``, or after white space there.

    Raises ``ParseError`` with the line of ``text`` where parsing failed.
    """
    from xml.parsers import expat  # noqa: PLC0415  a shared library, only for XML

    document = text[start:].lstrip()  # expat wants the XML declaration first
    skipped = text.count("\n", 0, len(text) - len(document))
    builder = _TreeBuilder(skipped)
    # The text is decoded already, so the encoding of the XML declaration is ignored.
    parser = expat.ParserCreate("utf-8")
    builder.attach(parser)
    try:
        parser.Parse(document.encode("utf-8", "replace"), True)  # a positional-only parameter
    except expat.ExpatError as error:
        why = expat.ErrorString(error.code)
        raise ParseError(f"line {error.lineno + skipped}: not a complete XML document: {why}") from error
    return builder.root


class _TreeBuilder:
    """Builds the tree in expat's callbacks."""

    def __init__(self, skipped: int) -> None:
        self.root: Element
        self._skipped_lines = skipped
        self._open: list[Element] = []
        self._texts: list[list[str]] = []

    def attach(self, parser: XMLParserType) -> None:
        self._parser = parser
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.EntityDeclHandler = self._entity
        parser.SkippedEntityHandler = self._skipped

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._open) == MAX_DEPTH:
            raise self._line_error(f"<{tag[:40]}> is nested more than {MAX_DEPTH} elements deep")
        element = Element(tag, attributes, line=self._line)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def _end(self, _tag: str) -> None:
        self._open.pop().text = "".join(self._texts.pop()).strip()

    def _data(self, data: str) -> None:
        self._texts[-1].append(data)

    def _entity(self, name: str, *_rest: object) -> None:
        raise self._line_error(f"the document declares an entity, {name[:40]!r}")

    def _skipped(self, name: str, _parameter: bool) -> None:
        raise self._line_error(f"the document uses an entity, {name[:40]!r}")

    @property
    def _line(self) -> int:
        return self._parser.CurrentLineNumber + self._skipped_lines

    def _line_error(self, why: str) -> ParseError:
        return ParseError(f"line {self._line}: {why}")
