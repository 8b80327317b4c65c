"""The C2C links of superchips: from NVML and from NCCL's XML, to the drawings, the annotation and back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.discover import discover
from agent.recording.bundled import bundled_directory, find_recording
from agent.recording.inputs import read_observation
from agent.recording.io import load_snapshot
from agent.snapshot import NvmlC2cLink
from gputopo.labels.annotation import decode_annotation, encode_annotation
from gputopo.model import C2c, NodeTopology
from gputopo.render.nccl_xml import render_nccl_xml
from gputopo.render.svg import render_svg
from gputopo.render.tree import render_tree

UP, DOWN, SLOW = (
    NvmlC2cLink(0, active=True, speed_mbps=44712),
    NvmlC2cLink(1, active=False, speed_mbps=44712),
    NvmlC2cLink(2, active=True),
)


def gh200(*links: NvmlC2cLink, product: str = "NVIDIA GH200 120GB") -> NodeTopology:
    """A machine of four GH200 whose GPU 0 has these links."""
    path = find_recording("gh200", bundled_directory())
    assert path is not None
    snapshot = load_snapshot(Path(path).read_text(encoding="utf-8"))
    assert snapshot.nvml is not None
    first = msgspec.structs.replace(snapshot.nvml.gpus[0], c2c_links=links, name=product)
    nvml = msgspec.structs.replace(snapshot.nvml, gpus=(first, *snapshot.nvml.gpus[1:]))
    return discover(msgspec.structs.replace(snapshot, nvml=nvml))


@pytest.mark.parametrize(
    ("links", "product", "expected", "words"),
    [
        ((UP, UP), "NVIDIA GH200 120GB", C2c(2, 2, 178.8), "C2C 178.8 GB/s"),
        ((UP, DOWN), "NVIDIA GH200 120GB", C2c(1, 2, 89.4), "C2C 1/2"),
        ((UP, SLOW), "NVIDIA GH200 120GB", C2c(2, 2, None), "C2C 2/2"),
        ((DOWN, DOWN), "NVIDIA GH200 120GB", C2c(0, 2, 0.0), "C2C 0/2"),
        ((DOWN, DOWN), "NVIDIA H100 80GB HBM3", None, ""),
        ((), "NVIDIA GH200 120GB", None, ""),
    ],
)
def test_links_are_counted_and_drawn(
    links: tuple[NvmlC2cLink, ...], product: str, expected: C2c | None, words: str
) -> None:
    topology = gh200(*links, product=product)

    assert topology.gpus[0].c2c == expected
    assert topology.gpus[1].c2c == C2c(10, 10, 894.2)
    for drawing in (render_tree(topology), render_svg(topology)):
        assert (words or "C2C 894.2 GB/s") in drawing
    assert decode_annotation(encode_annotation(topology)).gpus[0].c2c == expected


def test_the_nccl_file_keeps_the_links() -> None:
    snapshot = read_observation(render_nccl_xml(gh200(UP, UP))).snapshot
    assert snapshot is not None

    assert [gpu.c2c for gpu in discover(snapshot).gpus] == [C2c(2, 2, 178.8), *[C2c(10, 10, 894.2)] * 3]


@pytest.mark.parametrize(
    ("links", "product", "which"),
    [
        ((), "NVIDIA GH200 120GB", " for GPU 0"),
        ((UP, UP), "NVIDIA GH200 120GB", None),
        ((), "NVIDIA H100 80GB HBM3", None),
    ],
)
def test_missing_links_of_a_superchip_are_one_problem(
    links: tuple[NvmlC2cLink, ...], product: str, which: str | None
) -> None:
    found = [each.why for each in gh200(*links, product=product).problems if each.what == "gpus.c2c"]

    assert [why.partition("; ")[0][-10:] for why in found] == ([] if which is None else [which])
    assert all("NVLink-C2C links to the CPU are not shown by NVML" in why for why in found)


def test_a_pasted_matrix_of_superchips_names_what_is_missing() -> None:
    rows = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-71\t0\nGPU1\tNV18\t X \t72-143\t1\n"
    listed = "".join(f"GPU {index}: NVIDIA GB200 (UUID: GPU-{index})\n" for index in range(2))

    problems = read_observation(f"{listed}{rows}").topology.problems

    (why,) = (each.why for each in problems if each.what == "gpus.c2c")
    assert why == (
        "the NVLink-C2C links to the CPU are not shown by nvidia-smi topo -m, nvidia-smi -L; NVML (`gputopo record`) "
        "or an NCCL topology XML file may show them"
    )
