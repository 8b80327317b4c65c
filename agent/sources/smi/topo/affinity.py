"""The text after the cells of a row: CPU affinity, NUMA affinity and the NUMA node of the GPU's memory."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from agent.sources.smi.topo.words import FOLD, CellScan

_ITEM = r"\d{1,6}(?:-\d{1,6})?"
_WORD = re.compile(rf"[\s;]*(?:,\s)?(N/A|{_ITEM}(?:,\s?{_ITEM})*)(?=N/A|[\s;<#(]|,(?!\d)|$)", re.IGNORECASE)
_LIST = re.compile(rf"{_ITEM}(?:,{_ITEM})*")
_TOKEN = re.compile(r"(?<![\w,-])\d[\d,-]*-\d[\d,-]*(?![\w,-])")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?=,|$)")
_TO_NUMA = 2  # words up to the NUMA affinity
_BLANK_GAP = 1.5  # in columns; a wider gap before the first word is a blank affinity


class RowAffinity(NamedTuple):
    """The affinity columns of one row as printed; None for blank, "N/A" and absent."""

    cpu: str | None = None
    numa: str | None = None
    gpu_numa_id: str | None = None


def affinity_words(tail: str, wanted: int) -> tuple[list[str], str]:
    """Return the affinity words at the start of a tail, and the rest.

    A line break between two digits is either inside a word or between two words: the reading with the ``wanted`` number
    of words is used, unless these words are impossible, which means a break inside a word.
    """
    whole = _words(tail.replace(FOLD, ""))
    if FOLD in tail and len(whole[0]) != wanted:
        split = _words(tail.replace(FOLD, " "))
        if len(split[0]) == wanted and _are_consistent(split[0]):
            return split
        apart = _words(_set_apart(tail.replace(FOLD, "")))
        if len(apart[0]) == wanted:
            return apart
        if len(split[1]) < len(whole[1]):
            return split
    return whole


def _set_apart(text: str) -> str:
    """Return the text with a blank between CPUs and NUMA nodes that a line break joined, if one place is possible.

    "0-310-1" is "0-31 0-1", and "0-47,96-1430,2" is "0-47,96-143 0,2".
    """
    found = _TOKEN.search(text)
    if found is None or _is_list(found[0]):
        return text
    token = found[0]
    places = [at for at in range(1, len(token)) if "-" in token[:at] and _is_list(token[:at]) and _is_list(token[at:])]
    if len(places) != 1:
        return text
    at = found.start() + places[0]
    return f"{text[:at]} {text[at:]}"


def _is_list(text: str) -> bool:
    return _LIST.fullmatch(text) is not None and is_ascending(text)


def _are_consistent(words: list[str]) -> bool:
    """Return whether these can be CPUs and NUMA nodes: CPU 0 is on node 0, and the memory of a GPU is one node."""
    if len(words) > _TO_NUMA and not (words[_TO_NUMA].isdigit() or words[_TO_NUMA] == "N/A"):
        return False
    return len(words) < _TO_NUMA or words[0][:2] not in ("0-", "0,") or words[1][0] in "0N"


def _words(tail: str) -> tuple[list[str], str]:
    words = []
    at = 0
    while (found := _WORD.match(tail, at)) and is_ascending(found[1]):
        words.append(re.sub(r"\s", "", found[1]).upper())
        at = found.end()
    return words, tail[at:].strip(" \t,;")


def is_ascending(numbers: str) -> bool:
    """Return whether a list is valid for the kernel: "48-63,176-191" is, and "48-63,176-1", a cut list, is not."""
    ends = [int(each) for each in re.findall(r"\d+", numbers)]
    padded = re.search(r"(?<!\d)0\d", numbers)
    return not padded and all(low <= high for low, high in pairwise(ends))


def read_affinity(body: str, scanned: CellScan, columns: int, run: int | None) -> RowAffinity:
    """Return the affinities of a row with ``columns`` affinity columns in its header (0: unknown).

    ``run``: the number of CPUs in one range of the CPU lists of other rows, where known.
    """
    tail = body[scanned.end :]
    plain, rest = affinity_words(tail, columns)
    words: list[str | None] = [*plain]
    if re.match(r"-\d", rest) and FOLD in tail:
        words = []  # the rest of a range, and it is unknown of which
    if columns == 0 and (not plain or first_run(plain[0]) is None or FOLD in tail):
        words = []  # without a header, only a range on the same line is certainly the CPU affinity
    if columns and len(words) < columns:
        words = _words_by_tabs(tail, columns) or _words_by_gap(body, scanned, words)
    if 1 < columns > len(words) and words[:1] and (words[0] or "").isdigit():
        words = []  # a single number may be the only CPU, or the NUMA node beside a blank CPU affinity
    if columns > 1 and len(words) == columns - 1 and words[0] is not None:
        words = [*(split_glued_node(words[0], run) or (words[0], None)), *words[1:]]
    if columns > 1 and len(words) > columns:
        # One word too many: it is unknown which word is the NUMA node, and where a broken CPU list ends.
        words = [] if is_ascending(f"{words[0]},{words[1]}") and "N/A" not in words[:2] else words[:1]
    shown = [None if word in (None, "N/A", "") else word for word in words[: columns or 3]]
    return RowAffinity(*shown)


def first_run(cpus: str) -> int | None:
    """Return the number of CPUs in the first range of a list: 46 in "0-45,92-137"; None for a list of single CPUs."""
    found = _RANGE.match(cpus)
    return None if found is None or found[2] is None else int(found[2]) - int(found[1]) + 1


def _words_by_tabs(tail: str, columns: int) -> list[str | None]:
    """Split by tabs: the printf format is "cell TAB cpu TAB numa TAB TAB gpu", so empty columns are kept."""
    before, *fields = [field.strip() for field in tail.split("\t")]
    if before or len(fields) < columns:
        return []
    places = [0, 1, 3][:columns]
    if any(field and (place not in places or _words(field)[1]) for place, field in enumerate(fields)):
        return []
    return [fields[place] if place < len(fields) else None for place in places]


def _words_by_gap(body: str, scanned: CellScan, words: list[str | None]) -> list[str | None]:
    """Find a blank CPU affinity in text without tabs: a gap wider than a column."""
    tail = body[scanned.end :]
    if FOLD in body or not words or "\t" in body:
        return words
    pitch = (len("GPU0") + scanned.last_start) / max(1, len(scanned.cells))
    gap = scanned.end + len(tail) - len(tail.lstrip()) - scanned.last_start
    return [None, *words] if gap > _BLANK_GAP * pitch else words


def split_glued_node(word: str, run: int | None) -> tuple[str, str] | None:
    """Split a NUMA node off a CPU list: "0-45,92-1370" is "0-45,92-137" and "0".

    The CPUs of a node are ranges of one length (a range per hyper-thread), so the last range must be about as long as
    the first, or as ``run``, the length in other rows. None where the position is unknown, or nothing is glued.
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
