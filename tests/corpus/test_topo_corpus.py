"""Every recorded `topo -m` gives the islands and NUMA nodes of its index row, also after any paste.

The recordings are not part of this repository: the tests are skipped where they are missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.sources.errors import ParseError
from agent.sources.smi.topo import parse_topo
from tests.topo_text import HARMLESS, damaged, in_terminal, islands, numa, said

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
INDEX = CORPUS / "index.jsonl"
ROWS = [json.loads(line) for line in INDEX.read_text().splitlines()] if INDEX.exists() else []
MATRICES = [row for row in ROWS if row["kind"].startswith("topo-m")]

pytestmark = pytest.mark.skipif(not ROWS, reason="the recordings are not beside this repository")


def _text(row: dict[str, Any]) -> str:
    return (CORPUS / str(row["file"])).read_bytes().decode()


@pytest.mark.parametrize("row", MATRICES, ids=lambda row: row["file"])
def test_a_recording_gives_the_islands_numa_nodes_and_nics_of_its_index_row(row: dict[str, Any]) -> None:
    matrix = parse_topo(_text(row))
    nodes = numa(matrix)

    assert islands(matrix) == row["islands"]
    assert (nodes if any(node is not None for node in nodes) else None) == row["numa"]
    assert (len(matrix.gpus), len(matrix.nics), matrix.nvlink_shown) == (row["gpus"], row["nics"], True)
    assert matrix.problems or row["kind"] == "topo-m"


@pytest.mark.parametrize("row", [row for row in ROWS if row not in MATRICES], ids=lambda row: row["file"])
def test_text_without_a_matrix_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ParseError, match="topo -m"):
        parse_topo(_text(row))


@pytest.mark.parametrize("change", HARMLESS)
def test_a_paste_that_only_changes_the_form_changes_nothing(change: str) -> None:
    for row in MATRICES:
        text = _text(row)
        assert said(parse_topo(HARMLESS[change](text))) == said(parse_topo(text)), row["file"]


@pytest.mark.parametrize("joined", [False, True], ids=["line by line", "joined"])
@pytest.mark.parametrize("width", range(60, 240, 13))
def test_a_terminal_of_any_width_changes_no_cell_and_hides_no_numa_node_without_an_error(
    width: int, *, joined: bool
) -> None:
    for row in MATRICES:
        text = _text(row).replace("\x1b[4m", "").replace("\x1b[0m", "")
        whole, matrix = parse_topo(text), parse_topo(in_terminal(text, width, joined=joined))

        assert matrix.cells == whole.cells, row["file"]
        assert numa(matrix) == numa(whole) or set(matrix.problems) - set(whole.problems), row["file"]


@pytest.mark.parametrize("row", MATRICES[::4], ids=lambda row: row["file"])
def test_damage_is_repaired_or_refused_or_said(row: dict[str, Any]) -> None:
    text = _text(row)
    whole = parse_topo(text)
    for name, rest in damaged(text, step=11):
        try:
            matrix = parse_topo(rest)
        except ParseError:
            continue
        known = set(matrix.problems) - set(whole.problems)
        assert islands(matrix) == islands(whole) or known, name
