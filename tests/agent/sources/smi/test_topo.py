"""A pasted `topo -m` becomes a matrix, and damage becomes problems."""

from __future__ import annotations

import re

import pytest

from agent.sources.errors import ParseError
from agent.sources.smi.topo import Cell, TopoGpu, TopoMatrix, TopoNic, parse_topo
from gputopo.model import FactGroup, PcieDistance, ProblemKind
from tests.topo_text import P2P, islands, numa

SYS, NODE, PIX, PXB = PcieDistance.SYS, PcieDistance.NODE, PcieDistance.PIX, PcieDistance.PXB

PAIR = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPIX\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t
"""
LEGEND = """
Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_3
"""
RING = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV2     SYS     NV1     0-31            0
GPU1    NV2      X      NV1     SYS     0-31            0
GPU2    SYS     NV1      X      NV2     32-63           1
GPU3    NV1     SYS     NV2      X      32-63           1
"""


def problems(matrix: TopoMatrix) -> list[tuple[str, str]]:
    return [(problem.what, problem.why) for problem in matrix.problems]


def upper(matrix: TopoMatrix) -> list[Cell]:
    """The cells above the diagonal, row by row."""
    return [cell for i, row in enumerate(matrix.cells) for cell in row[i + 1 :]]


def test_a_whole_paste_is_read_exactly() -> None:
    assert parse_topo(PAIR + LEGEND) == TopoMatrix(
        gpus=(
            TopoGpu(index=0, cpu_affinity="0-31", numa_affinity="0"),
            TopoGpu(index=1, cpu_affinity="32-63", numa_affinity="1"),
        ),
        cells=((None, 4), (4, None)),
        nics=(TopoNic(label="NIC0", name="mlx5_3", distances=(PIX, SYS)),),
        nvlink_shown=True,
        problems=(),
    )


def test_a_nic_without_legend_has_no_name() -> None:
    assert parse_topo(PAIR).nics == (TopoNic(label="NIC0", name=None, distances=(PIX, SYS)),)


def test_an_old_driver_names_nics_in_the_columns_and_calls_sys_soc() -> None:
    text = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-5\nGPU1\tSOC\t X \tSOC\t6-11\n"
    matrix = parse_topo(text)

    assert matrix.cells == ((None, SYS), (SYS, None))
    assert matrix.nics == (TopoNic(label="mlx5_0", name="mlx5_0", distances=(PcieDistance.PHB, SYS)),)


def test_a_ring_is_one_island() -> None:
    matrix = parse_topo(RING)

    assert upper(matrix) == [2, SYS, 1, 1, SYS, 2]
    assert (islands(matrix), numa(matrix), problems(matrix)) == ([[0, 1, 2, 3]], [0, 0, 1, 1], [])


@pytest.mark.parametrize(
    ("text", "shown", "problem"),
    [
        pytest.param("GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\n", True, [], id="no legend"),
        pytest.param(
            "GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\nLegend:\n  PIX  = bridge\n  NV#  = NVLinks\n",
            True,
            [],
            id="the legend explains NV#",
        ),
        pytest.param(
            "GPU0 GPU1 CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\nLegend:\n  PHB  = host\n  PXB  = bridges\n"
            "  PIX  = bridge\n",
            False,
            ["the legend does not explain NV#: NVLinks are not shown by `topo -mp`; use `nvidia-smi topo -m`"],
            id="the legend ends at PIX, as topo -mp prints it",
        ),
        pytest.param(
            "GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0\nGPU1 PIX X 0\nLegend:\n  X = Self\n  PIX  = bridge\n",
            True,
            [],
            id="a legend shortened by hand to the words of the matrix",
        ),
        pytest.param(
            "$ nvidia-smi topo -mp\nGPU0 GPU1 CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\n",
            False,
            ["the legend does not explain NV#: NVLinks are not shown by `topo -mp`; use `nvidia-smi topo -m`"],
            id="the command before it is topo -mp",
        ),
        pytest.param(
            "topo --matrix_pci\ntopo --matrix\nGPU0 GPU1 CPU Affinity\nGPU0 X SYS 0\nGPU1 SYS X 0\n",
            True,
            [],
            id="the last command before it counts",
        ),
        pytest.param(
            "GPU0 GPU1 CPU Affinity\nGPU0 X SOC 0\nGPU1 SOC X 0\nLegend:\n  SOC  = sockets\n"
            "  PHB  = host\n  PXB  = switches\n  PIX  = switch\n",
            True,
            ["the legend does not explain NV#: a driver older than NVLink, or `topo -mp`, which does not show NVLinks"],
            id="a driver from before NVLink",
        ),
        pytest.param(
            "$ topo -mp\nGPU0 GPU1 CPU Affinity\nGPU0 X NV1 0\nGPU1 NV1 X 0\n", True, [], id="links are there"
        ),
    ],
)
def test_no_nvlink_is_only_claimed_where_nvlinks_would_show(text: str, *, shown: bool, problem: list[str]) -> None:
    matrix = parse_topo(text)

    assert (matrix.nvlink_shown, [why for _, why in problems(matrix)]) == (shown, problem)


