"""Pasted text becomes plain lines."""

from __future__ import annotations

import pytest

from agent.sources.smi.topo.lines import PastedLine, clean_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("a\nb", ["a", "b"], id="lines"),
        pytest.param("a\r\nb\rc", ["a", "b", "c"], id="line ends of Windows and of the old Mac"),
        pytest.param("\t\x1b[4mGPU0\x1b[0m", ["\tGPU0"], id="colour codes"),
        pytest.param("\t[4mGPU0[0m", ["\tGPU0"], id="colour codes that lost their ESC"),
        pytest.param("^[[4mGPU0\\u001b[0m \\x1b[1;31mX \\033[0m", ["GPU0 X "], id="colour codes spelled out"),
        pytest.param("\x1b]0;title\x07GPU0", ["GPU0"], id="a terminal's title"),
        pytest.param("[mlx5_0] [0]", ["[mlx5_0] [0]"], id="brackets that are no codes stay"),
        pytest.param("\ufeffGPU0\xa0X\u3000NV1", ["GPU0 X NV1"], id="byte order mark and wide blanks"),
        pytest.param("ＧＰＵ０ 0–63 …", ["GPU0 0-63 ..."], id="full width, dash, ellipsis"),  # noqa: RUF001
        pytest.param("\u00d7 \u0425 \u2716", ["X X X"], id="other letters and crosses for X"),
        pytest.param(',GPU0,mlx5_0\nGPU0,X,"0-3,8",0\na,b', ["\tGPU0\tmlx5_0", "GPU0\tX\t0-3,8\t0", "a,b"], id="CSV"),
        pytest.param("GPU0\x1f\x00X", ["GPU0  X"], id="control characters are blanks"),
        pytest.param("GPU0&nbsp;X&#9;NV1&lt;&hellip;", ["GPU0 X\tNV1<..."], id="entities"),
        pytest.param("&#99999999999;&unknown;", ["&#99999999999;&unknown;"], id="other entities stay"),
        pytest.param("<pre>a<br/>b</pre>", ["", "a", "b", ""], id="tags that break lines"),
        pytest.param("<tr><td>a</td><td><b>b</b></td></tr>", ["", " a  b ", ""], id="a table's tags"),
        pytest.param("X  <-- GPU 2 < 3", ["X  <-- GPU 2 < 3"], id="less-than signs that are no tags"),
        pytest.param('"\\tGPU0\\nGPU0\\tX mlx5\\_0"', [" \tGPU0", "GPU0\tX mlx5_0 "], id="a JSON string"),
        pytest.param("| `GPU0` | **X** |", ["   GPU0      X    "], id="Markdown"),
        pytest.param("a\n\n\n\nb", ["a", "", "b"], id="one of several blank lines"),
        pytest.param("", [""], id="nothing is one blank line"),
    ],
)
def test_decoration_is_removed(text: str, lines: list[str]) -> None:
    assert [line.text for line in clean_lines(text)] == lines


def test_lines_keep_the_number_that_a_person_counts() -> None:
    assert clean_lines("a\n\n\nb") == [PastedLine(1, "a"), PastedLine(2, ""), PastedLine(4, "b")]


def test_lines_of_two_writers_are_grouped_if_each_has_a_header() -> None:
    text = "0: GPU0 GPU1\n1: GPU0 GPU1\n1: GPU0 X\nnote\n0: GPU0 X"

    assert [line.text for line in clean_lines(text)] == [
        "0: GPU0 GPU1",
        "0: GPU0 X",
        "1: GPU0 GPU1",
        "1: GPU0 X",
        "note",
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("INFO: GPU0 GPU1\nWARN: other\nINFO: GPU0 X", id="one writer wrote the matrix"),
        pytest.param("GPU0 GPU1 CPU Affinity\nNIC0: mlx5_0\nX: y", id="no writer is named before the header"),
        pytest.param("a: GPU0 = GPU1\nb: GPU0 = GPU1\na: x", id="no headers"),
    ],
)
def test_other_lines_keep_their_order(text: str) -> None:
    assert [line.text for line in clean_lines(text)] == text.split("\n")
