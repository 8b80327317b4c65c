"""``nvidia-smi topo -p2p``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.smi.p2p import P2pMatrix, P2pStatus, parse_p2p

OK, CNS = P2pStatus.OK, P2pStatus.CHIPSET_NOT_SUPPORTED
PAIR = P2pMatrix((0, 1), ((None, OK), (CNS, None)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  X    = Self\n", id="tabs, as printed"
        ),
        pytest.param("        GPU0 GPU1\n    GPU0   X    OK\n    GPU1  CNS    X", id="blanks, indented"),
        pytest.param("GPU0 GPU1\nGPU0 X OK\nGPU1 CNS X", id="stripped"),
        pytest.param("$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\n GPU0\tX\tOK\n\n GPU1\tCNS\tX", id="after the prompt"),
        pytest.param("\t\x1b[4mGPU0\tGPU1\x1b[0m\n GPU0\tX\tOK\n GPU1\tCNS\tX", id="an underlined header"),
        pytest.param("\t[4mGPU0\tGPU1[0m\n GPU0\tX\tOK\n GPU1\tCNS\tX", id="an underlined header that lost its ESC"),
        pytest.param(
            "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n\n GPU0 GPU1\n GPU0 X OK\n GPU1 CNS X\nGPU0 GPU1\nGPU0 X NS\n",
            id="the first of several matrices, after a topo -m",
        ),
    ],
)
def test_a_matrix_is_found_in_any_surrounding_text(text: str) -> None:
    assert parse_p2p(text) == PAIR


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("OK", P2pStatus.OK),
        ("CNS", P2pStatus.CHIPSET_NOT_SUPPORTED),
        ("GNS", P2pStatus.GPU_NOT_SUPPORTED),
        ("TNS", P2pStatus.TOPOLOGY_NOT_SUPPORTED),
        ("DR", P2pStatus.DISABLED_BY_REGKEY),
        ("NS", P2pStatus.NOT_SUPPORTED),
        ("U", P2pStatus.UNKNOWN),
    ],
)
def test_every_word_of_the_legend_is_known(word: str, status: P2pStatus) -> None:
    matrix = parse_p2p(f" GPU2 GPU5\n GPU2 X {word}\n GPU5 OK X")

    assert matrix == P2pMatrix((2, 5), ((None, status), (P2pStatus.OK, None)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "no header line like 'GPU0 GPU1 ...'", id="empty"),
        pytest.param("Failed to initialize NVML: Unknown Error", "no header line like 'GPU0 GPU1 ...'", id="failed"),
        pytest.param("GPU0 GPU1\nGPU0 X OK", "line 1: 'GPU0 GPU1': the row of GPU1 is missing", id="row cut"),
        pytest.param("GPU0 GPU1\nGPU0 X OK\nLegend:", "line 3: 'Legend:': expected the row of GPU1", id="row lost"),
        pytest.param("GPU0 GPU1\nGPU0 X", "line 2: 'GPU0 X': 1 cells for 2 GPUs", id="cell lost"),
        pytest.param(
            "GPU0 GPU1\nGPU0 X NV4",
            "line 2: 'GPU0 X NV4': unknown value 'NV4', expected one of OK, CNS, GNS",
            id="topo -m",
        ),
        pytest.param("GPU0 GPU1\nGPU0 OK X", "'OK' on the diagonal", id="diagonal"),
        pytest.param("GPU0 GPU1\nGPU0 X X", "'X' off the diagonal", id="X elsewhere"),
        pytest.param("GPU0 GPU0\nGPU0 X X", "line 1: 'GPU0 GPU0': a GPU has two columns", id="two columns"),
    ],
)
def test_a_damaged_matrix_is_refused(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_p2p(text)

    assert why in str(refusal.value)


PIECES = st.sampled_from([" ", "\t", "\n", "GPU0", "GPU1", "X", "OK", "CNS", "U", "Legend:", "[4m"])


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_a_square_matrix_or_a_parse_error(text: str) -> None:
    try:
        matrix = parse_p2p(text)
    except ParseError:
        return

    assert {len(row) for row in matrix.status} == {len(matrix.gpus)} == {len(matrix.status)}
