"""A sample of the campaign: NVML calls that fail never make a wrong label without a report, and never an exception."""

from __future__ import annotations

import os

import pytest

from agent.snapshot import NvmlGpu
from tests.campaign.nvml_calls import UNREPORTED, Case, cases, functions_of, judge

# GPUTOPO_NVML_CASES=1 runs all cases, 10 every tenth.
STEP = int(os.environ.get("GPUTOPO_NVML_CASES", "331"))


@pytest.mark.parametrize("case", [*cases(STEP)], ids=lambda case: "-".join(map(str, case)))
def test_a_failing_call_makes_no_wrong_label_without_an_error(case: Case) -> None:
    verdict = judge(case)

    assert verdict.outcome != UNREPORTED, verdict.why


def test_the_cases_are_all_functions_that_the_agent_calls() -> None:
    assert {case.function for case in cases() if case.machine == "switch"} == set(functions_of("switch"))
    assert len(functions_of("switch")) > 30


def test_the_checker_finds_a_lost_gpu_that_counts_as_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = FOUND_BEFORE["lost after the handle"]
    monkeypatch.setattr(NvmlGpu, "access_error", property(lambda gpu: gpu.handle_error))

    assert judge(case).outcome == UNREPORTED


FOUND_BEFORE = {
    "lost after the handle": Case("mesh", "nvmlDeviceGetName", 15, one_gpu=True, warm=False, once=True),
    "every port says that it does not exist": Case(
        "mesh", "nvmlDeviceGetNvLinkState", 3, one_gpu=True, warm=False, once=False
    ),
    "unread far ends": Case("mesh", "nvmlDeviceGetNvLinkRemotePciInfo_v2", 10, one_gpu=False, warm=False, once=False),
    "unread addresses": Case("mesh", "nvmlDeviceGetPciInfo_v3", 10, one_gpu=False, warm=False, once=False),
    "unread peer access": Case("switch", "nvmlDeviceGetP2PStatus", 10, one_gpu=False, warm=False, once=False),
    "no fabric on one GPU": Case("switch", "nvmlDeviceGetGpuFabricInfoV", 3, one_gpu=True, warm=False, once=False),
    "a MIG mode that vanishes": Case("mig", "nvmlDeviceGetMigMode", 3, one_gpu=False, warm=True, once=False),
    "an error of one field": Case("bridge", "nvmlDeviceGetFieldValues#value", 15, one_gpu=True, warm=True, once=True),
}


@pytest.mark.parametrize("case", FOUND_BEFORE.values(), ids=FOUND_BEFORE)
def test_cases_that_were_wrong_without_an_error_before(case: Case) -> None:
    assert judge(case).outcome != UNREPORTED
