"""The part of a GPU's memory that containers hold by their devices."""

from __future__ import annotations

import pytest

from agent.allocation.claims import claimed_percents
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.model import Gpu, MigDevice

A, B = PodRef("ml", "a", "main"), PodRef("ml", "b", "main")
SLICES = (MigDevice("3g.40gb", "MIG-1", 40960), MigDevice("1g.10gb", "MIG-2", 10240), MigDevice("1g.10gb", "MIG-3"))
GPUS = (
    Gpu(index=0, uuid="GPU-a", memory_mib=81920),
    Gpu(index=1, uuid="GPU-m", memory_mib=81920, mig_enabled=True, mig_devices=SLICES),
)
FOUR = [("nvidia.com/gpu.shared", f"GPU-a::{n}") for n in range(4)]


@pytest.mark.parametrize(
    ("held", "offered", "claimed"),
    [
        pytest.param((), (), {"GPU-a": 0, "GPU-m": 0}, id="nothing"),
        pytest.param((DeviceAllocation("GPU-a", A),), (), {"GPU-a": 100, "GPU-m": 0}, id="a whole GPU"),
        pytest.param(
            (DeviceAllocation("GPU-a", A, 0), DeviceAllocation("GPU-a", B, 2), DeviceAllocation("GPU-a", B, 2)),
            FOUR,
            {"GPU-a": 50, "GPU-m": 0},
            id="two of four shares",
        ),
        pytest.param((DeviceAllocation("GPU-a", A, 0),), (), {"GPU-m": 0}, id="a share of unknown size"),
        pytest.param(
            (DeviceAllocation("GPU-m", A, None, "MIG-1"), DeviceAllocation("GPU-m", B, None, "MIG-2")),
            (),
            {"GPU-a": 0, "GPU-m": 62},
            id="MIG devices: 50 % + 12.5 %",
        ),
        pytest.param(
            (DeviceAllocation("GPU-m", A, None, "MIG-3"),), (), {"GPU-a": 0}, id="a MIG device of unknown size"
        ),
        pytest.param((DeviceAllocation("GPU-m", A),), (), {"GPU-a": 0}, id="an unknown MIG device"),
        pytest.param((DeviceAllocation("GPU-m", A, 1, "MIG-1"),), (), {"GPU-a": 0}, id="a share of a MIG device"),
        pytest.param(None, FOUR, {}, id="the kubelet does not answer"),
    ],
)
def test_claims(
    held: tuple[DeviceAllocation, ...] | None, offered: list[tuple[str, str]], claimed: dict[str, int]
) -> None:
    assert claimed_percents(held, GPUS, offered) == claimed
