"""XML from strangers, as a small tree: no document type of its own, no entities, no bottomless nesting.

``xml.etree`` expands internal entities, which is how a few lines become gigabytes. This reads the same expat without
them: a DOCTYPE that only names a file passes (nvidia-smi and hwloc write one; nothing is fetched), a document that
declares or uses an entity is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.sources.errors import ParseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.parsers.expat import XMLParserType

MAX_DEPTH = 64  # hwloc nests about 20 deep, NCCL 6; keeps recursion over the tree far from Python's limit


class Element(msgspec.Struct):
    """An element: its children in order, and its own text without the white space around it."""

    tag: str
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    children: list[Element] = msgspec.field(default_factory=list)
    text: str = ""
    line: int = 0  # where it starts, from 1

    def all(self, tag: str) -> Iterator[Element]:
        """The children of that tag."""
        return (child for child in self.children if child.tag == tag)

    def find(self, path: str) -> Element | None:
        """The first descendant along a path of tags, "pci/pci_bus_id"; None where there is none."""
        element: Element | None = self
        for tag in path.split("/"):
            element = next(element.all(tag), None) if element is not None else None
        return element


def parse_xml(text: str, start: int = 0) -> Element:
    """The root element of the XML document that begins at ``start``, or after white space there.

    Raises ``ParseError`` with the line of ``text`` where it stops being one.
    """
    from xml.parsers import expat  # noqa: PLC0415  # a shared library: only who reads XML pays for it

    document = text[start:].lstrip()  # expat wants the XML declaration first
    skipped = text.count("\n", 0, len(text) - len(document))
    builder = _Builder(skipped)
    # The text is decoded already: what the declaration says of its encoding is history.
    parser = expat.ParserCreate("utf-8")
    builder.attach(parser)
    try:
        parser.Parse(document.encode("utf-8", "replace"), True)  # pyexpat takes it by position only
    except expat.ExpatError as error:
        why = expat.ErrorString(error.code)
        raise ParseError(f"line {error.lineno + skipped}: this is no whole XML document: {why}") from error
    return builder.root


class _Builder:
    """Collects the tree while expat calls back."""

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
            raise self._refused(f"<{tag[:40]}> lies more than {MAX_DEPTH} elements deep")
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
        raise self._refused(f"the document declares an entity, {name[:40]!r}")

    def _skipped(self, name: str, _parameter: bool) -> None:
        raise self._refused(f"the document uses an entity, {name[:40]!r}")

    @property
    def _line(self) -> int:
        return self._parser.CurrentLineNumber + self._skipped_lines

    def _refused(self, why: str) -> ParseError:
        return ParseError(f"line {self._line}: {why}")