@pytest.mark.parametrize(
    ("old", "new", "cells", "expected"),
    [
        pytest.param(
            "GPU1    NV2      X      NV1     SYS     0-31            0\n",
            "",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m rows", "no usable row for GPU1: links are taken from other rows"),
            ],
            id="a row is missing: the other rows are used",
        ),
        pytest.param(
            RING[RING.index("GPU2    SYS") :],
            "",
            [2, SYS, 1, 1, SYS, None],
            [
                ("topo -m rows", "no usable row for GPU2, GPU3: links are taken from other rows"),
                ("nvlink", "the text does not show how these are connected: GPU2-GPU3"),
            ],
            id="two rows are missing: one pair is unknown",
        ),
        pytest.param(
            "SYS     NV2      X      32-63           1\n",
            "NV2      X \n",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m row GPU3", ("line 5 (GPU3 NV1 NV2 X): its X is in column 3, not in 4, "
                "its own; the row is not used")),
                ("topo -m rows", "no usable row for GPU3: links are taken from other rows"),
            ],
            id="a cell is lost before the X: the row is set aside",
        ),
        pytest.param(
            "GPU0     X      NV2     SYS     NV1 ",
            "GPU0     X      NV2     NV1 ",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m row GPU0", "line 2 (GPU0 X NV2 NV1 0-31 0) has 3 cells for 4 columns: the first 1 are used"),
                ("topo -m rows", ("1 row is shorter than the header's 4 columns, beginning "
                "with line 2 (GPU0 X NV2 NV1 0-31 0) has 3 cells")),
            ],
            id="a cell is lost behind the X: what is before it counts",
        ),
        pytest.param(
            "GPU0     X      NV2     SYS     NV1 ",
            "GPU0     X      X      SYS     NV1 ",
            [2, SYS, 1, 1, SYS, 2],
            [
                (
                    "topo -m row GPU0",
                    "line 2 (GPU0 X X SYS NV1 0-31 0): the row has more than one X; the row is not used",
                ),
                ("topo -m rows", "no usable row for GPU0: links are taken from other rows"),
            ],
            id="two X in a row",
        ),
        pytest.param(
            "GPU0     X      NV2     SYS     NV1 ",
            "GPU0    SYS     NV2     SYS     NV1 ",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m row GPU0", ("line 2 (GPU0 SYS NV2 SYS NV1 0-31 0): SYS is in the place of "
                "its X; the row is not used")),
                ("topo -m rows", "no usable row for GPU0: links are taken from other rows"),
            ],
            id="no X in a row",
        ),
        pytest.param(
            "GPU0     X      NV2",
            "GPU0     X      SYS",
            [SYS, SYS, 1, 1, SYS, 2],
            [("topo -m GPU0-GPU1", "the row of GPU0 says SYS, the row of GPU1 says NV2: SYS is used")],
            id="a link on one side only is none",
        ),
        pytest.param(
            "GPU0     X      NV2",
            "GPU0     X      NV1",
            [1, SYS, 1, 1, SYS, 2],
            [("topo -m GPU0-GPU1", "the row of GPU0 says NV1, the row of GPU1 says NV2: NV1 is used")],
            id="the weaker side of a link counts",
        ),
        pytest.param(
            "GPU0     X      NV2     SYS",
            "GPU0     X      NV2     PIX",
            [2, SYS, 1, 1, SYS, 2],
            [("topo -m GPU0-GPU2", "the row of GPU0 says PIX, the row of GPU2 says SYS: SYS is used")],
            id="the farther distance counts",
        ),
        pytest.param(
            "GPU0     X      NV2     SYS",
            "GPU0     X      ERR     SYS",
            [2, SYS, 1, 1, SYS, 2],
            [("topo -m GPU0-GPU1", "the row of GPU0 says ERR: not a known word")],
            id="an unknown word: the other row is used",
        ),
        pytest.param(
            "    GPU3    CPU Affinity    NUMA Affinity\n",
            "    GPU8    CPU Affinity    NUMA Affinity\n",
            [2, SYS, 1, 1, SYS, 2],
            [
                (
                    "topo -m column GPU8",
                    "line 5 (GPU3 NV1 SYS NV2 X 32-63 1) has its X in the column that the header calls GPU8",
                )
            ],
            id="a wrong name in the header: the X decides",
        ),
        pytest.param(
            "        GPU0    GPU1    GPU2    GPU3    CPU",
            "    GPU2    GPU3    CPU",
            [2, SYS, 1, 1, SYS, 2],
            [
                (
                    "topo -m header",
                    "line 1 (GPU2 GPU3 CPU Affinity NUMA Affinity) names 2 columns, but rows have 4 cells",
                )
            ],
            id="a header that lost its beginning: the X decides",
        ),
        pytest.param(
            RING[: RING.index("\n") + 1],
            "",
            [2, SYS, 1, 1, SYS, 2],
            [("topo -m header", "the header line is missing: columns are named by the X of the rows")],
            id="no header: the X decides",
        ),
        pytest.param(
            "    CPU Affinity    NUMA Affinity\n",
            "\n",
            [2, SYS, 1, 1, SYS, 2],
            [("topo -m columns", "line 1 (GPU0 GPU1 GPU2 GPU3) ends after GPU3: columns may be missing on the right")],
            id="no affinity columns",
        ),
        pytest.param(
            "    CPU Affinity    NUMA Affinity\n",
            "    CPU Affinity    NUM\n",
            [2, SYS, 1, 1, SYS, 2],
            [
                (
                    "topo -m columns",
                    ("line 1 (GPU0 GPU1 GPU2 GPU3 CPU Affinity NUM) ends after "
                    "CPU Affinity: columns may be missing on the right"),
                ),
                *[
                    (f"gpus.{i}.numaNode", (f"line {i + 2} ({line}) has more words after its cells than "
                    "the header has columns"))
                    for i, line in enumerate(" ".join(each.split()) for each in RING.splitlines()[1:])
                ],
            ],
            id="an affinity column that is cut",
        ),
        pytest.param(
            "GPU2    GPU3",
            "GPU2    NIC0",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m column NIC0", ("line 5 (GPU3 NV1 SYS NV2 X 32-63 1) has its X in the column "
                "that the header calls NIC0")),
            ],
            id="a GPU's column called a NIC: the X decides",
        ),
        pytest.param(
            "GPU1    GPU2",
            "GPU1    ",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m header", ("line 1 (GPU0 GPU1 GPU3 CPU Affinity NUMA Affinity) names 3 columns, "
                "but rows have 4 cells")),
            ],
            id="a name lost in the middle of the header: the X decides",
        ),
        pytest.param(
            "GPU3    NV1",
            "GPU4    NV1",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("topo -m row GPU4", ("line 5 (GPU4 NV1 SYS NV2 X 32-63 1) has its X in the column of GPU3: "
                "the row is used for GPU3")),
            ],
            id="a row's name misread: header and X tell",
        ),
        pytest.param(
            "32-63           1\nGPU3",
            "32-63\nGPU3",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("gpus.2.numaNode", ("line 4 (GPU2 SYS NV1 X NV2 32-63) shows no NUMA affinity, "
                "or it is glued to the CPUs")),
                ("gpus.3.numaNode", "GPU2 and GPU3 share CPUs 32-63, but show NUMA affinity None and 1"),
            ],
            id="a NUMA node is missing",
        ),
        pytest.param(
            "32-63           1\nGPU3",
            "32-63           91\nGPU3",
            [2, SYS, 1, 1, SYS, 2],
            [
                ("gpus.2.numaNode", "NUMA affinity 91 is not a NUMA node, but the rest of a CPU list: not used"),
                ("gpus.2.numaNode", "its row shows no NUMA affinity, though others do"),
                ("gpus.3.numaNode", "GPU2 and GPU3 share CPUs 32-63, but show NUMA affinity None and 1"),
            ],
            id="a NUMA node that is too large",
        ),
        pytest.param(
            "32-63           1\nGPU3",
            "N/A             N/A\nGPU3",
            [2, SYS, 1, 1, SYS, 2],
            [("gpus.2.numaNode", "its row shows no NUMA affinity, though others do")],
            id="a NUMA node is not known",
        ),
        pytest.param(
            "32-63           1\nGPU3",
            "32-63           7\nGPU3",
            [2, SYS, 1, 1, SYS, 2],
            [("gpus.3.numaNode", "GPU2 and GPU3 share CPUs 32-63, but show NUMA affinity 7 and 1")],
            id="CPUs shared, but not the NUMA node",
        ),
    ],
)  # fmt: skip
def test_damage_is_repaired_where_possible_and_always_a_problem(
    old: str, new: str, cells: list[Cell], expected: list[tuple[str, str]]
) -> None:
    assert RING.count(old) == 1
    matrix = parse_topo(RING.replace(old, new))

    assert problems(matrix)[: len(expected)] == expected
    assert upper(matrix)[: len(cells)] == cells


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        pytest.param("GPU0     X      NV2     SYS     NV1     0-31            0\n", [], id="a row twice"),
        pytest.param("GPU0     X      NV2\n", [], id="a row again, but cut"),
        pytest.param(
            "GPU0     X      SYS     SYS     NV1     0-31            0\n",
            [
                (
                    "topo -m row GPU0",
                    (
                        "line 2 (GPU0 X NV2 SYS NV1 0-31 0) and line 6 (GPU0 X SYS SYS NV1 0-31 0) "
                        "contradict each other: neither is used"
                    ),
                ),
                ("topo -m rows", "no usable row for GPU0: links are taken from other rows"),
            ],
            id="a row again, but different",
        ),
        pytest.param(
            "GPU0 NV4 GPU1\n",
            [
                (
                    "topo -m row GPU0",
                    (
                        "line 2 (GPU0 X NV2 SYS NV1 0-31 0) and line 6 (GPU0 NV4 GPU1) contradict each other: "
                        "the one with an X is used"
                    ),
                ),
            ],
            id="prose that looks like a row of it",
        ),
        pytest.param(
            "GPU7: NV4\n",
            [("topo -m row GPU7", "line 6 (GPU7: NV4): the header has no column for it; the row is not used")],
            id="prose that looks like a row of another GPU",
        ),
    ],
)
def test_a_duplicate_row_counts_once_if_both_agree(added: str, expected: list[tuple[str, str]]) -> None:
    matrix = parse_topo(RING + added)

    assert (upper(matrix), problems(matrix)) == ([2, SYS, 1, 1, SYS, 2], expected)


