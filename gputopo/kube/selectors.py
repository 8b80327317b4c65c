"""Label and field selectors, as an API server applies them to a list. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gputopo.kube.errors import KubeError

Matches = Callable[[Mapping[str, str]], bool]

_MAX_LENGTH = 10_000  # characters of a selector
_QUOTED = 60
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_TERMS = (
    (re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)"), False),
    (re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<value>[-A-Za-z0-9_.,\s]*)\)"), True),
    (re.compile(rf"(?P<operator>!?)\s*(?P<key>{_KEY})"), False),
)
_BETWEEN_TERMS = re.compile(r",(?![^(]*\))")  # commas that are not between parentheses


class SelectorError(KubeError):
    """The text is not a selector."""


def parse_selector(text: str) -> Matches:
    """Return whether labels, or fields by path, match ``a=b,c!=d,e in (x,y),f notin (z),g,!h``.

    Raises ``SelectorError``, as the API server refuses an invalid selector.
    """
    if len(text) > _MAX_LENGTH:
        raise SelectorError(f"the selector {text[:_QUOTED]!r}... has more than {_MAX_LENGTH} characters")
    terms = [_term(each.strip()) for each in _BETWEEN_TERMS.split(text)] if text.strip() else []
    return lambda values: all(term(values) for term in terms)


def _term(text: str) -> Matches:
    for pattern, many in _TERMS:
        found = pattern.fullmatch(text)
        if found is not None:
            parts = found.groupdict()
            return _values(parts, many=many) if "value" in parts else _presence(parts)
    raise SelectorError(
        f"{text[:_QUOTED]!r} is not a label selector; expected, as in kubectl: a=b,c!=d,e in (x,y),f,!g"
    )


def _presence(parts: Mapping[str, str]) -> Matches:
    key, absent = parts["key"], bool(parts["operator"])
    return lambda values: (key in values) != absent


def _values(parts: Mapping[str, str], *, many: bool) -> Matches:
    key, text = parts["key"], parts["value"]
    accepted = {each.strip() for each in text.split(",")} if many else {text}
    if parts["operator"] in ("!=", "notin"):  # also true without the label, as in Kubernetes
        return lambda values: key not in values or values[key] not in accepted
    return lambda values: key in values and values[key] in accepted
