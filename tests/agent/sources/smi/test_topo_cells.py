"""Cells are recognised even if glued, broken or spelled differently."""

from __future__ import annotations

import pytest

from agent.sources.smi.topo.words import FOLD, MAX_CELLS, cells_start_at, scan_cells


@pytest.mark.parametrize(
    ("body", "cells", "rest"),
    [
        pytest.param("\t X \tNV12\tSYS\t0-63", ["X", "NV12", "SYS"], "\t0-63", id="tabs"),
        pytest.param(
            "X NV1 PIX PXB PHB NODE SYS", ["X", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"], "", id="all words"
        ),
        pytest.param(" X SOC", ["X", "SYS"], "", id="SOC is the old name of SYS"),
        pytest.param("x nv4 sys", ["X", "NV4", "SYS"], "", id="lower case"),
        pytest.param("SYSSYSPIXXNV12NV1NODE", ["SYS", "SYS", "PIX", "X", "NV12", "NV1", "NODE"], "", id="glued"),
        pytest.param("NV120-23,48", ["NV12"], "0-23,48", id="glued to a CPU list"),
        pytest.param("SYSX0-15", ["SYS", "X"], "0-15", id="X glued to a CPU list"),
        pytest.param(f"NV1{FOLD}24-47", ["NV1"], f"{FOLD}24-47", id="a line broken before a CPU list"),
        pytest.param(f"NV1{FOLD}8 S{FOLD}YS NO{FOLD}DE", ["NV18", "SYS", "NODE"], "", id="lines broken inside cells"),
        pytest.param(f"NV120{FOLD}-23,48", ["NV12"], f"0{FOLD}-23,48", id="glued to a CPU list that is broken"),
        pytest.param("NV0 SYS", ["?NV0", "SYS"], "", id="no links are no link"),
        pytest.param("X, SYS; PIX", ["X", "SYS", "PIX"], "", id="other separators"),
        pytest.param("X ... NV4", ["X", "...", "NV4"], "", id="an ellipsis is a column"),
        pytest.param("X ERR SYS", ["X", "?ERR", "SYS"], "", id="a word that is no cell stands for one between cells"),
        pytest.param("X C2C 0-63", ["X"], " C2C 0-63", id="a word that is no cell ends the cells behind them"),
        pytest.param("X OK NS CNS", ["X", "OK", "NS", "CNS"], "", id="cells of topo -p2p"),
        pytest.param("X <-- SYS", ["X"], " <-- SYS", id="a remark"),
        pytest.param("0 15", [], "0 15", id="no cells"),
    ],
)
def test_cells_are_read_up_to_the_first_other_word(body: str, cells: list[str], rest: str) -> None:
    seen = scan_cells(body)

    assert (list(seen.cells), body[seen.end :]) == (cells, rest)


@pytest.mark.parametrize(
    ("body", "cells", "rest"),
    [
        pytest.param("X C2C 0-63", ["X", "?C2C"], " 0-63", id="a word that is no cell"),
        pytest.param("X ERR! 0-63", ["X", "?ERR!"], " 0-63", id="an error"),
        pytest.param("X ? - 0-63", ["X", "?", "?"], " 0-63", id="nothing known"),
        pytest.param("X ? ? ? ?", ["X", "?", "?"], " ? ?", id="not more than there are columns"),
        pytest.param("X N/A N/A", ["X"], " N/A N/A", id="affinities"),
        pytest.param("X SYS SY", ["X", "SYS"], " SY", id="the beginning of a cell"),
        pytest.param("X SYS SYS SYS ERR", ["X", "SYS", "SYS", "SYS"], " ERR", id="a row that is too long"),
    ],
)
def test_behind_the_last_cell_unknown_words_count_up_to_the_header_s_columns(
    body: str, cells: list[str], rest: str
) -> None:
    seen = scan_cells(body, columns=3)

    assert (list(seen.cells), body[seen.end :]) == (cells, rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("  X", True), ("NV1", True), ("? X", True), ("C2C X", True), ("ERR!", True), ("... X", False), ("not", False)],
)
def test_a_row_starts_with_a_cell_or_a_placeholder(text: str, *, expected: bool) -> None:
    assert cells_start_at(text, 0) == expected


def test_a_very_long_row_is_read_up_to_a_limit() -> None:
    assert len(scan_cells("SYS " * 10_000).cells) == MAX_CELLS


def test_the_place_of_the_last_cell_is_known() -> None:
    assert scan_cells("  X   NV4   0").last_start == 6