def test_without_header_a_row_that_is_short_or_long_names_no_column() -> None:
    rows = RING.splitlines()[1:]

    assert upper(parse_topo("\n".join([*rows[:3], rows[3].replace("SYS", "")]))) == [2, SYS, 1, 1, SYS, 2]
    assert upper(parse_topo("\n".join([rows[0].replace("NV2", "NV2 NV2"), *rows[1:]]))) == [2, SYS, 1, 1, SYS, 2]


def test_a_row_of_a_gpu_that_is_cut_off_in_the_middle_of_the_text_counts_to_its_x() -> None:
    matrix = parse_topo(RING.replace("NV1     SYS     NV2      X  ", "NV1     NV2      X  "))

    assert upper(matrix) == [2, SYS, 1, 1, SYS, 2]


def test_a_row_without_links_in_place_of_a_nics_is_not_used() -> None:
    """The header names a NIC in GPU2's column, and GPU2's row is missing."""
    matrix = parse_topo("\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\tX\tNV1\tNV1\t0\nGPU1\tNV1\tX\tSYS\t0\n")

    assert matrix.cells == ((None, 1), (1, None))
    assert problems(matrix)[0] == (
        "topo -m row GPU0",
        "line 2 (GPU0 X NV1 NV1 0): NIC0 is not a GPU, but has NVLinks there; the row is not used",
    )


