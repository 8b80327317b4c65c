"""Constraints that would be ignored: under a misspelled key, or as a label instead of an annotation. Pure.

If gputopo ignored them silently, the pod would be placed without them, and users would notice only that the training is
slow. So such a pod is rejected, with a reason that names the correct key.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

from gputopo.labels import keys
from gputopo.labels.reasons import misplaced_text, unknown_key_text

_MODELS = (keys.POD_GPU_MODEL.key, keys.POD_GPU_MODEL_SHORT.key)  # valid as label and as annotation
_KNOWN = dict.fromkeys(key.key for key in keys.POD_KEYS)  # in the order of precedence
_OURS = f"{keys.API_GROUP}/"
_CLASSIC = keys.POD_GPU_MODEL.key.partition("/")[0] + "/"  # other projects may have keys under this prefix
_SIMILARITY = 0.6  # of the letters
_MAX_COMPARED = 64  # unknown keys that are compared with the known keys: each takes 50 us, and a pod has any number


@lru_cache(maxsize=1 << 10)
def is_own_key(key: str) -> bool:
    """Return whether gputopo reads the label or annotation of a pod, apart from the labels of detection rules."""
    return key.startswith((_OURS, _CLASSIC)) or key in _KNOWN


def unknown_key_reason(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Return why a GPU pod with these keys is rejected; None: all keys are known. The same text at each call."""
    for key in sorted(labels):
        if key in _KNOWN and key not in _MODELS:
            return misplaced_text(key, labels[key])
    for where in (annotations, labels):
        own_prefix = _OURS if where is annotations else None
        unknown = sorted(key for key in where if key not in _KNOWN and _is_prefixed(key, own_prefix))
        for key in unknown[:_MAX_COMPARED]:
            if _is_meant_for_us(key, own_prefix):
                return unknown_key_text(key, where[key], _nearest(key))
    return None


def _is_prefixed(key: str, own_prefix: str | None) -> bool:
    return key.startswith(_CLASSIC) or (own_prefix is not None and key.startswith(own_prefix))


def _is_meant_for_us(key: str, own_prefix: str | None) -> bool:
    """Return True if the key is meant for gputopo. Unknown labels under our prefix may be there to select pods."""
    return (own_prefix is not None and key.startswith(own_prefix)) or _nearest(key) is not None


def _nearest(key: str) -> str | None:
    """Return the known key with the most similar name after the prefix."""
    names = {known.rpartition("/")[2]: known for known in reversed(_KNOWN)}
    found = get_close_matches(key.partition("/")[2].casefold(), names, 1, _SIMILARITY)
    return names[found[0]] if found else None
