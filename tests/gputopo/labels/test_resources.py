"""The resource names that count as GPUs."""

from __future__ import annotations

import pytest

from gputopo.labels.resources import is_gpu


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpu.a100",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.shared",
        "nvidia.com/mig-1g.10gb.me",
    ],
)
def test_gpus_shares_and_mig_devices_are_gpus(resource: str) -> None:
    assert is_gpu(resource)


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/hostdev",
        "nvidia.com/gpus",
        "nvidia.com/gpu.",
        "nvidia.com/mig-",
        "nvidia.com/GA102GL_A10",
        "amd.com/gpu",
        "xnvidia.com/gpu",
        "cpu",
    ],
)
def test_other_resources_are_not(resource: str) -> None:
    assert not is_gpu(resource)
