"""Runs mutants of every format, and counts the verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.inputs import inputs
from tests.mutants.judge import Verdict, judge, published_labels
from tests.mutants.operators import mutants


class WrongCase(NamedTuple):
    """A mutant of which something wrong is published."""

    mutant: str
    verdict: Verdict
    labels: dict[str, str]  # the wrong ones
    data: bytes


class FormatResult(NamedTuple):
    """The verdicts on the mutants of one format."""

    kind: str
    counts: Counter[Verdict]
    wrong: list[WrongCase]


def run_format(kind: str, texts: list[str], limit: int | None) -> FormatResult:
    """Judge the mutants of the texts: all, or every n-th so that at most ``limit`` are judged per text."""
    counts: Counter[Verdict] = Counter()
    wrong = []
    for text in texts:
        published = published_labels(text.encode())
        whole = published[0] if published else {}
        every = list(mutants(text))
        step = 1 if limit is None else max(1, -(-len(every) // limit))
        for name, data in every[::step]:
            verdict, labels = judge(whole, data)
            counts[verdict] += 1
            if verdict in (Verdict.UNREPORTED, Verdict.REPORTED):
                wrong.append(WrongCase(name, verdict, labels, data))
    return FormatResult(kind, counts, wrong)


def run_first_of_two(limit: int | None) -> FormatResult:
    """Damage the first of two matrices of different machines, and judge by the labels of the first.

    Only mutants of the first that still name two GPUs on a line: the rest leaves no trace of it.
    """
    first, second = inputs()["`topo -m`"][:2]
    whole = (published_labels(first.encode()) or ({}, False))[0]
    every = [(name, data) for name, data in mutants(first) if re.search(rb"GPU\d+\s+(?:GPU\d|[^\n]*\bX\b)", data)]
    step = 1 if limit is None else max(1, -(-len(every) // limit))
    counts: Counter[Verdict] = Counter()
    wrong = []
    for name, data in every[::step]:
        verdict, labels = judge(whole, data + b"\n\n" + second.encode())
        counts[verdict] += 1
        if verdict in (Verdict.UNREPORTED, Verdict.REPORTED):
            wrong.append(WrongCase(name, verdict, labels, data))
    return FormatResult("`topo -m`, the first of two", counts, wrong)


def run_campaign(limit: int | None, files: Path | None = None) -> Iterator[FormatResult]:
    """Yield the result of each format, and of the files of a folder, if one is given."""
    for kind, texts in inputs().items():
        yield run_format(kind, texts, limit)
    yield run_first_of_two(limit)
    for file in sorted(files.iterdir()) if files is not None else ():
        if file.suffix in (".txt", ".xml", ".json", ".yaml"):
            yield run_format(file.name, [file.read_text("utf-8", errors="replace")], limit)


def table(results: list[FormatResult]) -> str:
    """Return the results as a Markdown table."""
    rows = ["| interface | cases tried | wrong, not reported | wrong, reported | refused |", "|---|---|---|---|---|"]
    for kind, counts, _ in results:
        cells = (sum(counts.values()), counts[Verdict.UNREPORTED], counts[Verdict.REPORTED], counts[Verdict.REFUSED])
        rows.append(f"| {kind} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(rows)
