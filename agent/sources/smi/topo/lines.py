"""Stage 1: pasted text to plain lines: no escape codes, no markup, no Unicode lookalikes, one writer at a time.

Time is linear in the length of the text: translation tables, and patterns with bounded backtracking.
"""

from __future__ import annotations

import re

import msgspec

# Terminal colours as ESC, CSI, caret notation, JSON or shell spelling; and SGR codes without their ESC.
_ESCAPE_CODES = re.compile(
    r"(?:\x1b|␛|\^\[|\\u001[bB]|\\x1[bB]|\\033|\\e)\[[0-9;?]{0,20}[A-Za-z]"
    r"|\x9b[0-9;?]{0,20}[A-Za-z]"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m"
    r"|\x1b[()][0-9A-B]|\x1b\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)"
)
# For pastes from web pages; compiled (and cached by ``re``) only when needed.
_ENTITY = r"&(nbsp|ensp|emsp|thinsp|Tab|NewLine|lt|gt|amp|quot|hellip|#0*9|#x0*9|#0*32|#x0*20|#0*160|#xa0);"
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "hellip": "...", "NewLine": "\n", "Tab": "\t"}
_BREAK_TAG = r"<br\b[^<>\n]{0,40}>\n?|</?(?:p|div|pre|tr|li)\b[^<>\n]{0,200}>"
_CELL_TAG = r"</?(?:td|th)\b[^<>\n]{0,200}>"
_INLINE_TAG = r"</?(?:code|span|b|i|u|em|strong|font|samp|tt|kbd|table|tbody|thead)\b[^<>\n]{0,200}>"


# A header or row of comma-separated values: the device's name is followed by a comma.
_CSV_LINE = r"(?im)^(?=[^\n]{0,40}(?:GPU|NIC|mlx\d_)\d{1,3}\"?,)[^\n]*"
_COMMA = r"\"([^\"\n]*)\"|,"


def _characters() -> dict[int, str]:
    table = dict.fromkeys([*range(32), *range(0x7F, 0xA0)], " ") | {9: "\t", 10: "\n", 0x85: "\n"}
    table |= {0xFF01 + i: chr(0x21 + i) for i in range(94)}  # full-width forms
    table |= dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
    table |= dict.fromkeys([0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF], "")  # zero width: soft hyphen, BOM, ...
    table |= dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-")
    table |= dict.fromkeys([0x2028, 0x2029], "\n") | {0x2026: "..."}
    table |= dict.fromkeys(
        [0xD7, 0x0425, 0x0445, 0x03A7, 0x03C7, 0x2715, 0x2716], "X"
    )  # times, Cyrillic Ha, Chi, crosses
    # Frames and quotation marks of tables, Markdown and shells become blanks.
    table |= {ord(mark): " " for mark in "|│┃║┆┊`*\"'“”\u2018\u2019«»"}
    return table


_CHARACTERS = _characters()


def _field(found: re.Match[str]) -> str:
    return "\t" if found[0] == "," else str(found[1])


class PastedLine(msgspec.Struct, frozen=True):
    """A cleaned line of the text, numbered from 1."""

    number: int
    text: str


def clean_lines(text: str) -> list[PastedLine]:
    """Return the lines of a paste without decoration; interleaved lines of several writers are grouped by writer.

    Only one of several blank lines in a row is kept.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _ESCAPE_CODES.sub("", text)
    if "&" in text:
        text = re.sub(_ENTITY, lambda found: _ENTITIES.get(found[1], "\t" if found[1].endswith("9") else " "), text)
    if "<" in text:
        text = re.sub(_INLINE_TAG, "", re.sub(_CELL_TAG, " ", re.sub(_BREAK_TAG, "\n", text)))
    if "\\" in text:  # JSON or a programming language's string; Markdown's escaped underscore
        text = text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "").replace("\\_", "_").replace("\\#", "#")
    if "," in text:
        text = re.sub(_CSV_LINE, lambda found: re.sub(_COMMA, _field, found[0]), text)
    lines = []
    before = "not blank: the first line is always kept"
    for number, line in enumerate(text.translate(_CHARACTERS).split("\n"), 1):
        if line or before:
            lines.append(PastedLine(number, line))
        before = line
    return _separate_writers(lines)


# `srun -l`, `pdsh` and `kubectl logs --prefix` put the writer's name before each line and interleave writers.
_WRITER = re.compile(r"\s{0,8}(?!(?:GPU|NIC|mlx)\d)(\[?[A-Za-z0-9][\w./@-]{0,80}\]?):?(?<=[:\]])(?:[ \t]|$)")


_HEADER = re.compile(r"GPU\d.*(?:GPU\d|Affinity)", re.IGNORECASE)


def _writer(line: PastedLine) -> str:
    named = _WRITER.match(line.text)
    return named[1] if named else ""


def _separate_writers(lines: list[PastedLine]) -> list[PastedLine]:
    """Group lines by the writer named before them, where at least two writers have a header each."""
    headers = {_writer(line) for line in lines if _HEADER.search(line.text) and "=" not in line.text}
    if len(headers - {""}) < 2:
        return lines
    by_writer: dict[str, list[PastedLine]] = {}
    for line in lines:
        by_writer.setdefault(_writer(line), []).append(line)
    return [line for writer in by_writer for line in by_writer[writer]]
