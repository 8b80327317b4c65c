"""An explanation as a document of kind ``PodExplanation``, and back. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from gputopo.process.decoding import decode
from gputopo.render import report
from scheduler_core.explain.model import Explanation

KIND = "PodExplanation"


class NoExplanationError(ValueError):
    """The input is not a document of kind ``PodExplanation``; the text says why."""


class _Header(msgspec.Struct):
    kind: str = ""


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as a document."""
    return report.document(KIND, explanation)


def parse_explanation(text: bytes) -> Explanation:
    """Return the explanation in a document. Raises ``NoExplanationError``."""
    try:
        kind = decode(text, _Header).kind
        if kind == KIND:
            return decode(text, Explanation)
    except msgspec.DecodeError as error:
        raise NoExplanationError(f"{error}: {text[:80]!r}") from error
    raise NoExplanationError(f"its kind is {kind[:63]!r}, not {KIND!r}")