def test_lines_that_are_all_cut_at_one_width_are_right_as_far_as_they_go() -> None:
    matrix = parse_topo("".join(line[:23] + "\n" for line in RING.splitlines()))

    assert upper(matrix) == [2, SYS, 1, None, SYS, None]  # the NV1 at the end of its line may be the rest of NV12
    assert set(matrix.uncertain) == {FactGroup.GPUS}
    assert problems(matrix) == [
        ("topo -m columns", "no column for GPU2, GPU3: lines are cut on the right"),
        ("topo -m columns", "line 1 (GPU0 GPU1) ends after GPU1: columns may be missing on the right"),
        ("nvlink", "the text does not show how these are connected: GPU1-GPU2, GPU2-GPU3"),
    ]


def test_a_header_that_is_cut_within_a_name_leaves_that_column_out() -> None:
    names = "    ".join(f"GPU{i}" for i in range(11))
    rows = [f"GPU{i}    " + "    ".join("X" if i == j else "NV6" for j in range(11)) for i in range(11)]
    matrix = parse_topo("\n".join([names[:-1], *rows]) + "\n")

    assert islands(matrix) == [list(range(11))]
    assert problems(matrix)[0][1].endswith("ends in a second GPU1, the rest of a longer name: it is left out")


def test_missing_columns_and_rows_are_problems() -> None:
    matrix = parse_topo(
        "        GPU0    GPU1    ...     GPU7    CPU Affinity\n"
        "GPU0     X      NV12    ...     NV12    0-31\n"
        "GPU1    NV12     X      ...     NV12    0-31\n"
        "...\n"
        "GPU7    NV12    NV12    ...      X      0-31\n"
    )

    assert islands(matrix) == [[0, 1, 7]]
    assert problems(matrix) == [("topo -m", "GPU2, GPU3, GPU4, GPU5, GPU6 not shown, though higher indices are")]


