"""Used memory and busy share over time, and the steps that are published."""

from __future__ import annotations

import pytest

from agent.daemon.usage import WINDOW_S, LoadHistory, published_usage, record_load
from agent.snapshot import Nvml, NvmlGpu
from gputopo.crd.nodegpus import GpuUsage, NodeGpus, bounds_error
from gputopo.model import MAX_GPUS, Gpu

GIB = 2**30


def reading(busy: int | None = None, used: int | None = None, **gpu: object) -> Nvml:
    return Nvml(
        gpus=(NvmlGpu(index=0, uuid="GPU-a", memory_bytes=80 * GIB, memory_used_bytes=used, busy_percent=busy, **gpu),)  # type: ignore[arg-type]
    )


def after(*busy: int, every_s: float = 60.0) -> LoadHistory:
    history: LoadHistory = {}
    for number, percent in enumerate(busy):
        history = record_load(history, reading(percent), number * every_s)
    return history


def test_the_busy_share_is_the_mean_of_the_last_ten_minutes() -> None:
    assert after(0, 100, 50)["GPU-a"].busy_percent == 50
    assert after(*[100] * 60, *[20] * 10)["GPU-a"].busy_percent == 20
    assert after(100, 0, every_s=WINDOW_S)["GPU-a"].busy_percent == 0


def test_a_published_step_changes_only_when_the_value_has_moved_away() -> None:
    steps = []
    history: LoadHistory = {}
    for number, used in enumerate((0, 4, 6, 7, 8, 12, 17, 18, 3, 2)):  # percent of 100 GiB
        gpu = NvmlGpu(index=0, uuid="GPU-a", memory_bytes=100 * GIB, memory_used_bytes=used * GIB)
        history = record_load(history, Nvml(gpus=(gpu,)), number * 60.0)
        steps.append(history["GPU-a"].used_step)

    assert steps == [0, 0, 0, 0, 10, 10, 10, 20, 0, 0]


def test_a_gpu_whose_load_moves_around_a_border_is_published_once() -> None:
    history: LoadHistory = {}
    steps = set()
    for number in range(100):
        history = record_load(history, reading(used=(44 + number % 3) * 80 * GIB // 100), number * 60.0)
        steps.add(history["GPU-a"].used_step)

    assert len(steps) == 1


@pytest.mark.parametrize(
    ("nvml", "usage"),
    [
        pytest.param(reading(), None, id="a driver that tells neither"),
        pytest.param(reading(used=0), (GpuUsage("GPU-a", 0),), id="MIG mode: memory only"),
        pytest.param(reading(busy=0), (GpuUsage("GPU-a", busy_percent=0),), id="unified memory: busy only"),
        pytest.param(reading(busy=10**9, used=2**70), (GpuUsage("GPU-a", 100, None, 100),), id="impossible numbers"),
        pytest.param(reading(busy=-5, used=-1), (GpuUsage("GPU-a", 0, None, 0),), id="negative numbers"),
        pytest.param(reading(busy=90, used=GIB, errors={"nvmlDeviceGetName": "GPU_IS_LOST"}), None, id="a lost GPU"),
        pytest.param(None, None, id="no NVML"),
    ],
)
def test_unknown_usage_is_not_published(nvml: Nvml | None, usage: tuple[GpuUsage, ...] | None) -> None:
    assert published_usage(record_load({}, nvml, 0.0), {}, (Gpu(index=0, uuid="GPU-a"),)) == usage


def test_a_gpu_that_is_lost_later_has_no_usage() -> None:
    lost = record_load(after(50), reading(errors={"nvmlDeviceGetName": "GPU_IS_LOST"}), 60.0)

    assert published_usage(lost, {}, (Gpu(index=0, uuid="GPU-a"),)) is None


def test_more_and_longer_names_than_the_definition_allows_are_left_out() -> None:
    gpus = [Gpu(index=index, uuid=f"GPU-{index}" + "x" * 97 * (index % 2)) for index in range(2 * MAX_GPUS + 2)]
    usage = published_usage({}, {str(gpu.uuid): 100 for gpu in gpus}, gpus)

    assert usage is not None
    assert len(usage) == MAX_GPUS
    assert bounds_error(NodeGpus("2027-01-15T08:00:00Z", "1a2b", "1", usage=usage)) is None


def test_the_history_of_a_gpu_is_bounded() -> None:
    assert len(after(*[50] * 1000, every_s=0.1)["GPU-a"].samples) == 64
