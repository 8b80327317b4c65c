"""`topo -m` text for tests: machines printed as drivers of several eras do, and what a paste does to them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator

import msgspec

from agent.sources.kernel_list import parse_single_number
from agent.sources.smi.topo import Cell, TopoMatrix
from gputopo.model import PcieDistance


def islands(matrix: TopoMatrix) -> list[list[int]]:
    """Connected components over NVLinks, islands of one included."""
    indices = [gpu.index for gpu in matrix.gpus]
    label = {index: index for index in indices}
    for i, row in enumerate(matrix.cells):
        for j, cell in enumerate(row):
            if isinstance(cell, int) and label[indices[i]] != label[indices[j]]:
                old, new = label[indices[j]], label[indices[i]]
                label = {index: new if at == old else at for index, at in label.items()}
    groups: dict[int, list[int]] = {}
    for index in indices:
        groups.setdefault(label[index], []).append(index)
    return sorted(groups.values())


def numa(matrix: TopoMatrix) -> list[int | str | None]:
    """The NUMA node of each GPU: an integer where there is one, else the text, None where unknown."""
    texts = [gpu.numa_affinity for gpu in matrix.gpus]
    return [text if (node := parse_single_number(text)) is None else node for text in texts]


def said(matrix: TopoMatrix) -> object:
    """The content of a matrix without its problems and without the names of its NICs."""
    return islands(matrix), numa(matrix), matrix.cells, matrix.nvlink_shown


class Machine(msgspec.Struct, frozen=True):
    """The facts about a machine that nvidia-smi prints."""

    cells: tuple[tuple[Cell, ...], ...]
    nics: tuple[tuple[PcieDistance, ...], ...]  # a row per NIC, a distance per GPU
    cpus: tuple[str, ...]  # per GPU
    numa: tuple[str, ...]


class Era(msgspec.Struct, frozen=True):
    """The format of nvidia-smi in the drivers of some years."""

    columns: int  # affinity columns: CPU, NUMA, GPU NUMA ID
    nic_columns: str  # "mlx5_" or "NIC"
    underlined: bool = False  # the header in ESC[4m ... ESC[0m
    system: str = "SYS"
    tab_after_nic_rows: int = 0
    legend: bool = True


ERAS = {
    "361-soc": Era(1, "mlx5_", system="SOC"),
    "418": Era(1, "mlx5_"),
    "470": Era(2, "mlx5_", tab_after_nic_rows=1),
    "525": Era(2, "NIC", tab_after_nic_rows=2),
    "550": Era(3, "NIC", tab_after_nic_rows=4),
    "580-terminal": Era(3, "NIC", underlined=True, tab_after_nic_rows=4),
    "580-no-legend": Era(3, "NIC", legend=False),
}
_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def _word(cell: Cell, era: Era) -> str:
    if cell is None:
        return " X "
    if isinstance(cell, int):
        return f"NV{cell}"
    return era.system if cell is PcieDistance.SYS else cell.value


def printed(machine: Machine, era: Era) -> str:
    """The text that nvidia-smi of that era prints for that machine."""
    gpus, nics = len(machine.cells), len(machine.nics)
    names = [f"GPU{i}" for i in range(gpus)] + [f"{era.nic_columns}{i}" for i in range(nics)]
    header = "\t".join([*names, *["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][: era.columns]])
    lines = [f"\t\x1b[4m{header}\x1b[0m" if era.underlined else f"\t{header}"]
    for i, row in enumerate(machine.cells):
        cells = [_word(cell, era) for cell in row] + [_word(nic[i], era) for nic in machine.nics]
        affinity = [machine.cpus[i], machine.numa[i] + "\t" * (era.columns > 2), "N/A"][: era.columns]
        lines.append("\t".join([f"GPU{i}", *cells, *affinity]))
    for i, row in enumerate(machine.nics):
        between = [" X " if i == j else _word(PcieDistance.NODE, era) for j in range(nics)]
        cells = [*(_word(cell, era) for cell in row), *between]
        lines.append("\t".join([f"{era.nic_columns}{i}", *cells]) + "\t" * era.tab_after_nic_rows)
    legend = _LEGEND if era.legend else ""
    if era.legend and era.nic_columns == "NIC" and nics:
        legend += "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(nics))
    return "\n".join(lines) + "\n" + legend


Change = Callable[[str], str]


def _each_line(change: Change) -> Change:
    return lambda text: "\n".join(change(line) for line in text.split("\n"))


def _before(prefix: str) -> Change:
    return _each_line(lambda line: prefix + line)


def _folded(width: int, *, strip: bool) -> Change:
    def fold(text: str) -> str:
        lines = text.expandtabs(8).split("\n")
        parts = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
        return "\n".join(part.rstrip() for part in parts) if strip else "\n".join(parts)

    return fold


def _word_wrapped(width: int) -> Change:
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return lambda text: _each_line(wrap.fill)(text.expandtabs(8))


def _then(*changes: Change) -> Change:
    def apply(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return apply


def _two_writers(first: str, second: str) -> Change:
    return _each_line(lambda line: f"{first}{line}\n{second}{line}")


_CELL = r"NV\d+|SYS|SOC|PIX|PHB|PXB|NODE"
P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"

# What pasting, logging and quoting do, all of it harmless: the matrix read must be the same.
HARMLESS: dict[str, Change] = {
    "as printed": lambda text: text,
    "stripped, as vLLM's collect_env does": str.strip,
    "every line stripped": _each_line(str.strip),
    "tabs to columns of 8": lambda text: text.expandtabs(8),
    "tabs to columns of 4": lambda text: text.expandtabs(4),
    "each tab to one blank": lambda text: text.replace("\t", " "),
    "runs of blanks to one": lambda text: re.sub(r"[ \t]+", " ", text),
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "old Mac line ends": lambda text: text.replace("\n", "\r"),
    "byte order mark": lambda text: "\ufeff" + text,
    "no-break spaces": lambda text: text.expandtabs(8).replace(" ", "\xa0"),
    "full-width spaces": lambda text: text.expandtabs(8).replace(" ", "\u3000"),
    "HTML entities": lambda text: text.expandtabs(8).replace(" ", "&nbsp;"),
    "HTML pre": lambda text: f"<pre><code>{text}</code></pre>",
    "HTML line breaks": lambda text: text.replace("\n", "<br>\n"),
    "escape codes that lost their ESC": lambda text: text.replace("\x1b", "").replace("GPU0", "[4mGPU0", 1),
    "escape codes as cat -v shows them": lambda text: text.replace("\x1b", "^["),
    "JSON string": lambda text: json.dumps({"topo": text}),
    "all on one line": lambda text: text.replace("\n", " "),
    "blank lines between": lambda text: text.replace("\n", "\n\n"),
    "trailing blanks": _each_line(lambda line: line + " " * 30),
    "lower case": str.lower,
    "Markdown fence with prose": lambda text: f"```\n$ nvidia-smi topo -m\n{text}\n```\nGPU0 and GPU1: NV4\n",
    "right behind the prompt": lambda text: "user@host:~$ nvidia-smi topo -m" + text,
    "Markdown table": _each_line(lambda line: "| " + re.sub(r"\t| {2,}", " | ", line.strip()) + " |"),
    "shell comments": _before("# "),
    "mail quotation": _before("> "),
    "code comments": _before("// "),
    "patch": _before("+"),
    "indented": _before("    "),
    "line numbers": lambda text: "\n".join(f"{i:4d}  {line}" for i, line in enumerate(text.split("\n"))),
    "log prefix": _before("2024-05-01 12:00:00,123 INFO "),
    "srun -l": _before("0: "),
    "two srun tasks interleaved": _two_writers("0: ", "1: "),
    "two hosts interleaved": _two_writers("[node-1] ", "[node-2] "),
    "pasted twice": lambda text: text + "\n" + text,
    "topo -p2p behind it": lambda text: f"{text}\n{P2P}",
    "topo -p2p before it": lambda text: f"{P2P}\n{text}",
    "cells glued": lambda text: re.sub(rf"({_CELL})[ \t]+(?={_CELL})", r"\1", text),
    "header glued": lambda text: re.sub(r"((?:GPU|NIC)\d+)[ \t]+(?=(?:GPU|NIC)\d)", r"\1", text, count=30),
    **{f"terminal of {width}": _folded(width, strip=False) for width in (60, 80, 100, 120, 132, 160, 200)},
    **{f"terminal of {width}, stripped": _folded(width, strip=True) for width in (72, 80, 120, 160)},
    **{f"terminal of {width}, quoted": _then(_folded(width, strip=True), _before("> ")) for width in (80, 120)},
    **{f"terminal of {width}, indented": _then(_folded(width, strip=True), _before("    ")) for width in (80, 120)},
    **{f"word-wrapped at {width}": _word_wrapped(width) for width in (72, 100)},
}  # fmt: skip


def in_terminal(text: str, width: int, *, joined: bool) -> str:
    """Return the text as a terminal of this width shows it; words after a tab beyond the last column have no gap.

    ``joined``: as copied from a terminal that knows which lines it broke.
    """
    shown = []
    for line in text.split("\n"):
        column = 0
        for character in line:
            if character == "\t":
                stop = max(column, min(column // 8 * 8 + 8, width - 1))
                shown.append(" " * (stop - column))
                column = stop
                continue
            if column >= width:
                shown.append("" if joined else "\n")
                column = 0
            shown.append(character)
            column += 1
        shown.append("\n")
    return "".join(shown)


def _matrix_part(text: str) -> str:
    end = text.find("Legend")
    return text if end < 0 else text[:end]


def damaged(text: str, step: int) -> Iterator[tuple[str, str]]:
    """Damage of every kind at every ``step``-th place: its name, and what is left of the text."""
    body, lines = _matrix_part(text), text.split("\n")
    for at in range(0, len(body), step):
        yield f"cut after {at}", text[:at]
        yield f"cut before {at}", text[at:]
        yield f"without character {at}", text[:at] + text[at + 1 :]
    for match in list(re.finditer(r"\S+\s?", body))[::step]:
        yield f"without word {match.start()}", text[: match.start()] + text[match.end() :]
        yield f"word {match.start()} twice", text[: match.end()] + text[match.start() :]
    for at in range(len(lines)):
        yield f"without line {at}", "\n".join(lines[:at] + lines[at + 1 :])
    for width in range(8, 200, step):
        yield f"clipped at {width}", "\n".join(line[:width] for line in text.expandtabs(8).split("\n"))
    folded = _folded(80, strip=False)(text).split("\n")
    for at in range(0, len(folded), step):
        yield f"folded, without line {at}", "\n".join(folded[:at] + folded[at + 1 :])
