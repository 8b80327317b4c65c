"""One rule for several sources that speak of the same fact. Pure.

The caller names the sources in the order in which they are believed. The first that knows wins; a later one that says
otherwise is not hidden but becomes a problem of the topology, with both values in it.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from gputopo.model import Problem, ProblemKind

T = TypeVar("T")


class Witnesses:
    """Collects what the sources disagree about while facts are taken from them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def believe(self, what: str, /, **said: T | None) -> T | None:
        """The value of the first source (in the order given) that knows; None where none does."""
        known = {source: value for source, value in said.items() if value is not None}
        if not known:
            return None
        source, value = next(iter(known.items()))
        others = [f"{other} says {_word(told)}" for other, told in known.items() if told != value]
        if others:
            self.note(what, ProblemKind.CONFLICT, f"{source} says {_word(value)} and is believed; {', '.join(others)}")
        return value

    def note(self, what: str, kind: ProblemKind, why: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(what, kind, why))


def _word(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)
