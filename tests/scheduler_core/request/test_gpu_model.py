"""GPU products and the names that pods request."""

from __future__ import annotations

import pytest

from scheduler_core.request.gpu_model import is_model

A100 = "NVIDIA-A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("product", "wanted", "same"),
    [
        pytest.param(A100, A100, True, id="the product"),
        pytest.param(A100, "nvidia-a100-sxm4-80gb", True, id="in any case"),
        pytest.param("NVIDIA A100-SXM4-80GB", A100, True, id="as the driver spells it"),
        pytest.param(A100, "A100", True, id="short name"),
        pytest.param(A100, "A100-SXM4", True, id="two words"),
        pytest.param(A100, "A100 80GB", False, id="words that do not follow each other"),
        pytest.param(A100, "A10", False, id="A10 is another card"),
        pytest.param("NVIDIA-A10", "A100", False, id="and A100 no A10"),
        pytest.param("NVIDIA-L40S", "L40", False, id="L40S is no L40"),
        pytest.param(A100, "*A100*", True, id="glob"),
        pytest.param(A100, "NVIDIA-?100-*", True, id="question mark"),
        pytest.param(A100, "NVIDIA-[HV]100-*", False, id="class"),
        pytest.param(A100, "A100*", False, id="a glob is over the whole product"),
        pytest.param("Tesla-V100-SXM2-16GB", "V100", True, id="another brand"),
        pytest.param(A100, "H100", False, id="another model"),
    ],
)
def test_is_model(product: str, wanted: str, same: bool) -> None:
    assert is_model(product, wanted) is same
