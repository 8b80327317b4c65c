"""Metrics of error counters, and their bounds."""

from __future__ import annotations

from agent.daemon.health_metrics import HEALTH_GAUGES, HEALTH_TALLIES, MAX_LINKS, health_samples
from agent.snapshot import Nvml, NvmlC2cLink, NvmlGpu, NvmlLink, NvmlPlatform


def samples(*gpus: NvmlGpu) -> dict[tuple[str, ...], float]:
    """Name without the prefix and label values -> value."""
    return {(name.removeprefix("gputopo_"), *labels): value for name, labels, value in health_samples(Nvml(gpus=gpus))}


def test_errors_are_summed_by_gpu_and_listed_by_link_where_there_are_any() -> None:
    quiet = NvmlLink(0, active=True, counters={"replay": 0, "recovery": 0})
    noisy = NvmlLink(7, active=True, counters={"replay": 3, "recovery": 1})

    assert samples(NvmlGpu(index=0, uuid="GPU-a", nvlinks=(quiet, noisy, NvmlLink(8, active=False)))) == {
        ("gpu_nvlink_errors", "GPU-a", "replay"): 3,
        ("gpu_nvlink_errors", "GPU-a", "recovery"): 1,
        ("nvlink_errors", "GPU-a", "7", "replay"): 3,
        ("nvlink_errors", "GPU-a", "7", "recovery"): 1,
    }


def test_the_links_of_a_node_are_bounded_and_the_worst_are_listed() -> None:
    gpus = [
        NvmlGpu(
            index=gpu,
            nvlinks=tuple(NvmlLink(link, counters={"crc": 5, "recovered": gpu * 36 + link}) for link in range(36)),
        )
        for gpu in range(64)
    ]

    links = [key for key in samples(*gpus) if key[0] == "nvlink_errors"]

    assert len(links) == 2 * MAX_LINKS
    assert {(gpu, link) for _, gpu, link, _ in links} >= {("gpu63", "35"), ("gpu62", "35")}


def test_memory_errors_and_the_place_in_the_rack() -> None:
    gpu = NvmlGpu(
        index=0,
        bus_id="00000000:07:00.0",
        ecc_mode=1,
        ecc_corrected=2,
        ecc_uncorrected=0,
        remapped_rows=(3, 1, 1, 0),
        platform=NvmlPlatform("18", slot=24, tray=5, module=2),
        c2c_links=(NvmlC2cLink(0, active=True), NvmlC2cLink(1, active=False), NvmlC2cLink(2)),
    )
    name = "0000:07:00.0"

    assert samples(gpu) == {
        ("gpu_ecc_errors", name, "corrected"): 2,
        ("gpu_ecc_errors", name, "uncorrected"): 0,
        ("gpu_remapped_rows", name, "correctable"): 3,
        ("gpu_remapped_rows", name, "uncorrectable"): 1,
        ("gpu_row_remap_pending", name): 1,
        ("gpu_row_remap_failed", name): 0,
        ("gpu_platform_info", name, "4ec9599f", "24", "5", "", "2"): 1,
        ("gpu_c2c_links", name, "up"): 1,
        ("gpu_c2c_links", name, "down"): 1,
    }
    described = HEALTH_GAUGES | HEALTH_TALLIES
    assert all(len(described[name].labels) == len(labels) for name, labels, _ in health_samples(Nvml(gpus=(gpu,))))


def test_a_gpu_without_counters_and_a_lost_gpu_have_no_series() -> None:
    lost = NvmlGpu(index=1, remapped_rows=(0, 0, 0, 1), errors={"nvmlDeviceGetName": "GPU_IS_LOST"})

    assert samples(NvmlGpu(index=0), lost) == {}
    assert list(health_samples(None)) == []
