"""The rows of workload and cluster files: CSV, or a JSON list of objects, and the numbers in their cells. Pure.

RowsError(ValueError)    the text has no such rows; the message quotes the fault
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gputopo.process.decoding import decode

Row = Mapping[str, Any]  # cells by column; a value without a column has the key None
_DELIMITERS = ",;\t"
_INTEGER = re.compile(r"\s*[+-]?\d{1,400}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


class RowsError(ValueError):
    """The text has no rows that can be read."""


def is_json(text: str) -> bool:
    """Return whether the text is a JSON list."""
    return text.lstrip().startswith("[")


def csv_columns(text: str) -> list[str]:
    """Return the columns of the first line, in lower case. Raises ``RowsError``."""
    head, _ = _header_and_body(text)
    try:
        cells = next(csv.reader([head], delimiter=_delimiter(head), skipinitialspace=True), [])
    except csv.Error as error:
        raise RowsError(f"invalid header {head!r:.120}: {error}") from None
    return [cell.strip().lower() for cell in cells]


def read_rows(text: str) -> Sequence[Row]:
    """Return the rows of CSV or JSON. Raises ``RowsError``.

    Cells of CSV are separated by commas, semicolons or tabs, and may be quoted. Its columns are in lower case.
    """
    if is_json(text):
        try:
            return decode(text, list[dict[str, Any]])
        except msgspec.MsgspecError as error:
            raise RowsError(f"invalid JSON: {error}") from None
    columns = csv_columns(text)
    if twice := next((each for each, number in Counter(columns).items() if each and number > 1), None):
        raise RowsError(f"the column {twice!r:.80} occurs twice; remove one")
    head, body = _header_and_body(text)
    try:
        lines = io.StringIO(body, newline="")
        return list(csv.DictReader(lines, columns, delimiter=_delimiter(head), skipinitialspace=True))
    except csv.Error as error:
        raise RowsError(f"invalid CSV: {error}") from None


def parse_number(value: object) -> float:
    """Return the number of a cell: JSON, or text in decimal digits. Raises ``ValueError``; also for 1_000 and true."""
    if isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        raise ValueError(f"{value!r:.80} is not a number in decimal digits")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        raise ValueError(f"{value!r:.80} is not a number in decimal digits") from None


def parse_integer(value: object) -> int:
    """Return the integer of a cell. Raises ``ValueError``, also for 1e9 as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(f"{value!r:.80} is not an integer in decimal digits, such as 8000")


def parse_text(row: Row, column: str) -> str:
    """Return the text of a cell, or its number as text. Raises ``ValueError``; ``KeyError``: no such column."""
    value = row[column]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{column} {value!r:.80} is not a text")


def _header_and_body(text: str) -> tuple[str, str]:
    head, _, body = text.lstrip("\r\n").partition("\n")
    return head, body


def _delimiter(head: str) -> str:
    """Return the separator that the first line has most often."""
    return max(_DELIMITERS, key=head.count)
