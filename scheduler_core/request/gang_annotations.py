"""Our own annotations of a pod about its gang. Pure.

The extender parses them to reject a pod with invalid values; the planner parses them to form gangs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.durations import parse_duration
from gputopo.labels import keys
from gputopo.labels.keys import LabelKey
from gputopo.labels.reasons import malformed_text

CLIQUE = "clique"
LEVELS = (CLIQUE, "rack", "block", "zone")
_KEYS = frozenset(key.key for key in keys.GANG_KEYS)
MAX_MEMBERS = 1 << 16
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_MAX_TIMEOUT_S = 86400.0
_LABEL_KEY = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class GangAnnotations(NamedTuple):
    """The values of the annotations. None: not set."""

    gang: str | None = None
    size: int | None = None
    minimum: int | None = None
    timeout_s: float | None = None
    required: str | None = None  # one of ``LEVELS``, or the key of a node label
    preferred: str | None = None
    planned: bool = False
    ends_on_failure: bool = False  # the gang ends when a member fails


class MalformedGangError(ValueError):
    """An annotation about the gang is invalid; the message quotes its value. The parsers of pods catch it."""


def parse_gang_annotations(annotations: Mapping[str, str]) -> GangAnnotations:
    """Parse the annotations. Raises ``MalformedGangError``."""
    if _KEYS.isdisjoint(annotations):  # most pods
        return _NOTHING
    text = annotations.get
    parsed = GangAnnotations(
        _name(text(keys.POD_GANG.key)),
        _count(keys.POD_GANG_SIZE, text(keys.POD_GANG_SIZE.key)),
        _count(keys.POD_GANG_MINIMUM, text(keys.POD_GANG_MINIMUM.key)),
        _timeout(text(keys.POD_GANG_TIMEOUT.key)),
        _level(keys.POD_GANG_REQUIRED, text(keys.POD_GANG_REQUIRED.key)),
        _level(keys.POD_GANG_PREFERRED, text(keys.POD_GANG_PREFERRED.key)),
        _planned(text(keys.POD_PLANNED.key)),
        _ends_on_failure(text(keys.POD_ON_MEMBER_FAILURE.key)),
    )
    if parsed.size is not None and parsed.minimum is not None and parsed.minimum > parsed.size:
        raise _error(keys.POD_GANG_MINIMUM, str(parsed.minimum), f"at most its size, {parsed.size}")
    return parsed


def parse_member_count(text: str) -> int | None:
    """Return a number of members, as written in our annotations and those of other projects; None if it is invalid."""
    if _COUNT.fullmatch(text) is None or int(text) > MAX_MEMBERS:
        return None
    return int(text)


def _name(text: str | None) -> str | None:
    if text is not None and _NAME.fullmatch(text) is None:
        raise _error(keys.POD_GANG, text, "a name: at most 63 lower-case letters, digits and -")
    return text


def _count(key: LabelKey, text: str | None) -> int | None:
    found = None if text is None else parse_member_count(text)
    if text is not None and found is None:
        raise _error(key, text, f"a number of pods, 1 to {MAX_MEMBERS}")
    return found


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None or not 1.0 <= seconds <= _MAX_TIMEOUT_S:
        raise _error(keys.POD_GANG_TIMEOUT, text, "a time like 90s or 5m, from 1s to 24h")
    return seconds


def _level(key: LabelKey, text: str | None) -> str | None:
    if text is None or text in LEVELS or _LABEL_KEY.fullmatch(text) is not None:
        return text
    raise _error(key, text, f"one of {', '.join(LEVELS)}, or a node label's key like example.com/row")


def _planned(text: str | None) -> bool:
    if text not in (None, "true", "false"):
        raise _error(keys.POD_PLANNED, text, "true or false")
    return text == "true"


def _ends_on_failure(text: str | None) -> bool:
    if text not in (None, "end-gang", "none"):
        raise _error(keys.POD_ON_MEMBER_FAILURE, text, "end-gang or none")
    return text == "end-gang"


def _error(key: LabelKey, value: str, expected: str) -> MalformedGangError:
    return MalformedGangError(malformed_text(key.key, value, expected))


_NOTHING = GangAnnotations()
