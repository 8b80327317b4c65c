"""Discovery passes: the observed topology, the topology to publish, and failures that need a restart."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from agent.daemon.discovery_pass import DiscoveryState, needs_restart, run_discovery_pass
from agent.snapshot import Host, Nvml, NvmlGpu, Snapshot, Sysfs
from gputopo.labels import encode_topology
from gputopo.model import NodeTopology
from tests.agent.recordings import load_machine, nvml_failed, nvml_of, ports_down, with_gpu

HOLD_S = 300.0
HEALTHY = load_machine("4a100-1n-mesh4")
DOWN = load_machine("link-down")


def run_passes(*snapshots: Snapshot, state: DiscoveryState | None = None) -> DiscoveryState:
    """One pass per minute."""
    state = state or DiscoveryState()
    for minute, snapshot in enumerate(snapshots):
        state = run_discovery_pass(state, snapshot, 60.0 * minute, HOLD_S)
    return state


def topology(state: DiscoveryState) -> NodeTopology:
    assert state.topology is not None
    return state.topology


def test_a_link_that_goes_down_is_degraded_and_stays_expected() -> None:
    ports = [
        link.link for link in nvml_of(HEALTHY).gpus[1].nvlinks if link.remote_bus_id == nvml_of(HEALTHY).gpus[2].bus_id
    ]
    gone = ports_down(ports_down(HEALTHY, 1, *ports), 2, *range(12))

    state = run_passes(HEALTHY, gone)

    assert topology(run_passes(HEALTHY)).degraded == ()
    assert {"gpu0-gpu2", "gpu1-gpu2", "gpu2-gpu3"} <= {each.what for each in topology(state).degraded}
    assert topology(state) == state.observed


def test_while_nvml_fails_the_published_topology_stays() -> None:
    before, state = run_passes(DOWN), run_passes(DOWN, nvml_failed(DOWN, "UNKNOWN"), nvml_failed(DOWN, "UNKNOWN"))

    assert (state.topology, state.observed) == (before.topology, before.observed)
    assert state.failures == {"nvml": "nvmlInit_v2: UNKNOWN"}
    assert state.failing_since == 60.0
    assert (state.good_at["nvml"], state.good_at["sysfs"]) == (0.0, 120.0)


GETTERS = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetNvLinkState",
)


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN"])
@pytest.mark.parametrize("smi", [True, False], ids=["beside nvidia-smi", "alone"])
@pytest.mark.parametrize("before", [True, False], ids=["after a good pass", "from the start"])
def test_a_gpu_that_answers_no_call_after_its_handle_is_lost_and_returns(
    error: str, *, smi: bool, before: bool
) -> None:
    healthy = HEALTHY if smi else replace(HEALTHY, smi=None)
    silent = NvmlGpu(index=3, errors=dict.fromkeys(GETTERS, error))
    lost = with_gpu(healthy, 3, silent)
    first = [healthy] if before else []

    state = run_passes(*first, lost)

    assert [gpu.index for gpu in topology(state).usable] == [0, 1, 2]
    assert [each.what for each in topology(state).degraded] == ["gpu3"]
    assert encode_topology(topology(state)).labels["gputopo.io/gpus"] == "3"
    assert topology(run_passes(*first, lost, *[healthy] * 7)) == topology(run_passes(healthy))


def test_a_gpu_whose_uuid_is_read_late_is_not_missing_afterwards() -> None:
    alone = replace(HEALTHY, smi=None)
    gpu = nvml_of(alone).gpus[3]
    for fields in (("uuid",), ("uuid", "bus_id")):
        unread = replace(gpu, **dict.fromkeys(fields), errors={**gpu.errors, "nvmlDeviceGetUUID": "TIMEOUT"})

        assert topology(run_passes(with_gpu(alone, 3, unread), *[alone] * 7)).degraded == ()


def test_all_gpus_that_answer_no_call_are_a_failure_of_nvml() -> None:
    nvml = nvml_of(HEALTHY)
    silent = tuple(NvmlGpu(index=gpu.index, errors=dict.fromkeys(GETTERS, "UNKNOWN")) for gpu in nvml.gpus)

    state = run_passes(HEALTHY, replace(HEALTHY, nvml=replace(nvml, gpus=silent)))

    assert state.failures == {"nvml": "nvmlDeviceGetUUID: UNKNOWN for every GPU"}
    assert topology(state) == topology(run_passes(HEALTHY))


def test_a_link_that_recovers_often_is_published_as_degraded_and_stops_being_so() -> None:
    def after(recoveries: int) -> Snapshot:
        gpu = nvml_of(HEALTHY).gpus[3]
        worn = replace(gpu.nvlinks[5], counters={"recovery": recoveries})
        return with_gpu(HEALTHY, 3, replace(gpu, nvlinks=(*gpu.nvlinks[:5], worn, *gpu.nvlinks[6:])))

    state = run_passes(after(0), after(4), after(12))

    assert [each.what for each in topology(state).degraded] == ["gpu3.nvlink5"]
    assert encode_topology(topology(run_passes(after(0), after(9)))).labels["gputopo.io/degraded"] == "false"
    for day in range(1, 4):
        state = run_discovery_pass(state, after(12), day * 86400.0, HOLD_S)
    assert topology(state).degraded == ()


def test_failed_calls_are_named_although_earlier_results_replace_them() -> None:
    gpu = nvml_of(HEALTHY).gpus[3]
    unread = replace(gpu, name=None, errors={**gpu.errors, "nvmlDeviceGetName": "TIMEOUT"})

    state = run_passes(HEALTHY, with_gpu(HEALTHY, 3, unread))

    assert topology(state) == topology(run_passes(HEALTHY))
    assert state.failed_calls == {"nvmlDeviceGetName": "TIMEOUT for GPU 3"}


def test_when_nvml_recovers_nothing_is_degraded() -> None:
    state = run_passes(HEALTHY, nvml_failed(HEALTHY, "UNKNOWN"), HEALTHY)

    assert topology(state) == topology(run_passes(HEALTHY))
    assert (state.failures, state.failing_since) == ({}, None)
    assert state.good_at["nvml"] == 120.0


def test_a_failure_of_another_source_changes_nothing() -> None:
    without_smi = replace(HEALTHY, sysfs=None, host=None, errors={"sysfs": "OSError", "host": "OSError"})

    state = run_passes(HEALTHY, without_smi)

    assert topology(state) == topology(run_passes(HEALTHY))
    assert state.failures == {"sysfs": "OSError", "host": "OSError"}


def test_a_machine_without_a_driver_has_nothing_to_publish() -> None:
    state = run_passes(nvml_failed(HEALTHY, "DRIVER_NOT_LOADED"))

    assert (state.topology, state.observed, state.failing_since) == (None, None, 0.0)
    assert topology(run_passes(nvml_failed(HEALTHY, "DRIVER_NOT_LOADED"), HEALTHY)) == topology(run_passes(HEALTHY))


@pytest.mark.parametrize(
    ("boot", "degraded"),
    [pytest.param(None, True, id="in this boot"), pytest.param("another", False, id="before a reboot")],
)
def test_facts_of_an_earlier_agent_are_expected_in_the_same_boot_only(boot: str | None, degraded: bool) -> None:
    published = topology(run_passes(HEALTHY))
    assert published.boot_id is not None
    published = msgspec.structs.replace(published, boot_id=boot or published.boot_id)
    nvml = nvml_of(HEALTHY)
    linkless = replace(nvml, gpus=tuple(replace(gpu, nvlinks=(), nvlink_count=None) for gpu in nvml.gpus))

    state = run_discovery_pass(
        DiscoveryState(published_before=published), replace(HEALTHY, nvml=linkless, smi=None), 0.0, HOLD_S
    )

    assert bool(topology(state).degraded) is degraded


def test_without_boot_id_nothing_is_expected() -> None:
    published = msgspec.structs.replace(topology(run_passes(HEALTHY)), boot_id=None)
    unknown = replace(load_machine("1l4-1n"), host=Host())

    state = run_discovery_pass(DiscoveryState(published_before=published), unknown, 0.0, HOLD_S)

    assert topology(state) == topology(run_passes(unknown))


LOADED = Sysfs({"module/nvidia/version": "580.95.05\n"})


@pytest.mark.parametrize(
    ("snapshots", "helps"),
    [
        pytest.param([HEALTHY], False, id="nothing fails"),
        pytest.param([HEALTHY, nvml_failed(HEALTHY, "UNKNOWN")], True, id="the devices were taken away"),
        pytest.param([HEALTHY, nvml_failed(HEALTHY, "LIB_RM_VERSION_MISMATCH")], True, id="the driver was upgraded"),
        pytest.param([HEALTHY, nvml_failed(HEALTHY, "NO_PERMISSION")], True, id="the device rules changed"),
        pytest.param([HEALTHY, nvml_failed(HEALTHY, "DRIVER_NOT_LOADED")], False, id="the driver is being reloaded"),
        pytest.param([nvml_failed(HEALTHY, "LIB_RM_VERSION_MISMATCH")], False, id="it never worked"),
        pytest.param([Snapshot(nvml=Nvml("nvmlInit_v2: LIBRARY_NOT_FOUND"))], False, id="no driver at all"),
        pytest.param(
            [Snapshot(nvml=Nvml("nvmlInit_v2: LIBRARY_NOT_FOUND"), sysfs=LOADED)], True, id="a driver without library"
        ),
        pytest.param([Snapshot(nvml=Nvml("nvmlInit_v2: UNKNOWN"), sysfs=LOADED)], False, id="a driver that is ill"),
    ],
)
def test_a_restart_is_needed_where_the_process_cannot_recover(snapshots: list[Snapshot], helps: bool) -> None:
    assert needs_restart(run_passes(*snapshots)) is helps
