"""The header line is recognised and parsed."""

from __future__ import annotations

import pytest

from agent.sources.smi.topo.header import AFFINITY_COLUMNS, MatrixHeader, parse_header


@pytest.mark.parametrize(
    ("text", "labels", "columns"),
    [
        pytest.param("\tGPU0\tGPU1\tCPU Affinity", ["GPU0", "GPU1"], 1, id="tabs"),
        pytest.param("GPU0    CPU Affinity  NUMA Affinity  GPU NUMA ID", ["GPU0"], 3, id="one GPU"),
        pytest.param("GPU0GPU10mlx5_2mlx5_bond_0", ["GPU0", "GPU10", "mlx5_2", "mlx5_bond_0"], 0, id="glued"),
        pytest.param("GPU0GPU1CPU AffinityNUMA AffinityGPU NUMA ID", ["GPU0", "GPU1"], 3, id="all glued"),
        pytest.param("GPU0 bnxt_re0 rocep1s0f1 CPU Affinity", ["GPU0", "bnxt_re0", "rocep1s0f1"], 1, id="other NICs"),
        pytest.param("GPU0 GPU1 CPU    Affinity", ["GPU0", "GPU1"], 1, id="affinity split by padding"),
        pytest.param("gpu0 gpu1 cpu affinity", ["GPU0", "GPU1"], 1, id="lower case"),
        pytest.param("$ nvidia-smi topo -m   GPU0  GPU1 CPU Affinity", ["GPU0", "GPU1"], 1, id="behind the prompt"),
        pytest.param("GPU0 GPU1 ... GPU7 CPU Affinity", ["GPU0", "GPU1", "...", "GPU7"], 1, id="columns left out"),
        pytest.param("GPU0 GPU1 CPU Affinity (of the host)", ["GPU0", "GPU1"], 1, id="a remark behind"),
        pytest.param("GPU0 GPU1 NUMA Affinity", ["GPU0", "GPU1"], 0, id="affinity columns out of place are not known"),
        pytest.param(
            "GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA", ["GPU0", "GPU1"], 3, id="a last name without its end"
        ),
        pytest.param("GPU0 GPU1 CPU Affinity NIC0", ["GPU0", "GPU1"], 1, id="cells do not follow affinities"),
        pytest.param("  GPU0", ["GPU0"], 0, id="nothing but a GPU"),
        pytest.param("GPU0 GPU1 HSN CPU Affinity", ["GPU0", "GPU1", "HSN"], 1, id="a NIC's name without digit"),
        pytest.param("GPU0 GPU1 IB HSN CPU Affinity", ["GPU0", "GPU1", "IB", "HSN"], 1, id="two such names"),
        pytest.param("$ nvidia-smi topo -mGPU0 GPU1 CPU Affinity", ["GPU0", "GPU1"], 1, id="glued to the command"),
    ],
)  # fmt: skip
def test_a_header_names_its_columns(text: str, labels: list[str], columns: int) -> None:
    unusual = text.endswith("GPU1 NUMA Affinity")
    expected = MatrixHeader(7, text.strip(), tuple(labels), AFFINITY_COLUMNS[:columns], cut=False, unusual=unusual)

    assert parse_header(text, 7) == expected


def test_numa_at_the_end_of_a_header_is_the_numa_affinity() -> None:
    text = "GPU0 GPU1 CPU Affinity NUMA"

    assert parse_header(text, 7) == MatrixHeader(7, text, ("GPU0", "GPU1"), AFFINITY_COLUMNS[:2], cut=False, short=True)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("GPU0 GPU1 CPU Aff", id="within CPU Affinity"),
        pytest.param("GPU0 GPU1 CPU Affinity NUM", id="within NUMA Affinity"),
        pytest.param("GPU0 GPU1 CPU Affinity NUMA Affinity GPU NU", id="within GPU NUMA ID"),
    ],
)
def test_a_cut_header_is_marked(text: str) -> None:
    header = parse_header(text, 1)

    assert header is not None
    assert header.cut


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="blank"),
        pytest.param("GPU 0: NVIDIA A100 (UUID: GPU-5baec991-de63-c196-1766-04c38407e133)", id="nvidia-smi -L"),
        pytest.param("GPU0 and GPU1 are linked", id="prose about two GPUs"),
        pytest.param("GPU0 GPU1 GPUX CPU Affinity", id="a GPU's name misread"),
        pytest.param("GPU0 GPU1 HSN IB are linked", id="names without digit, and no affinity"),
        pytest.param("see GPU0", id="prose about one"),
        pytest.param("GPU0000 GPU01", id="no indices"),
        pytest.param("/dev/GPU0/GPU1", id="a path"),
    ],
)
def test_other_lines_are_not_a_header(text: str) -> None:
    assert parse_header(text, 1) is None
