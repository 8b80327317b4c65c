"""The GPUs that nvidia-smi names and cannot talk to."""

import pytest

from agent.sources.smi.lines import Line
from agent.sources.smi.unreachable import Unreachable, unreachable


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        pytest.param("GPU0000:CB:00.0: Unknown Error", Unreachable(None, "0000:cb:00.0", "Unknown Error"), id="glued"),
        pytest.param(
            "GPU 00000000:CB:00.0: GPU is lost.", Unreachable(None, "0000:cb:00.0", "GPU is lost."), id="long"
        ),
        pytest.param("GPU1: 0000:34:00.0: Unknown Error", Unreachable(1, "0000:34:00.0", "Unknown Error"), id="both"),
        pytest.param("GPU1: Unknown Error", Unreachable(1, None, "Unknown Error"), id="index only"),
        pytest.param("gpu 0: Unknown Error", Unreachable(0, None, "Unknown Error"), id="small letters"),
        pytest.param("GPU", Unreachable(None, None, ""), id="cut"),
    ],
)
def test_an_unreachable_gpu_is_named_as_well_as_it_was_printed(rest: str, expected: Unreachable) -> None:
    assert unreachable(Line(1, f"Unable to determine the device handle for {rest}", 0)) == expected


def test_other_lines_name_no_unreachable_gpu() -> None:
    assert unreachable(Line(1, "GPU 0: NVIDIA L4", 0)) is None
