"""Precedence between sources that report the same fact. Pure.

The caller passes the values in order of precedence. The first known value is used; a different value of a later source
becomes a problem of the topology that quotes both.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from gputopo.model import Problem, ProblemKind

T = TypeVar("T")


class SourcePrecedence:
    """Resolves facts by precedence and collects the contradictions."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def resolve(self, what: str, /, **values: T | None) -> T | None:
        """Return the first known value (in the order given); None where all are unknown."""
        known = {source: value for source, value in values.items() if value is not None}
        if not known:
            return None
        source, value = next(iter(known.items()))
        others = [f"{other} says {_value_text(found)}" for other, found in known.items() if found != value]
        if others:
            self.add_problem(
                what, ProblemKind.CONFLICT, f"{source} says {_value_text(value)} and is used; {', '.join(others)}"
            )
        return value

    def add_problem(self, what: str, kind: ProblemKind, why: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(what, kind, why))


def _value_text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)
