"""Strings that Kubernetes accepts as label values, by construction.

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
    """Whether Kubernetes takes the text as a non-empty label value."""
    return _VALID.fullmatch(text) is not None


def label_value(text: str) -> str:
    """Spell any non-empty text as a label value.

    White space becomes ``-`` as in GPU Feature Discovery, so that "NVIDIA H100 80GB HBM3" reads as users know it.
    Where more than that had to change (a character dropped, an end trimmed, the text cut), a hash of the original is
    appended: two different texts then never become one label. Raises ``ValueError`` for blank text.
    """
    if not text.strip():
        raise ValueError(f"a label value cannot be made of {text!r}: leave the label out instead")
    spelled = "-".join(text.split())
    if is_label_value(spelled):
        return spelled
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    kept = "-".join(_FORBIDDEN.sub("", text).split())[: MAX_LENGTH - _HASH_LENGTH - 1].strip(_EDGE)
    return f"{kept}-{digest}" if kept else digest


def gfd_value(text: str) -> str | None:
    """Spell a text as GPU Feature Discovery does (its ``sanitise``: drop what is not allowed, join words with ``-``).

    GPU Feature Discovery bounds neither the length nor the ends, and then the label is refused by the API server
    (k8s-device-plugin#1876); such a text is spelled by ``label_value`` instead. None where nothing is left.
    """
    spelled = "-".join(_FORBIDDEN.sub("", text).split())
    if is_label_value(spelled):
        return spelled
    return label_value(text) if text.strip() else None
