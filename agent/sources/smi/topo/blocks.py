"""Stage 3: lines to blocks: a header, its rows and the legend, with broken lines joined."""

from __future__ import annotations

import re

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.topo.affinity import affinity_words
from agent.sources.smi.topo.header import (
    AFFINITY_COLUMNS,
    DEVICE,
    FIRST_GPU,
    NAME,
    MatrixHeader,
    parse_header,
    spell_label,
)
from agent.sources.smi.topo.lines import PastedLine
from agent.sources.smi.topo.words import FOLD, P2P, SELF, CellScan, cells_start_at, scan_cells

MAX_FOLDS = 40  # a row of 64 GPUs and as many NICs on a terminal of 40 columns
MAX_ROWS = 512
MAX_BODY = 1 << 14  # parsed characters of a row: cells, and a list of single CPUs
MAX_BLOCKS = 256  # hosts in one paste
_INTERESTING = re.compile(r"GPU|NIC|mlx|topo|Legend|=|PIX|PXB|PHB|NODE|SYS|SOC|NV\d|\bX\b", re.IGNORECASE)
_LABEL = re.compile(rf"(?:(?<![\w/.-])|(?<=^-))({DEVICE})[\s:,;]*", re.IGNORECASE)
_NAMED_LABEL = re.compile(rf"[\s>#/:;,.+-]{{0,20}}({NAME}|[A-Z]{{2,12}})[\s:,;]+", re.IGNORECASE)
_LEGEND = re.compile(r"\bLegend\b|(?:^|[\s>#])(?:X|SYS|SOC|NODE|PHB|PXB|PIX|NV#|OK)\s{1,8}=\s", re.IGNORECASE)
_LOST_CELL = re.compile(r"(?<!\S)(?:X|PIX|PXB|PHB|NODE|SYS|SOC|NV[1-9]\d{0,2})(?!\S)", re.IGNORECASE)
_NIC_NAME = re.compile(r"(?:^|[\s>#])(NIC\d{1,3})\s{0,8}[:=]\s{0,8}([\w.-]{1,80})", re.IGNORECASE)
_DECORATION = " \t>#/+-"  # before a line, in quotations, comments and patches
# For broken lines; compiled (and cached by ``re``) only when needed.
_FRAGMENT = r"(?:[A-Z]{0,3}|NV\d{0,2}|[\d,-]{0,40}(?:N/?)?|\.{0,2})"  # part of a word that is broken again
_REST = r"[,-]\d[\d,-]{0,40}\s*"  # the rest of a NUMA affinity that was broken: "-1" of "0-1"
_REST_OF_BROKEN = r"(?:[\d,-]{1,40}\s*(?:N/A\s*)?|N/A\s*)"  # the same where the header is broken too: "2-13" of "12-13"
_COMMAND = re.compile(r"topo\s{1,8}(?:-(?P<short>mp?)\b|--matrix(?P<long>_pci)?\b)")


class MatrixRow(msgspec.Struct, frozen=True):
    """A row of the matrix."""

    number: int  # of its first line
    text: str  # as pasted, for messages
    mark: str  # the last character before its label
    label: str
    body: str  # the text after the label, with FOLD at line breaks
    scanned: CellScan

    @property
    def tail(self) -> str:
        """The text after the last cell."""
        return self.body[self.scanned.end :]


class MatrixBlock:
    """One matrix in the text; lines are added one by one."""

    def __init__(self, header: MatrixHeader | None, pci_only: bool | None) -> None:
        self.header = header
        self.is_header_broken = False  # it was joined from several lines
        self.pci_only = pci_only  # whether the command before it was `topo -mp`; None: no command
        self.rows: list[MatrixRow] = []
        self.legend: list[str] = []
        self.lost_rows = 0  # lines before the first row that have cells and no label of a device

    @property
    def number(self) -> int:
        """The number of its first row; of its header where no row can be parsed."""
        return self.rows[0].number if self.rows or self.header is None else self.header.number

    @property
    def names_matrix(self) -> bool:
        """True if the header is that of a matrix, and not a name of one GPU in a sentence."""
        return self.header is not None and bool(len(self.header.labels) > 1 or self.header.affinity)

    @property
    def is_p2p(self) -> bool:
        """True if this is a matrix of `topo -p2p`, which looks the same and has no links."""
        cells = [cell for row in self.rows for cell in row.scanned.cells if cell != SELF]
        of_p2p = sum(cell in P2P for cell in cells)
        return of_p2p > len(cells) // 2 or any(re.search(r"\bOK\s+=", line) for line in self.legend)

    @property
    def nic_names(self) -> dict[str, str]:
        """The NIC legend: "NIC0" to "mlx5_0"."""
        return {spell_label(found[1]): found[2] for line in self.legend for found in _NIC_NAME.finditer(line)}


def find_blocks(lines: list[PastedLine]) -> list[MatrixBlock]:
    """Return every matrix in the text, in order. Without rows, it is one whose rows are missing or have no labels."""
    finder = _BlockFinder()
    for line in lines:
        finder.add_line(line)
    return [block for block in finder.blocks if block.rows or block.lost_rows or block.names_matrix]


def _row_starts(text: str, header: MatrixHeader | None) -> list[re.Match[str]]:
    """Find the starts of rows in a line: usually one, several where line ends were lost."""
    starts = [label for label in _LABEL.finditer(text) if cells_start_at(text, label.end())]
    if starts or header is None:
        return starts
    named = _NAMED_LABEL.match(text)
    return [named] if named and named[1] in header.labels and cells_start_at(text, named.end()) else []


