"""Wishes that nobody would read: under a key that is misspelled, or as a label where an annotation is meant. Pure.

A wish that is dropped in silence places the pod without it, which is noticed when the training is slow. So such a pod
is refused, in words that name the key that was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from gputopo.labels import keys
from gputopo.labels.reasons import misplaced_text, unknown_key_text

_MODELS = (keys.POD_GPU_MODEL.key, keys.POD_GPU_MODEL_SHORT.key)  # read as labels and as annotations
_KNOWN = tuple(key.key for key in keys.POD_KEYS)
_OURS = f"{keys.API_GROUP}/"
_CLASSIC = keys.POD_GPU_MODEL.key.partition("/")[0] + "/"  # others may have keys of their own under it
_ALIKE = 0.6  # of the letters


def unknown_key_reason(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Why a GPU pod with those is refused; None: every wish that it has is read. Stable for the pod."""
    for key in sorted(labels):
        if key in _KNOWN and key not in _MODELS:
            return misplaced_text(key, labels[key])
    for where in (annotations, labels):
        for key in sorted(where):
            if key not in _KNOWN and _is_wish(key, ours=where is annotations):
                return unknown_key_text(key, where[key], _nearest(key))
    return None


def _is_wish(key: str, *, ours: bool) -> bool:
    """Whether somebody meant us. Labels of ours that are no wishes may be there to select pods by."""
    return (ours and key.startswith(_OURS)) or (key.startswith(_CLASSIC) and _nearest(key) is not None)


def _nearest(key: str) -> str | None:
    """The known key that was meant, by what follows the prefix."""
    names = {known.rpartition("/")[2]: known for known in reversed(_KNOWN)}
    found = get_close_matches(key.partition("/")[2].casefold(), names, 1, _ALIKE)
    return names[found[0]] if found else None
