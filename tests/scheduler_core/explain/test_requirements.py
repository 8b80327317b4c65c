"""The requirements of a pod in words."""

from __future__ import annotations

import pytest

from gputopo.labels import keys
from scheduler_core.evaluation.score import RAW_SCORES
from scheduler_core.explain.requirements import (
    WORDING,
    goal_words,
    hard_fields,
    requirements,
    without_requirement,
)
from scheduler_core.policy.factors import FACTORS
from scheduler_core.request.device_request import ContainerStep, DeviceRequest
from scheduler_core.request.pod_request import Constraints, PodProfile
from tests.scheduler_core.builders import profile


def test_every_wish_and_every_factor_has_words() -> None:
    assert set(WORDING) == set(Constraints._fields)
    assert set(RAW_SCORES) == {name for name, factor in FACTORS.items() if factor.measure}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(profile(1), ["1 whole GPU"], id="one GPU"),
        pytest.param(
            profile(2, island="required", numa="preferred"),
            ["2 whole GPUs", "all in one NVLink island", "all on one NUMA node (preferred)"],
            id="required and preferred",
        ),
        pytest.param(
            profile(2, island="ignore", workload="training"),
            ["2 whole GPUs", "all in one NVLink island (ignored)", "workload class training"],
            id="ignored",
        ),
        pytest.param(
            profile(2, interconnect="nvlink", min_bandwidth="112.5"),
            [
                "2 whole GPUs",
                "every hop of their ring over nvlink or better",
                "at least 112.5 GB/s in the weakest hop of their ring, over NVLink",
            ],
            id="ring",
        ),
        pytest.param(
            profile(1, model="A100", min_vram="40Gi", vram="1500Mi"),
            [
                "1 whole GPU",
                "GPUs of the model A100",
                "at least 40Gi of memory on each GPU",
                "uses 1500Mi of a GPU's memory",
            ],
            id="model and memory",
        ),
        pytest.param(
            PodProfile(DeviceRequest((("nvidia.com/gpu", (ContainerStep(2), ContainerStep(1))),))),
            ["3 whole GPUs (by container: 2, then 1)"],
            id="two containers",
        ),
        pytest.param(
            PodProfile(
                DeviceRequest(
                    (("nvidia.com/gpu.shared", (ContainerStep(1),)), ("nvidia.com/mig-1g.10gb", (ContainerStep(2),)))
                )
            ),
            ["1 share of a GPU", "2 MIG devices 1g.10gb"],
            id="a share and MIG devices",
        ),
        pytest.param(
            PodProfile(
                DeviceRequest(
                    (("nvidia.com/gpu.shared", (ContainerStep(3),)), ("nvidia.com/mig-1g.10gb", (ContainerStep(1),)))
                )
            ),
            ["3 shares of GPUs", "1 MIG device 1g.10gb"],
            id="shares and a MIG device",
        ),
    ],
)
def test_words(asked: PodProfile, words: list[str]) -> None:
    assert [each.words for each in requirements(asked)] == words


def test_each_requirement_has_its_key() -> None:
    result = [
        (each.key, each.value, each.required) for each in requirements(profile(2, island="required", numa="preferred"))
    ]

    assert result == [
        ("nvidia.com/gpu", "2", True),
        (keys.POD_ISLAND.key, "required", True),
        (keys.POD_NUMA.key, "preferred", False),
    ]


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        pytest.param(profile(2, island="required", numa="required"), ["island", "numa"], id="shape"),
        pytest.param(profile(1, island="required", min_vram="1Gi"), ["min_vram_mib"], id="one GPU has no shape"),
        pytest.param(profile(2, island="preferred", workload="batch"), [], id="nothing"),
    ],
)
def test_hard_wishes(asked: PodProfile, fields: list[str]) -> None:
    assert hard_fields(asked) == fields


def test_softened_wishes_stay_wishes_where_they_can() -> None:
    wishes = profile(2, island="required", min_bandwidth="300").constraints

    assert without_requirement(wishes, "island") == profile(2, island="preferred", min_bandwidth="300").constraints
    assert without_requirement(wishes, "min_gbps") == profile(2, island="required").constraints


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(profile(4), "4 free", id="no shape"),
        pytest.param(profile(1, island="required"), "1 free", id="one GPU"),
        pytest.param(
            profile(4, island="required", numa="required"), "4 in one island and on one NUMA node", id="island and NUMA"
        ),
        pytest.param(
            profile(4, interconnect="nvlink", min_bandwidth="300"),
            "4 connected by nvlink or better and in a ring of 300 GB/s",
            id="ring",
        ),
    ],
)
def test_goal(asked: PodProfile, words: str) -> None:
    assert goal_words(asked) == words
