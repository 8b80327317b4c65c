"""JSON that decoders refuse although its sender may send it, made decodable: bytes -> bytes. Pure.

What nests deeper than ``DEEPEST`` is replaced by ``null``; lone surrogates and invalid UTF-8 are replaced by U+FFFD, as
Go does. No object that gputopo reads has anything at such a depth, so what it reads stays as it is.

Time is linear in the length and nothing here recurses: the text is hostile, and decoders fail on nesting because they
recurse. An object of 1,000 levels takes 1 ms, one of the 1.5 MiB that etcd takes 0.2 s at the very most.
"""

from __future__ import annotations

import re

DEEPEST = 100  # levels; Python 3.11 decodes about 900, Kubernetes' own types have about 25
# A string (and the colon and the brackets after it, where it is a key), or brackets. None of the alternatives can fail
# once its first character matched, so no text is looked at twice. An empty object of a key does not count as a level.
# Possessive ("*+"): otherwise an escape takes 100 bytes of memory.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+(?::\s*+(?:\{\}|([\[{]+)))?|([\[{]+)|([\]}]+)', re.DOTALL)
_CLOSING = 3  # the group of closing brackets; the others are of opening ones
_HIGH = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPES = re.compile(rb"\\(?:%s\\%s|(?P<lone>%s|%s)|.)" % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)


def repaired(text: bytes) -> bytes:
    """Return the text, decodable where it is JSON at all; unchanged where nothing has to be repaired."""
    return _flattened(_in_unicode(text))


def _flattened(text: bytes) -> bytes:
    """Return the text without what nests too deep."""
    pieces: list[bytes] = []
    depth = kept = 0  # ``kept``: what comes before is in ``pieces``, or left out
    for token in _TOKENS.finditer(text):
        group = token.lastindex
        if group is None:
            continue
        begin, end = token.span(group)
        before = depth
        if group == _CLOSING:
            depth -= end - begin
            if before > DEEPEST >= depth:
                kept = begin + before - DEEPEST
        else:
            depth += end - begin
            if depth > DEEPEST >= before:
                pieces += text[kept : begin + DEEPEST - before], b"null"
                kept = len(text)
    return b"".join((*pieces, text[kept:])) if pieces else text


def _in_unicode(text: bytes) -> bytes:
    """Return the text with U+FFFD for what is no character."""
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    return _ESCAPES.sub(_character, text) if _SURROGATE.search(text) else text


def _character(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape["lone"] is None else rb"\ufffd"
