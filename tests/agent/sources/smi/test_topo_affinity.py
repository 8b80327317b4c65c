"""The affinity columns of a row are read in their place, including blank ones."""

from __future__ import annotations

import pytest

from agent.sources.smi.topo.affinity import RowAffinity, affinity_words, first_run, read_affinity, split_glued_node
from agent.sources.smi.topo.words import FOLD, scan_cells


@pytest.mark.parametrize(
    ("body", "columns", "expected"),
    [
        pytest.param("\t X \t0-63\t0\t\tN/A", 3, RowAffinity("0-63", "0", None), id="all columns"),
        pytest.param(" X 0-71 0,5-11 4", 3, RowAffinity("0-71", "0,5-11", "4"), id="Grace"),
        pytest.param(" X 0-63 0-1", 2, RowAffinity("0-63", "0-1"), id="two columns"),
        pytest.param(" X 1-1", 1, RowAffinity("1-1"), id="one column"),
        pytest.param(" X 0-11, 24-35 0", 2, RowAffinity("0-11,24-35", "0"), id="a blank within the CPU list"),
        pytest.param(" x 0-63 n/a n/a", 3, RowAffinity("0-63"), id="lower case"),
        pytest.param("\t X \t\t\t\tN/A", 3, RowAffinity(), id="tabs, CPU and NUMA blank"),
        pytest.param("\t X \t\t0\t\tN/A", 3, RowAffinity(None, "0"), id="tabs, CPU blank"),
        pytest.param("\t X \t0-63\t\t\tN/A", 3, RowAffinity("0-63"), id="tabs, NUMA blank"),
        pytest.param("\t X \t\t1", 2, RowAffinity(None, "1"), id="tabs, CPU blank, two columns"),
        pytest.param("\t X \t0-63\t", 3, RowAffinity("0-63"), id="tabs, cut behind the CPUs"),
        pytest.param("\t X \t0-63\t??\t", 2, RowAffinity("0-63"), id="tabs, a word that is no affinity"),
        pytest.param(
            "    X      NODE            0               N/A", 3, RowAffinity(None, "0"), id="a gap for the CPUs"
        ),
        pytest.param("    X      NODE    0-31            N/A", 3, RowAffinity("0-31"), id="no gap before the CPUs"),
        pytest.param("    X      NODE", 3, RowAffinity(), id="nothing"),
        pytest.param(
            " X SYS 0-45,92-1370     N/A", 3, RowAffinity("0-45,92-137", "0"), id="NUMA node glued to the CPUs"
        ),
        pytest.param(" X SYS 0-150", 2, RowAffinity("0-15", "0"), id="glued to one run as long as other rows'"),
        pytest.param(" X 0-63 0 N/A 7", 3, RowAffinity("0-63"), id="a word too many"),
        pytest.param(" X 0-31 64-95 0", 2, RowAffinity(), id="a word too many: a list in parts"),
        pytest.param(" X 0-63 0 <-- my GPU 3", 2, RowAffinity("0-63", "0"), id="a remark behind"),
        pytest.param(" X 0-63 0 N/A", 0, RowAffinity("0-63", "0"), id="columns not known"),
        pytest.param(f" X 0-63,12{FOLD}8-191 0", 2, RowAffinity("0-63,128-191", "0"), id="a list broken"),
        pytest.param(f" X 0-63{FOLD}0 N/A", 3, RowAffinity("0-63", "0"), id="a line broken between two columns"),
        pytest.param(f"    X      NODE {FOLD}           0    N/A", 3, RowAffinity(), id="broken, so gaps tell nothing"),
    ],
)
def test_affinities_are_read_in_their_columns(body: str, columns: int, expected: RowAffinity) -> None:
    assert read_affinity(body, scan_cells(body), columns, run=16) == expected


def test_a_break_between_digits_is_read_so_that_the_words_fit_the_columns() -> None:
    assert affinity_words(f"0-6{FOLD}3 0", 2) == (["0-63", "0"], "")
    assert affinity_words(f"32-63{FOLD}1", 2) == (["32-63", "1"], "")
    assert affinity_words(f"0-63{FOLD}0", 2) == (["0-63", "0"], "")
    assert affinity_words(f"0-6{FOLD}3", 3) == (["0-63"], "")
    assert affinity_words(f"0-63{FOLD}N/A <- x", 4) == (["0-63", "N/A"], "<- x")


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        pytest.param(f"48-63,176-1{FOLD}91", ["48-63,176-191"], id="176-1 is no range"),
        pytest.param(f"1,3,5,7,9,1{FOLD}1", ["1,3,5,7,9,11"], id="1 does not follow on 9"),
        pytest.param(f"0-6{FOLD}3", ["0-63"], id="CPU 0 is not of node 3"),
        pytest.param("48-63,176-1 91", [], id="176-1 is no range, and no line was broken"),
        pytest.param("63-48 0", [], id="63-48 is no range"),
        pytest.param("00-63 0", [], id="no number begins with 0"),
        pytest.param("0-63 0,5-", ["0-63"], id="a list that is cut"),
    ],
)
def test_an_invalid_list_is_not_split(tail: str, words: list[str]) -> None:
    assert affinity_words(tail, 2)[0] == words


@pytest.mark.parametrize(
    ("word", "run", "parts"),
    [
        pytest.param("0-45,92-1370", None, ("0-45,92-137", "0"), id="one digit"),
        pytest.param("48-63,176-19110", None, ("48-63,176-191", "10"), id="two digits"),
        pytest.param("64-127,192-2541", None, ("64-127,192-254", "1"), id="a CPU is offline"),
        pytest.param("0-45,92-137", None, None, id="runs of one length are whole"),
        pytest.param("0-630", None, None, id="one run, and nothing to compare with"),
        pytest.param("0-630", 64, ("0-63", "0"), id="one run, and another row's"),
        pytest.param("0,2,4,60", None, None, id="single CPUs"),
        pytest.param("24-47,72", None, None, id="a list that is cut"),
        pytest.param("0-3,9-99999", None, None, id="no cut makes sense"),
    ],
)
def test_a_numa_node_glued_to_a_cpu_list_is_split_by_range_length(
    word: str, run: int | None, parts: tuple[str, str] | None
) -> None:
    assert split_glued_node(word, run) == parts


def test_the_first_run_of_a_cpu_list_is_counted() -> None:
    assert [first_run(each) for each in ("0-45,92-137", "0,2", "N/A")] == [46, None, None]
