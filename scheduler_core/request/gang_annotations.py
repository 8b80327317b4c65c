"""What a pod says of its gang by our own annotations. Pure.

Read twice: by the extender, which refuses a pod whose words cannot be understood, and by the planner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import Key
from gputopo.labels.reasons import malformed_text

CLIQUE = "clique"
LEVELS = (CLIQUE, "rack", "block", "zone")
MAX_MEMBERS = 1 << 16
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_LENGTH = re.compile(r"(?:\d{1,6}(?:\.\d{1,3})?(?:ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_TIMEOUT_S = 86400.0
_LABEL_KEY = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class GangAnnotations(NamedTuple):
    """What is said. None: nothing."""

    gang: str | None = None
    size: int | None = None
    minimum: int | None = None
    timeout_s: float | None = None
    required: str | None = None  # one of ``LEVELS``, or a node label's key
    preferred: str | None = None
    planned: bool = False


class MalformedGangError(ValueError):
    """A pod's own words about its gang cannot be understood; the text quotes them. Who reads a pod catches it."""


def parse_gang_annotations(annotations: Mapping[str, str]) -> GangAnnotations:
    """What a pod says. Raises ``MalformedGangError``."""
    if not any(key.key in annotations for key in keys.GANG_KEYS):  # most pods
        return _NOTHING
    text = {key: annotations.get(key.key) for key in keys.GANG_KEYS}
    said = GangAnnotations(
        _name(text[keys.POD_GANG]),
        _count(keys.POD_GANG_SIZE, text[keys.POD_GANG_SIZE]),
        _count(keys.POD_GANG_MINIMUM, text[keys.POD_GANG_MINIMUM]),
        _timeout(text[keys.POD_GANG_TIMEOUT]),
        _level(keys.POD_GANG_REQUIRED, text[keys.POD_GANG_REQUIRED]),
        _level(keys.POD_GANG_PREFERRED, text[keys.POD_GANG_PREFERRED]),
        _planned(text[keys.POD_PLANNED]),
    )
    if said.size is not None and said.minimum is not None and said.minimum > said.size:
        raise _error(keys.POD_GANG_MINIMUM, str(said.minimum), f"at most its size, {said.size}")
    return said


def parse_member_count(text: str) -> int | None:
    """A number of members, as our annotations and others' write it; None where it is none."""
    if _COUNT.fullmatch(text) is None or int(text) > MAX_MEMBERS:
        return None
    return int(text)


def _name(text: str | None) -> str | None:
    if text is not None and _NAME.fullmatch(text) is None:
        raise _error(keys.POD_GANG, text, "a name: at most 63 lower-case letters, digits and -")
    return text


def _count(key: Key, text: str | None) -> int | None:
    found = None if text is None else parse_member_count(text)
    if text is not None and found is None:
        raise _error(key, text, f"a number of pods, 1 to {MAX_MEMBERS}")
    return found


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    parts = _PART.findall(text) if _LENGTH.fullmatch(text) else []
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 1.0 <= seconds <= _MAX_TIMEOUT_S:
        raise _error(keys.POD_GANG_TIMEOUT, text, "a time like 90s or 5m, from 1s to 24h")
    return seconds


def _level(key: Key, text: str | None) -> str | None:
    if text is None or text in LEVELS or _LABEL_KEY.fullmatch(text) is not None:
        return text
    raise _error(key, text, f"one of {', '.join(LEVELS)}, or a node label's key like example.com/row")


def _planned(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise _error(keys.POD_PLANNED, text, "true or false")
    return text == "true"


def _error(key: Key, value: str, expected: str) -> MalformedGangError:
    return MalformedGangError(malformed_text(key.key, value, expected))


_NOTHING = GangAnnotations()
