"""The words behind a row's cells: CPU affinity, NUMA affinity and the GPU's own memory node."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from agent.sources.smi.topo.words import FOLD, Scan

_ITEM = r"\d{1,6}(?:-\d{1,6})?"
_WORD = re.compile(rf"[\s;]*(?:,\s)?(N/A|{_ITEM}(?:,\s?{_ITEM})*)(?=N/A|[\s;<#(]|,(?!\d)|$)", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?=,|$)")
_TO_NUMA = 2  # words of a row up to its NUMA affinity
_BLANK_GAP = 1.5  # cells are one column apart; a wider gap before the first word is an affinity left blank


class Affinity(NamedTuple):
    """The affinity columns of one row as printed; None for blank, "N/A" and not shown."""

    cpu: str | None = None
    numa: str | None = None
    gpu_numa_id: str | None = None


def affinity_words(tail: str, wanted: int) -> tuple[list[str], str]:
    """The affinity words at the front of a tail, and what is left.

    Where a line was broken between two digits, either both belong to one word or not: the reading that gives the
    ``wanted`` number of words is taken, unless its words cannot be: then the line was broken inside one of them.
    """
    whole = _words(tail.replace(FOLD, ""))
    if FOLD in tail and len(whole[0]) != wanted:
        apart = _words(tail.replace(FOLD, " "))
        if (len(apart[0]) == wanted and _go_together(apart[0])) or len(apart[1]) < len(whole[1]):
            return apart
    return whole


def _go_together(words: list[str]) -> bool:
    """Whether these can be CPUs and NUMA nodes: CPU 0 is of node 0."""
    return len(words) < _TO_NUMA or words[0][:2] not in ("0-", "0,") or words[1][0] in "0N"


def _words(tail: str) -> tuple[list[str], str]:
    words = []
    at = 0
    while (found := _WORD.match(tail, at)) and is_ascending(found[1]):
        words.append(re.sub(r"\s", "", found[1]).upper())
        at = found.end()
    return words, tail[at:].strip(" \t,;")


def is_ascending(numbers: str) -> bool:
    """Whether a list is one as the kernel writes it: "48-63,176-191" is, and "48-63,176-1", cut short, is not."""
    ends = [int(each) for each in re.findall(r"\d+", numbers)]
    padded = re.search(r"(?<!\d)0\d", numbers)
    return not padded and all(low <= high for low, high in pairwise(ends))


def read_affinity(body: str, seen: Scan, columns: int, run: int | None) -> Affinity:
    """The affinities of a row that has ``columns`` affinity columns according to its header (0: not known).

    ``run``: how many CPUs stand in one run of the CPU lists of other rows, where that is known.
    """
    tail = body[seen.end :]
    plain = affinity_words(tail, columns)[0]
    words: list[str | None] = [*plain]
    if columns == 0 and (not plain or first_run(plain[0]) is None or FOLD in tail):
        words = []  # without a heading, only a range of CPUs is sure to be the CPU affinity, and only on one line
    if columns and len(words) < columns:
        words = _by_tabs(tail, columns) or _by_gap(body, seen, words)
    if columns > 1 and len(words) == columns - 1 and words[0] is not None:
        words = [*(unglue(words[0], run) or (words[0], None)), *words[1:]]
    if columns > 1 and len(words) > columns:
        # A word too many: which of them is the NUMA node cannot be told, nor where a list ends that goes on behind it.
        words = [] if is_ascending(f"{words[0]},{words[1]}") and "N/A" not in words[:2] else words[:1]
    shown = [None if word in (None, "N/A", "") else word for word in words[: columns or 3]]
    return Affinity(*shown)


def first_run(cpus: str) -> int | None:
    """How many CPUs the first run of a CPU list has: 46 in "0-45,92-137"; None for a list of single CPUs."""
    found = _RANGE.match(cpus)
    return None if found is None or found[2] is None else int(found[2]) - int(found[1]) + 1


def _by_tabs(tail: str, columns: int) -> list[str | None]:
    """The printf format is "cell TAB cpu TAB numa TAB TAB gpu": with tabs intact, blanks have their place."""
    before, *fields = [field.strip() for field in tail.split("\t")]
    if before or len(fields) < columns:
        return []
    places = [0, 1, 3][:columns]
    if any(field and (place not in places or _words(field)[1]) for place, field in enumerate(fields)):
        return []
    return [fields[place] if place < len(fields) else None for place in places]


def _by_gap(body: str, seen: Scan, words: list[str | None]) -> list[str | None]:
    """Where blanks stand for tabs, a blank CPU affinity shows as a gap wider than a column."""
    tail = body[seen.end :]
    if FOLD in body or not words or "\t" in body:
        return words
    pitch = (len("GPU0") + seen.last_start) / max(1, len(seen.cells))
    gap = seen.end + len(tail) - len(tail.lstrip()) - seen.last_start
    return [None, *words] if gap > _BLANK_GAP * pitch else words


def unglue(word: str, run: int | None) -> tuple[str, str] | None:
    """Part a CPU list from the NUMA node that a terminal glued to it: "0-45,92-1370" is "0-45,92-137" and "0".

    The CPUs of a node come in runs of one length (a run per hyper-thread), so the cut is where the last run is about
    as long as the first, or as ``run``, that of other rows. None where nothing tells, or nothing is glued.
    """
    head, _, last = word.rpartition(",")
    wanted = (first_run(head) if head else None) or run
    if wanted is None or abs((first_run(last) or 0) - wanted) <= wanted // 4:
        return None
    for cut in range(len(last) - 1, max(0, len(last) - 4), -1):
        length = first_run(last[:cut])
        if length is not None and last[cut:].isdigit() and abs(length - wanted) <= wanted // 4:
            return word[: len(word) - len(last) + cut], last[cut:]
    return None
