"""Mutations of a text, as copying, editing, terminals and broken transfers make them. Deterministic and finite."""

from __future__ import annotations

import re
from collections.abc import Iterator

Mutant = tuple[str, bytes]  # its name, and the damaged input

_CLIPPED = range(3, 240, 2)  # columns


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a text."""
    for name, changed in (*_lines(text), *_words(text), *_digits(text), *_columns(text), *_cuts(text)):
        if changed != text:
            yield name, changed.encode()
    yield from _encodings(text)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    lines = text.split("\n")
    for at, line in enumerate(lines):
        yield f"without line {at + 1}", "\n".join(lines[:at] + lines[at + 1 :])
        yield f"line {at + 1} twice", "\n".join([*lines[: at + 1], line, *lines[at + 1 :]])
        if at:
            yield (
                f"lines {at} and {at + 1} swapped",
                "\n".join([*lines[: at - 1], line, lines[at - 1], *lines[at + 1 :]]),
            )
            yield (
                f"lines {at} and {at + 1} joined",
                "\n".join([*lines[: at - 1], lines[at - 1] + line, *lines[at + 1 :]]),
            )
            if not _joins_elements(lines[at - 1], line):
                yield f"lines {at} and {at + 1} missing", "\n".join(lines[: at - 1] + lines[at + 1 :])


def _joins_elements(first: str, second: str) -> bool:
    """Return whether lines are ``</cpu>`` and ``<cpu ...>``: without both, a valid file of another machine is left."""
    closing, opening = re.match(r"\s*</(\w+)>", first), re.match(r"\s*<(\w+)", second)
    return closing is not None and opening is not None and closing[1] == opening[1]


def _words(text: str) -> Iterator[tuple[str, str]]:
    found = list(re.finditer(r"\S+", text))
    for one, other in zip(found, [*found[1:], None], strict=False):
        start, end = one.span()
        yield f"without the word at {start}", text[:start] + text[end:]
        yield f"the word at {start} twice", f"{text[:end]} {one[0]}{text[end:]}"
        if other is not None:
            between = text[end : other.start()]
            yield f"words at {start} and {other.start()} glued", text[:end] + text[other.start() :]
            yield (
                f"words at {start} and {other.start()} swapped",
                (text[:start] + other[0] + between + one[0] + text[other.end() :]),
            )


def _digits(text: str) -> Iterator[tuple[str, str]]:
    for digit in re.finditer(r"\d", text):
        yield f"without the digit at {digit.start()}", text[: digit.start()] + text[digit.end() :]
    yield "without the last digit of every NV", re.sub(r"\b(NV\d)\d\b", r"\1", text)
    yield "without the first digit of every NV", re.sub(r"\bNV\d(\d)\b", r"NV\1", text)


def _columns(text: str) -> Iterator[tuple[str, str]]:
    plain = text.expandtabs(8).split("\n")
    for width in _CLIPPED:
        yield f"clipped at {width} columns", "\n".join(line[:width] for line in plain)
        yield f"without the first {width} columns", "\n".join(line[width:] for line in plain)
        yield f"without columns {width} to {width + 8}", "\n".join(line[:width] + line[width + 8 :] for line in plain)
    cells = [line.split("\t") for line in text.split("\n")]
    for at in range(max(map(len, cells))):
        yield f"without column {at + 1}", "\n".join("\t".join(row[:at] + row[at + 1 :]) for row in cells)
        if at:
            swapped = (
                [*row[: at - 1], row[at], row[at - 1], *row[at + 1 :]] if len(row) > at else row for row in cells
            )
            yield f"columns {at} and {at + 1} swapped", "\n".join("\t".join(row) for row in swapped)


def _cuts(text: str) -> Iterator[tuple[str, str]]:
    for at in range(len(text)):
        yield f"cut after {at} characters", text[:at]
        yield f"cut before character {at}", text[at:]


def _encodings(text: str) -> Iterator[Mutant]:
    wide = text.expandtabs(8)
    yield "UTF-16 with a byte order mark", text.encode("utf-16")
    yield "UTF-16, little endian, without byte order mark", text.encode("utf-16-le")
    yield "UTF-16, big endian, without byte order mark", text.encode("utf-16-be")
    yield "UTF-32", text.encode("utf-32")
    yield "UTF-8 with a byte order mark", text.encode("utf-8-sig")
    yield "Windows line ends", text.replace("\n", "\r\n").encode()
    yield "old Mac line ends", text.replace("\n", "\r").encode()
    yield "no line ends", text.replace("\n", "").encode()
    yield "blanks for line ends", text.replace("\n", " ").encode()
    yield "no-break spaces in Latin-1", wide.replace(" ", "\xa0").encode("latin-1", "replace")
    yield "no-break spaces in UTF-8", wide.replace(" ", "\xa0").encode()
    yield "a NUL after each line", text.replace("\n", "\0\n").encode()
    yield "upper case", text.upper().encode()
    yield "lower case", text.lower().encode()
    yield "twice", (text + text).encode()
    yield "bytes that are no UTF-8", text.encode().replace(b"0", b"\xff")