def test_without_header_unnamed_columns_are_numbered_and_the_rest_is_a_problem() -> None:
    """Columns 1 and 2 are before GPU2's X; 5 has NVLinks, so 4 and 5 are GPUs; 6 is unknown."""
    matrix = parse_topo("GPU2\tNV4\tSYS\t X \tNV4\tNV4\tSYS\n")

    assert [gpu.index for gpu in matrix.gpus] == [0, 1, 2, 3, 4]
    assert islands(matrix) == [[0, 2, 3, 4], [1]]
    assert ("topo -m columns", "column 6 without a name: left out") in problems(matrix)


def test_more_cells_than_header_names_are_a_problem() -> None:
    matrix = parse_topo("\tGPU0\tGPU1\nGPU0\tX\tNV1\tSYS\nGPU1\tNV1\tX\tPIX\n")

    assert matrix.cells == ((None, 1), (1, None))
    assert problems(matrix)[0] == ("topo -m header", "line 1 (GPU0 GPU1) names 2 columns, but rows have 3 cells")


def test_many_unknown_pairs_are_counted() -> None:
    header = "\t" + "\t".join(f"GPU{i}" for i in range(16)) + "\tCPU Affinity\n"
    matrix = parse_topo(header + "GPU0\t X \t" + "NV6\t" * 15 + "0-23\n")

    assert islands(matrix) == [list(range(16))]
    assert matrix.problems[-1].kind is ProblemKind.INCOMPLETE
    assert matrix.problems[-1].why.endswith("GPU1-GPU13 and 93 more")  # 15 * 14 / 2 pairs without GPU0, 12 named


def test_contradicting_nic_cells_are_a_conflict() -> None:
    matrix = parse_topo(PAIR.replace("NIC0\tPIX", "NIC0\tPXB"))

    assert matrix.nics[0].distances == (PXB, SYS)
    assert problems(matrix) == [
        ("topo -m GPU0-NIC0", "the row of GPU0 says PIX, the row of NIC0 says PXB: PXB is used")
    ]


def test_a_header_word_without_row_counts_as_a_nic_with_a_problem() -> None:
    matrix = parse_topo("\tGPU0\tib0\tCPU Affinity\nGPU0\t X \tSYS\t0-7\n")

    assert matrix.nics == (TopoNic(label="ib0", name="ib0", distances=(SYS,)),)
    assert problems(matrix) == [
        ("topo -m column ib0", "the header's word ib0 is taken for a network device, but it has no row")
    ]


def test_rows_of_nics_by_name_need_a_header_that_names_them() -> None:
    matrix = parse_topo(
        "\tGPU0\tbnxt_re0\tCPU Affinity\nGPU0\t X \tPIX\t0-7\nbnxt_re0\tPIX\t X\nuses2 PIX\nNIC5 X PIX\n"
    )

    assert matrix.nics == (TopoNic(label="bnxt_re0", name="bnxt_re0", distances=(PIX,)),)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        pytest.param("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0", 0, id="whole"),
        pytest.param(
            "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t0", None, id="a column is gone"
        ),
    ],
)
def test_a_numa_node_at_the_very_end_counts_only_if_it_cannot_be_cut(text: str, node: int | None) -> None:
    matrix = parse_topo(text)

    assert numa(matrix) == [node]
    assert bool(matrix.problems) == (node is None)