class _BlockFinder:
    """The state of the search through the lines."""

    def __init__(self) -> None:
        self.blocks: list[MatrixBlock] = []
        self.pci_only: bool | None = None
        self.prefix = ""  # the text before the last row's label: quotation, comment signs, indentation
        self.folds = 0  # lines joined to the open header or row
        self.header_open = False  # the last line belongs to a header
        self.row_open = False  # the last line belongs to a row
        self.in_legend = False

    def add_line(self, line: PastedLine) -> None:
        if not (self.row_open or self.header_open or _INTERESTING.search(line.text)):
            return
        starts = _row_starts(line.text, self.blocks[-1].header if self.blocks else None)
        if not starts:
            self._add_text(line, line.text)
            return
        before = line.text[: starts[0].start(1)]
        if parse_header(before, line.number) or scan_cells(before).cells:
            self._add_text(line, before)
        self.prefix = before
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            text = line.text[start.start(1) : following.start(1) if following else None]
            text, word, legend = text.partition("Legend")  # on one line with a row where line ends were lost
            body = text[len(start[1]) :][:MAX_BODY]
            columns = _size(self.blocks[-1].header)[0] if self.blocks else 0
            self._add_row(
                MatrixRow(
                    line.number,
                    text.strip(),
                    before.rstrip()[-1:],
                    spell_label(start[1]),
                    body,
                    scan_cells(body, columns),
                )
            )
            if word:
                self._add_legend(word + legend)

    def _add_row(self, row: MatrixRow) -> None:
        if not self.blocks or self.in_legend:
            if not row.label.startswith("GPU"):
                return  # a NIC's row without a matrix
            self._start_block(None)
        self.blocks[-1].rows.append(row)
        if len(self.blocks[-1].rows) > MAX_ROWS:
            raise ParseError(f"topo -m: more than {MAX_ROWS} rows before line {row.number}. Paste one machine's matrix")
        self.row_open, self.header_open, self.folds = True, False, 0

    def _add_text(self, line: PastedLine, text: str) -> None:
        if command := _COMMAND.search(text):
            self.pci_only = command["short"] == "mp" or command["long"] is not None
        if self.header_open and self._continue_header(text):
            return
        if header := parse_header(text, line.number):
            self._start_block(header)
            self.header_open = True
        elif not (self.row_open and self._continue_row(text)):
            self.header_open = self.row_open = False
            if self.blocks and not self.blocks[-1].rows and len(_LOST_CELL.findall(text)) > 1:
                self.blocks[-1].lost_rows += 1
            self._add_legend(text)

    def _start_block(self, header: MatrixHeader | None) -> None:
        self.blocks.append(MatrixBlock(header, self.pci_only))
        if len(self.blocks) > MAX_BLOCKS:
            raise ParseError(f"topo -m: more than {MAX_BLOCKS} matrices in the text. Paste one machine's matrix")
        self.row_open = self.in_legend = False
        self.folds = 0

    def _continue_header(self, text: str) -> bool:
        """Join the line to the header above, if that names more columns and none of them twice."""
        header = self.blocks[-1].header
        words = text.lstrip(_DECORATION)
        again = FIRST_GPU.match(words)
        if header is None or (again and spell_label(again[0]) in header.labels) or not words or self.folds >= MAX_FOLDS:
            return False
        joined = parse_header(header.text + FOLD + words, header.number)
        if joined is None or msgspec.structs.replace(joined, text=header.text, cut=header.cut) == header:
            return False
        whole = (
            joined.labels if joined.affinity else joined.labels[:-1]
        )  # the last name may be broken: "GPU1" of "GPU12"
        if len(set(whole)) < len(whole):
            return False
        self.blocks[-1].header = joined
        self.blocks[-1].is_header_broken = True
        self.folds += 1
        return True

    def _continue_row(self, text: str) -> bool:
        """Join the line to the row above, if the row is incomplete and nothing is left over."""
        block, row = self.blocks[-1], self.blocks[-1].rows[-1]
        columns, wanted = _size(block.header)
        complete = len(row.scanned.cells) >= columns and len(affinity_words(row.tail, wanted)[0]) >= wanted
        more = text[_shared_prefix_length(self.prefix, text) :]
        rest = _REST_OF_BROKEN if block.is_header_broken and not row.body[-1:].isspace() else _REST
        is_rest = re.fullmatch(rest, more)
        if self.folds >= MAX_FOLDS or not more.strip() or (block.header and complete and not is_rest):
            return False
        body = row.body + FOLD + more
        longer = msgspec.structs.replace(
            row, body=body, text=row.text + " " + text.strip(), scanned=scan_cells(body, columns)
        )
        words, rest = affinity_words(longer.tail, wanted)
        if not re.fullmatch(_FRAGMENT, rest, re.IGNORECASE) or len(words) > len(AFFINITY_COLUMNS):
            return False
        block.rows[-1] = longer
        self.folds += 1
        return True

    def _add_legend(self, text: str) -> None:
        if self.blocks and self.blocks[-1].rows and (_LEGEND.search(text) or _NIC_NAME.search(text)):
            self.blocks[-1].legend.append(text)
            self.in_legend = True


def _shared_prefix_length(prefix: str, text: str) -> int:
    """The number of characters that two lines have in common at the start."""
    return next(
        (at for at, pair in enumerate(zip(prefix, text, strict=False)) if pair[0] != pair[1]),
        min(len(prefix), len(text)),
    )


def _size(header: MatrixHeader | None) -> tuple[int, int]:
    return (len(header.labels), len(header.affinity)) if header else (0, 0)
