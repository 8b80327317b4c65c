"""The header of the matrix: which device each column is, and which affinity columns follow."""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.topo.words import ELLIPSIS, FOLD

GPU = r"GPU(?:0|[1-9]\d{0,2})(?!\d)"
DEVICE = rf"(?:{GPU}|NIC\d{{1,3}}(?!\d)|mlx\d_(?:[a-z]{{1,10}}_)?\d{{1,3}}(?!\d))"
# Names of RDMA devices that follow no pattern but "a word with a digit": bnxt_re0, rocep195s0f1, hfi1_0, ib0, ...
NAME = r"(?!GPU|NIC)[A-Za-z](?=[\w.-]{0,40}\d)[\w.-]{0,60}"
# A name without digit, in a table that somebody wrote: "HSN". Only others like it stand between it and the affinities.
_OTHER_NAME = r"(?!GPU|NIC|CPU)(?-i:[A-Z]{2,12})(?=(?:\s+(?-i:[A-Z]{2,12})){0,15}\s+CPU\s+Affinity)"
# In the order that nvidia-smi prints them.
AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_AFFINITY = r"(?P<affinity>CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID|NUMA\s*$)"
_TOKEN = re.compile(
    rf"[\s,;]*(?:{_AFFINITY}|(?P<known>{DEVICE})|(?P<ellipsis>\.\.\.+)|(?P<name>{NAME}|{_OTHER_NAME})(?![\w.-]))",
    re.IGNORECASE,
)
FIRST_GPU = re.compile(rf"(?:(?<![\w/.-])|(?<=^-)|(?<=topo -m)){GPU}", re.IGNORECASE)


class Header(msgspec.Struct, frozen=True):
    """One header line, read."""

    number: int  # of its first line
    text: str  # as pasted, for messages
    labels: tuple[str, ...]  # "GPU0", "NIC3", "mlx5_2", ELLIPSIS: one per column of cells
    affinity: tuple[str, ...]  # the first of AFFINITY_COLUMNS, as far as they are there in full and in place
    cut: bool  # it ends within the name of an affinity column
    short: bool = False  # it ends in "NUMA": as somebody wrote it, or cut just there


def spell(label: str) -> str:
    """A device's label as nvidia-smi spells it: upper case, but for the lower-case names of RDMA devices."""
    return label.upper() if label[:3].upper() in ("GPU", "NIC") and label[3:].isdigit() else label


def parse_header(text: str, number: int) -> Header | None:
    """Read a header, or None if the line is none: it names two devices or more, or one and an affinity column."""
    text = text.replace(FOLD, "")
    first = FIRST_GPU.search(text)
    if first is None:
        return None
    labels: list[str] = []
    affinity: list[str] = []
    at = first.start()
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found["affinity"]:
            affinity.append(_column(found["affinity"]))
        elif not affinity:
            labels.append(ELLIPSIS if found["ellipsis"] else spell(found["known"] or found["name"]))
    rest = text[at:].strip(" \t,;:#-=>)")
    if not _is_header(labels, affinity, rest, before=text[: first.start()]):
        return None
    in_place = AFFINITY_COLUMNS[: len(affinity)] == tuple(affinity)
    short = in_place and text.rstrip().upper().endswith("NUMA")
    return Header(number, text.strip(), tuple(labels), tuple(affinity) if in_place else (), cut=_cut(rest), short=short)


def _letters(words: str) -> str:
    return re.sub(r"\s", "", words[:30]).upper()


def _column(words: str) -> str:
    return next(column for column in AFFINITY_COLUMNS if _letters(column).startswith(_letters(words)))


def _cut(rest: str) -> bool:
    return bool(rest) and any(_letters(column).startswith(_letters(rest)) for column in AFFINITY_COLUMNS)


def _is_header(labels: list[str], affinity: list[str], rest: str, before: str) -> bool:
    if affinity:
        return True  # whatever follows the affinity columns is a remark
    if len(rest) > 4 and not _cut(rest):
        return False
    return len(labels) > 1 or (not rest and not before.strip())