def test_a_numa_node_at_the_very_end_that_begins_like_another_may_be_cut() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV1\t0-7\t0-1\nGPU1\tNV1\t X \t0-7\t0"
    matrix = parse_topo(text)

    assert numa(matrix) == ["0-1", None]
    assert problems(matrix)[0] == (
        "topo -m row GPU1",
        "the text ends in line 3 (0-7 0): its last word may be cut, and is not used",
    )


def test_numa_is_short_for_numa_affinity_unless_values_show_that_lines_are_cut_there() -> None:
    text = "GPU0 GPU1 CPU Affinity NUMA\nGPU0 X NV1 0-7 0\nGPU1 NV1 X 8-15 "

    assert (numa(parse_topo(text + "1\n")), parse_topo(text + "1\n").problems) == ([0, 1], ())
    assert numa(parse_topo(text + "1-10\n")) == [0, None]
    assert problems(parse_topo(text + "1-10\n"))[0] == ("gpus.1.numaNode", "NUMA affinity 1-10 is cut: not used")


@pytest.mark.parametrize("word", ["C2C", "ERR!"])
def test_a_pair_with_an_unknown_word_is_unknown_and_named(word: str) -> None:
    matrix = parse_topo(RING.replace("NV1 ", f"{word} "))

    assert upper(matrix) == [2, SYS, None, None, SYS, 2]
    assert problems(matrix) == [
        ("topo -m GPU0-GPU3", f"the row of GPU0 says {word}, the row of GPU3 says {word}: not a known word"),
        ("topo -m GPU1-GPU2", f"the row of GPU1 says {word}, the row of GPU2 says {word}: not a known word"),
        ("nvlink", "the text does not show how these are connected: GPU0-GPU3, GPU1-GPU2"),
    ]
    assert numa(matrix) == [0, 0, 1, 1]


def test_question_marks_are_unknown_cells_and_make_no_row_incomplete() -> None:
    matrix = parse_topo(PAIR.replace("GPU1\tNV4", "GPU1\t?").replace("\tSYS\t32", "\t?\t32"))

    assert (matrix.cells, matrix.nics[0].distances) == (((None, 4), (4, None)), (PIX, SYS))
    assert (numa(matrix), problems(matrix)) == ([0, 1], [])


def test_a_text_that_ends_in_a_row_set_aside_is_read() -> None:
    assert numa(parse_topo(RING + "GPU2 NV9 NV9 NV9 NV9")) == [0, 0, 1, 1]


def test_affinities_glued_beyond_repair_are_a_problem() -> None:
    """A terminal put "0-31" and "0-1" together."""
    matrix = parse_topo("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-310-1\n")

    assert matrix.gpus == (TopoGpu(index=0),)
    assert problems(matrix) == [
        ("gpus.0.numaNode", "line 2 (GPU0 X 0-310-1) shows no NUMA affinity, or it is glued to the CPUs")
    ]


# Several matrices in one paste.


def test_copies_of_one_matrix_are_one_and_the_most_complete_is_taken() -> None:
    cut = RING[: RING.index("GPU2    SYS")]

    assert parse_topo(cut + "\n" + RING) == parse_topo(RING)


def test_of_matrices_that_differ_the_first_is_taken_and_the_others_are_named() -> None:
    other = PAIR.replace("NV4", "SYS")
    matrix = parse_topo(RING + PAIR + other)

    assert upper(matrix) == [2, SYS, 1, 1, SYS, 2]
    assert [problem.kind for problem in matrix.problems] == [ProblemKind.CONFLICT]
    assert "differ from the one shown: line 7 (GPU0 GPU1 NIC0" in matrix.problems[0].why
    assert set(matrix.uncertain) == set(FactGroup)


def test_the_first_machine_is_taken_even_if_only_a_later_one_is_whole() -> None:
    damaged = "\n".join(RING.splitlines()[:-1]) + "\n"
    matrix = parse_topo(damaged + PAIR)

    assert len(matrix.gpus) == 4
    assert "differ from the one shown" in matrix.problems[-1].why


def test_topo_mp_with_topo_m_is_not_a_conflict() -> None:
    text = "$ nvidia-smi topo -mp\n" + PAIR.replace("NV4", "SYS") + "$ nvidia-smi topo -m\n" + PAIR

    assert parse_topo(text).cells == ((None, 4), (4, None))
    assert parse_topo(text).problems == ()


