"""The labels as lines that `kubectl label` takes."""

import pytest

from gputopo.model import Gpu, NodeTopology, Nvlink
from gputopo.render import RenderError
from gputopo.render.label_lines import render_labels

L4 = NodeTopology(gpus=(Gpu(index=0, product="NVIDIA L4"),), nvlink=Nvlink())


def test_mirrors_and_the_annotation_are_a_choice() -> None:
    ours, mirrors = "gputopo.io/gpus=1\n", "nvidia.com/gpu.product=NVIDIA-L4\n"

    def parts_of(text: str) -> tuple[bool, bool, bool]:
        return ours in text, mirrors in text, "gputopo.io/topology={" in text

    assert parts_of(render_labels(L4)) == (True, True, False)
    assert parts_of(render_labels(L4, mirrors=False)) == (True, False, False)
    assert parts_of(render_labels(L4, annotations=True)) == (True, True, True)


def test_a_machine_that_fits_into_no_annotation_is_refused() -> None:
    endless = NodeTopology(gpus=(Gpu(index=0, product="x" * 10_000),))

    with pytest.raises(RenderError, match=r"the topology of 1 GPUs takes \d+ bytes; at most 8192 fit"):
        render_labels(endless)
