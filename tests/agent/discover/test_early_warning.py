"""Parts of the hardware that will fail, by one reading of their counters."""

from __future__ import annotations

import pytest

from agent.discover.early_warning import find_early_warnings
from agent.snapshot import Nvml, NvmlC2cLink, NvmlGpu, NvmlLink
from gputopo.model import Degradation

UP, DOWN = NvmlC2cLink(0, active=True), NvmlC2cLink(1, active=False)
GPUS = {
    "a failed row remapping": (
        NvmlGpu(index=3, remapped_rows=(0, 1, 0, 1)),
        [Degradation("gpu3.memory", "a row of the memory could not be remapped: replace the GPU")],
    ),
    "a remapping that waits for a reset": (NvmlGpu(index=3, remapped_rows=(4, 1, 1, 0)), []),
    "a failed recovery": (
        NvmlGpu(
            index=3,
            nvlinks=(NvmlLink(7, active=True, counters={"recovery_failed": 1}), NvmlLink(8, counters={"replay": 9})),
        ),
        [Degradation("gpu3.nvlink7", "the driver failed to recover the link")],
    ),
    "a C2C link that is down": (
        NvmlGpu(index=3, c2c_links=(UP, DOWN)),
        [Degradation("gpu3.c2c", "1 of 2 C2C links active")],
    ),
    "C2C links that the machine does not use": (NvmlGpu(index=3, c2c_links=(DOWN, DOWN)), []),
    "no C2C link of a superchip": (
        NvmlGpu(index=3, name="NVIDIA GH200 480GB", c2c_links=(DOWN, DOWN)),
        [Degradation("gpu3.c2c", "0 of 2 C2C links active")],
    ),
    "ECC errors": (NvmlGpu(index=3, ecc_mode=1, ecc_corrected=5, ecc_uncorrected=1), []),
    "a lost GPU": (NvmlGpu(index=3, remapped_rows=(0, 0, 0, 1), errors={"nvmlDeviceGetName": "GPU_IS_LOST"}), []),
    "nothing read": (NvmlGpu(index=3), []),
}


@pytest.mark.parametrize(("gpu", "expected"), GPUS.values(), ids=GPUS)
def test_early_warnings(gpu: NvmlGpu, expected: list[Degradation]) -> None:
    assert list(find_early_warnings(Nvml(gpus=(gpu,)))) == expected