def test_a_matrix_that_cannot_be_read_gives_way_to_one_that_can() -> None:
    broken = "\tGPU0\tGPU1\nGPU0\tX\tX\nGPU1\tX\tX\n"

    matrix = parse_topo(broken + PAIR)

    assert matrix.cells == parse_topo(PAIR).cells
    assert "cannot be parsed" in matrix.problems[0].why
    assert set(matrix.uncertain) == set(FactGroup)


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(re.sub(r"(?m)^(GPU\d\s+)(\S+)", r"\1NVx", RING), id="no cell known"),
        pytest.param(re.sub(r"(?m)^GPU", "GPX", RING), id="labels lost"),
        pytest.param(RING.split("\n", 1)[1], id="header lost"),
    ],
)
def test_a_damaged_first_machine_is_not_hidden_by_a_whole_one(damaged: str) -> None:
    whole = RING.replace("NV1", "PIX").replace("NV2", "PIX")

    matrix = parse_topo(damaged + whole)

    assert "cannot be parsed or differ from the one shown" in matrix.problems[-1].why
    assert set(matrix.uncertain) == set(FactGroup)


def test_rows_behind_a_legend_are_another_matrix_and_one_with_a_header_is_preferred() -> None:
    assert parse_topo(PAIR + LEGEND + "GPU0 SYS X\nNIC3 SYS\n").cells == ((None, 4), (4, None))


def test_a_legend_before_any_matrix_is_nothing() -> None:
    assert parse_topo(LEGEND + "NIC0 PIX\n" + PAIR).nics[0].name is None


# What is refused.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "topo -m: the text is empty: no matrix found. Paste the output", id="nothing"),
        pytest.param("\nFailed to initialize NVML", r"line 2 \(Failed to initialize NVML\): no matrix", id="error"),
        pytest.param("\tGPU0\tGPU1\n", r"no row of a matrix follows line 1 \(GPU0 GPU1\)", id="header only"),
        pytest.param("  GPU0  GPU1\nGPU0  0   15\nGPU1  15  0\n", "no row of a matrix follows line 1", id="rocm-smi"),
        pytest.param(P2P, r"line 2 \(GPU0 X GNS\) is of `nvidia-smi topo -p2p`", id="topo -p2p"),
        pytest.param("\tGPU0\nGPU0\tX\nLegend:\n OK   = Status Ok\n", "is of `nvidia-smi topo -p2p`", id="its legend"),
        pytest.param("\tGPU0\tGPU1\nGPU0\tX\tX\nGPU1\tX\tX\n", r"no row's X .* line 2 \(GPU0 X X\)", id="no sound row"),
        pytest.param("GPU0 GPU0 GPU1 GPU1 CPU Affinity\nGPU0 X SYS\n", "names a device twice: line 1", id="twice"),
        pytest.param(RING.replace("GPU1    GPU2", "GPU2    GPU1"), r"names in line 1 \(GPU0 GPU2", id="swapped names"),
        pytest.param(
            RING.replace("GPU1 ", "").replace("GPU2 ", "GPU7 "), "do not fit the names in line 1", id="lost, misread"
        ),
        pytest.param(
            re.sub(r"(?m)^(GPU\d     ?\S+     ?)\S+", r"\1", RING.replace("  X  ", " X   ")),
            r"do not fit the names in line 1",
            id="a column lost",
        ),
        pytest.param(
            "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tSYS\nGPU1\tNV1\tSYS\n", "do not fit the names in line 1", id="last column"
        ),
        pytest.param(
            "\tGPU0\tGPU1\tNIC0\tNIC2\nGPU0\tX\tNV1\tPIX\tSYS\tSYS\nGPU1\tNV1\tX\tPIX\tSYS\tSYS\n",
            "do not fit the names in line 1",
            id="a NIC's name lost, and no row names it",
        ),
        pytest.param(
            "\tGPU0\tGPU2\nGPU0\tX\tNV1\n", "do not fit the names in line 1", id="a GPU that only the header leaves out"
        ),
        pytest.param(
            "\tGPU0\tGPU2\nGPU0\tX\tNV1\tSYS\nGPU1\tNV1\tX\tSYS\n",
            "do not fit the names in line 1",
            id="a name lost, and no row of another",
        ),
        pytest.param("GPU0 X SYS\nGPU2 SYS X\n", r"line 2 \(GPU2 SYS X\) has its X in column 2: its", id="no header"),
        pytest.param(
            "\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU1\tX\tNV1\n",
            r"line 3 \(GPU1 X NV1\) has its X in column 1, like GPU0",
            id="two rows have their X in one column",
        ),
        pytest.param(
            " GPU0 GPU1 CPU Affinity\n-GPU0 X NV1 0\n+GPU0 X SYS 0\n",
            r"line 2 \(-GPU0 X NV1 0\) and line 3 \(\+GPU0 X SYS 0\) are the difference of two matrices",
            id="a unified difference",
        ),
        pytest.param(
            "GPU0 GPU1 CPU Affinity\n< GPU0 X NV1 0\n---\n> GPU0 X SYS 0\n",
            r"line 2 \(<GPU0 X NV1 0\) and line 4 \(>GPU0 X SYS 0\) are the difference of two matrices",
            id="a difference",
        ),
        pytest.param("GPU0 X\n" * 600, "more than 512 rows before line 513", id="too many rows"),
        pytest.param("GPU0 GPU1\nGPU0 X NV1\n" * 300, "more than 256 matrices", id="too many matrices"),
        pytest.param("GPU64\t" + "NV1\t" * 64 + "X\n", "65 GPUs; at most 64", id="too many GPUs"),
        pytest.param("see " * 60 + "GPU0", r"line 1 \(see .{96}\.\.\.\)", id="a long line is quoted in part"),
    ],
)  # fmt: skip
def test_unreadable_text_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_topo(text)


