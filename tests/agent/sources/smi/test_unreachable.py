"""Lines of nvidia-smi about GPUs that it cannot reach."""

import pytest

from agent.sources.smi.lines import OutputLine
from agent.sources.smi.unreachable import UnreachableGpu, parse_unreachable


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param(
            "GPU0000:CB:00.0: Unknown Error", UnreachableGpu(None, "0000:cb:00.0", "Unknown Error"), id="glued"
        ),
        pytest.param(
            "GPU 00000000:CB:00.0: GPU is lost.", UnreachableGpu(None, "0000:cb:00.0", "GPU is lost."), id="long"
        ),
        pytest.param(
            "GPU1: 0000:34:00.0: Unknown Error", UnreachableGpu(1, "0000:34:00.0", "Unknown Error"), id="both"
        ),
        pytest.param("GPU1: Unknown Error", UnreachableGpu(1, None, "Unknown Error"), id="index only"),
        pytest.param("gpu 0: Unknown Error", UnreachableGpu(0, None, "Unknown Error"), id="small letters"),
        pytest.param("GPU", UnreachableGpu(None, None, ""), id="cut"),
    ],
)
def test_an_unreachable_gpu_is_named_as_well_as_it_was_printed(rest: str, expected: UnreachableGpu) -> None:
    assert parse_unreachable(OutputLine(1, f"Unable to determine the device handle for {rest}", 0)) == expected


def test_other_lines_name_no_unreachable_gpu() -> None:
    assert parse_unreachable(OutputLine(1, "GPU 0: NVIDIA L4", 0)) is None
