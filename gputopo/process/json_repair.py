"""Repair of JSON that the API server accepts and msgspec does not: bytes -> bytes. Pure.

Values nested deeper than ``MAX_DEPTH`` become ``null``; lone surrogates and invalid UTF-8 become U+FFFD, as in Go.
gputopo reads no field at such a depth, so the repair does not change the fields that it reads.

The time is linear in the length and no function recurses, because the text may be hostile. An object of 1,000 levels
takes 1 ms; one of 1.5 MiB, the limit of etcd, takes at most 0.3 s: as JSON it may have 9 MB, because the API server
sends six characters for each control character.
"""

from __future__ import annotations

import re

MAX_DEPTH = 100  # levels; msgspec on Python 3.11 decodes about 900, the types of Kubernetes have about 25
# Everything up to the next brackets, and these: each match takes a microsecond of Python, so strings are passed within
# one. A match ends at brackets or at the end of the text, so no text is scanned twice. An empty object as the value of
# a key is not a level.
# Possessive quantifiers ("*+"): otherwise each escape takes 100 bytes of memory.
_TOKENS = re.compile(
    rb'(?:[^][{}":]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|:(?:\s*+\{\})?+)*+(?:([\[{]++)|([\]}]++)|\Z)', re.DOTALL
)
_CLOSING = 2  # the group of closing brackets; the other group has opening brackets
_HIGH = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A lone surrogate, or a pair, after an odd number of backslashes. It begins with a literal, so that the search is fast.
_ESCAPES = re.compile(
    rb"\\(?<!\\\\)(?P<before>(?:\\\\)*+)(?:%s\\%s|(?P<lone>%s|%s))" % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL
)


def repair_json(text: bytes) -> bytes:
    """Return the repaired text; the same text if it needs no repair. Text that is not JSON stays invalid."""
    return _limit_depth(_replace_invalid_characters(text))


def _limit_depth(text: bytes) -> bytes:
    """Return the text with ``null`` in place of values that are nested too deep."""
    pieces: list[bytes] = []
    depth = kept = 0  # ``kept``: text before this offset is in ``pieces`` or dropped
    for token in _TOKENS.finditer(text):
        group = token.lastindex
        if group is None:
            continue
        begin, end = token.span(group)
        before = depth
        if group == _CLOSING:
            depth -= end - begin
            if before > MAX_DEPTH >= depth:
                kept = begin + before - MAX_DEPTH
        else:
            depth += end - begin
            if depth > MAX_DEPTH >= before:
                pieces += text[kept : begin + MAX_DEPTH - before], b"null"
                kept = len(text)
    return b"".join((*pieces, text[kept:])) if pieces else text


def _replace_invalid_characters(text: bytes) -> bytes:
    """Return the text with U+FFFD in place of invalid UTF-8 and lone surrogates."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    return _ESCAPES.sub(_replace_lone, text) if _SURROGATE.search(text) else text


def _replace_lone(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape["lone"] is None else escape["before"] + rb"\ufffd"
