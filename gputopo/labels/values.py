"""Label values that are valid by construction.

A label value, and the name part of a label key, is at most 63 characters of ``[A-Za-z0-9._-]`` that begin and end
with a letter or digit (k8s.io/apimachinery ``validation.IsValidLabelValue``).
"""

from __future__ import annotations

import hashlib
import re

MAX_LENGTH = 63
_HASH_LENGTH = 8
_VALID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._ -]")
_EDGE = "._-"


def is_label_value(text: str) -> bool:
    """Return whether the text is a valid, non-empty label value."""
    return _VALID.fullmatch(text) is not None


def label_value(text: str) -> str:
    """Return any non-empty text as a label value.

    White space becomes ``-`` as in GPU Feature Discovery, so that "NVIDIA H100 80GB HBM3" looks familiar. If more
    changes (a character is dropped, an end trimmed, the text cut), a hash of the original is appended, so that two
    texts never get the same label. Raises ``ValueError`` for blank text.
    """
    if not text.strip():
        raise ValueError(f"{text!r} cannot be a label value: leave the label out")
    spelled = "-".join(text.split())
    if is_label_value(spelled):
        return spelled
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    kept = "-".join(_FORBIDDEN.sub("", text).split())[: MAX_LENGTH - _HASH_LENGTH - 1].strip(_EDGE)
    return f"{kept}-{digest}" if kept else digest


def gfd_value(text: str) -> str | None:
    """Return a text as GPU Feature Discovery writes it (``sanitise``: drop invalid characters, join words with ``-``).

    GPU Feature Discovery checks neither the length nor the ends, so that the API server may refuse its label
    (k8s-device-plugin#1876); for such a text this returns ``label_value``. None if the text is blank.
    """
    spelled = "-".join(_FORBIDDEN.sub("", text).split())
    if is_label_value(spelled):
        return spelled
    return label_value(text) if text.strip() else None
