"""Kubernetes quantities: "40Gi", "1.5G", "500m", "1e3". Pure.

Source: ``k8s.io/apimachinery/pkg/api/resource`` (Quantity), the grammar followed here. ``kubernetes.utils.quantity`` is
not used: it imports the whole official package, and raises exceptions.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_LONGEST = 48  # characters: 18 digits, a point, 18 digits, and a suffix
_QUANTITY = re.compile(
    r"\+?(?P<number>\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?P<suffix>[EPTGMK]i|[numkMGTPE]?|[eE][+-]?\d{1,2})",
    re.ASCII,
)
_FACTORS = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}
MIB = 1 << 20


def parse_quantity(text: str) -> Fraction | None:
    """Return the number; None if the text is not a quantity, or is negative."""
    return _parse_short(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=1 << 10)
def _parse_short(text: str) -> Fraction | None:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    suffix = found["suffix"]
    factor = _FACTORS[suffix] if suffix in _FACTORS else Fraction(10) ** int(suffix[1:])
    return Fraction(found["number"]) * factor


def parse_count(text: str) -> int | None:
    """Return the quantity of an extended resource, which is a whole number; None if it is invalid."""
    found = parse_quantity(text)
    return None if found is None or found.denominator != 1 else int(found)


def parse_mib(text: str) -> int | None:
    """Return a quantity of bytes in MiB, rounded up; None if it is invalid or 0."""
    found = parse_quantity(text)
    return None if not found else -(-found.numerator // (found.denominator * MIB))