# Broken lines.


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(RING.replace("GPU3    CPU", "GP\nU3    CPU"), id="within a name of the header"),
        pytest.param(RING.replace("NUMA Affinity", "NUMA Aff\ninity"), id="within an affinity column's name"),
        pytest.param(RING.replace("NUMA Affinity", "NUMA\n Affinity"), id="within it, between its words"),
        pytest.param(RING.replace("GPU2    GPU3    CPU", "GPU2\n    GPU3    CPU"), id="between columns"),
        pytest.param(RING.replace("NV2     SYS     NV1 ", "NV2     SY\nS     NV1 "), id="within a cell"),
        pytest.param(RING.replace("X      32-63           1", "X      32-6\n3           1"), id="within a CPU list"),
        pytest.param(RING.replace("X      32-63           1", "X      32\n-6\n3\n           1"), id="three times"),
        pytest.param(
            "> " + RING.replace("NV2     SYS     NV1 ", "NV2     SY\nS     NV1 ").replace("\n", "\n> "),
            id="quoted after it",
        ),
    ],
)
def test_lines_broken_by_a_terminal_are_joined(text: str) -> None:
    assert parse_topo(text) == parse_topo(RING)


def test_a_paste_that_lost_its_line_ends_is_cut_where_rows_begin() -> None:
    assert parse_topo(RING.replace("\n", " ") + "\n") == parse_topo(RING)


def test_a_legend_on_one_line_with_the_rows_is_read() -> None:
    assert parse_topo((PAIR + LEGEND).replace("\n", " ")) == parse_topo(PAIR + LEGEND)


def test_a_value_under_an_unknown_heading_is_not_used() -> None:
    matrix = parse_topo("| | GPU0 | GPU1 | NUMA |\n|---|---|---|---|\n| GPU0 | X | NV4 | 0 |\n| GPU1 | NV4 | X | 1 |\n")

    assert matrix.gpus == (TopoGpu(index=0), TopoGpu(index=1))
    assert matrix.cells == ((None, 4), (4, None))


def test_a_header_without_rows_gives_way_to_the_next() -> None:
    assert parse_topo("GPU0 GPU1 GPU2\n\nwas cut; here it is:\n" + PAIR).cells == ((None, 4), (4, None))


def test_a_line_that_repeats_a_device_is_not_part_of_the_header() -> None:
    matrix = parse_topo(RING.replace("    CPU Affinity    NUMA Affinity\n", "\nNIC0 NIC0 NIC1\n"))

    assert (upper(matrix), matrix.nics) == ([2, SYS, 1, 1, SYS, 2], ())


def test_a_broken_numa_list_is_joined_though_its_beginning_looks_whole() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n-1\nother\n"

    assert numa(parse_topo(text)) == ["0-1"]


def test_a_line_that_is_not_part_of_the_row_is_not_joined() -> None:
    assert parse_topo(
        RING.replace("NUMA Affinity\n", "NUMA Affinity\nof my machine\n---\n") + "12 apples\n"
    ) == parse_topo(RING)
