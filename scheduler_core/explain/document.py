"""An explanation as a document, and back. Pure.

Keys are camelCase as in Kubernetes; what is unknown is null; within ``v1`` keys are added, never renamed or removed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gputopo.process.decoding import decode
from gputopo.render.schema import API_VERSION
from scheduler_core.explain.model import Explanation

KIND = "PodExplanation"


class NoExplanationError(ValueError):
    """What was read is no such document; the text says why."""


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """The document of kind ``PodExplanation``."""
    return {"apiVersion": API_VERSION, "kind": KIND, **_plain(explanation)}


def parse_explanation(text: bytes) -> Explanation:
    """The explanation that such a document holds. Raises ``NoExplanationError``."""
    try:
        header = decode(text, _Header)
        if header.kind != KIND:
            raise NoExplanationError(f"its kind is {header.kind[:63]!r}, not {KIND!r}")
        return decode(text, Explanation)
    except msgspec.DecodeError as error:
        raise NoExplanationError(f"{error}: {text[:80]!r}") from error


class _Header(msgspec.Struct):
    kind: str = ""


def _plain(explanation: Explanation) -> dict[str, Any]:
    # Through JSON's own types, so that a reader of the dict and a reader of the text see the same (lists, not tuples).
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(explanation))
    return body
