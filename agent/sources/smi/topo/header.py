"""The header of the matrix of `nvidia-smi topo -m`: the device of each column, and the affinity columns."""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.topo.words import ELLIPSIS, FOLD

GPU = r"GPU(?:0|[1-9]\d{0,2})(?!\d)"
DEVICE = rf"(?:{GPU}|NIC\d{{1,3}}(?!\d)|mlx\d_(?:[a-z]{{1,10}}_)?\d{{1,3}}(?!\d))"
# Names of RDMA devices, any word with a digit: bnxt_re0, rocep195s0f1, hfi1_0, ib0, ...
NAME = r"(?!GPU|NIC)[A-Za-z](?=[\w.-]{0,40}\d)[\w.-]{0,60}"
# A name without digit, in a table written by hand: "HSN". Only such names are between it and the affinity columns.
_OTHER_NAME = r"(?!GPU|NIC|CPU)(?-i:[A-Z]{2,12})(?=(?:\s+(?-i:[A-Z]{2,12})){0,15}\s+CPU\s+Affinity)"
# In the order that nvidia-smi prints them.
AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_AFFINITY = r"(?P<affinity>CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID|(?:GPU\s*)?NUMA\s*$)"
_TOKEN = re.compile(
    rf"[\s,;]*(?:{_AFFINITY}|(?P<known>{DEVICE})|(?P<ellipsis>\.\.\.+)|(?P<name>{NAME}|{_OTHER_NAME})(?![\w.-]))",
    re.IGNORECASE,
)
FIRST_GPU = re.compile(rf"(?:(?<![\w/.-])|(?<=^-)|(?<=topo -m)){GPU}", re.IGNORECASE)


class MatrixHeader(msgspec.Struct, frozen=True):
    """A parsed header line."""

    number: int  # of its first line
    text: str  # as pasted, for messages
    labels: tuple[str, ...]  # "GPU0", "NIC3", "mlx5_2", ELLIPSIS: one per column of cells
    affinity: tuple[str, ...]  # the first of AFFINITY_COLUMNS, as far as they are complete and in order
    cut: bool  # it ends within the name of an affinity column
    short: bool = False  # its NUMA affinity is called "NUMA": written so, or cut there
    unusual: bool = False  # affinity columns in another order, or without the first


def spell_label(label: str) -> str:
    """Return a device's label in nvidia-smi's spelling: upper case, except names of RDMA devices."""
    return label.upper() if label[:3].upper() in ("GPU", "NIC") and label[3:].isdigit() else label


def parse_header(text: str, number: int) -> MatrixHeader | None:
    """Parse a header, or return None: a header names at least two devices, or one device and an affinity column."""
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
            affinity.append(_affinity_column(found["affinity"]))
        elif not affinity:
            labels.append(ELLIPSIS if found["ellipsis"] else spell_label(found["known"] or found["name"]))
    rest = text[at:].strip(" \t,;:#-=>)")
    if not _is_header(labels, affinity, rest, before=text[: first.start()]):
        return None
    in_place = AFFINITY_COLUMNS[: len(affinity)] == tuple(affinity)
    short = tuple(affinity) == AFFINITY_COLUMNS[:2] and text.rstrip().upper().endswith("NUMA")
    return MatrixHeader(
        number,
        text.strip(),
        tuple(labels),
        tuple(affinity) if in_place else (),
        cut=_ends_in_affinity(rest),
        short=short,
        unusual=not in_place,
    )


def _letters(words: str) -> str:
    return re.sub(r"\s", "", words[:30]).upper()


def _affinity_column(words: str) -> str:
    return next(column for column in AFFINITY_COLUMNS if _letters(column).startswith(_letters(words)))


def _ends_in_affinity(rest: str) -> bool:
    return bool(rest) and any(_letters(column).startswith(_letters(rest)) for column in AFFINITY_COLUMNS)


def _is_header(labels: list[str], affinity: list[str], rest: str, before: str) -> bool:
    if affinity:
        return True  # text after the affinity columns is a remark
    if len(rest) > 4 and not _ends_in_affinity(rest):
        return False
    return len(labels) > 1 or (not rest and not before.strip())
