"""A source that fails keeps its last good facts, and changed facts are not replaced by old ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.daemon.last_known_good import fill_from_last_good
from agent.discover import discover
from agent.snapshot import Host, Nvml, NvmlGpu, Output, Snapshot, Sysfs
from tests.agent.recordings import HANDLE, gpu_lost, load_machine, nvml_failed, nvml_of, ports_down, with_gpu

WELL = load_machine("dgx-a100")


def gpu(index: int, snapshot: Snapshot = WELL) -> NvmlGpu:
    return nvml_of(snapshot).gpus[index]


@pytest.mark.parametrize(
    ("now", "source", "why"),
    [
        pytest.param(nvml_failed(WELL, "UNKNOWN"), "nvml", "nvmlInit_v2: UNKNOWN", id="NVML does not start"),
        pytest.param(
            replace(WELL, nvml=None, errors={"nvml": "OSError: gone"}), "nvml", "OSError: gone", id="NVML is a surprise"
        ),
        pytest.param(
            replace(WELL, nvml=Nvml(errors={"nvmlDeviceGetCount_v2": "UNKNOWN"})),
            "nvml",
            "nvmlDeviceGetCount_v2: UNKNOWN",
            id="NVML does not count",
        ),
        pytest.param(replace(WELL, nvml=Nvml()), "nvml", "nvmlDeviceGetCount_v2: no answer", id="NVML does not answer"),
        pytest.param(
            replace(
                WELL,
                nvml=Nvml(device_count=2, gpus=tuple(NvmlGpu(index=i, errors={HANDLE: "UNKNOWN"}) for i in (0, 1))),
            ),
            "nvml",
            "nvmlDeviceGetHandleByIndex_v2: UNKNOWN for every GPU",
            id="the devices were taken away from the container",
        ),
        pytest.param(
            replace(WELL, sysfs=None, errors={"sysfs": "PermissionError: /sys"}),
            "sysfs",
            "PermissionError: /sys",
            id="sysfs is a surprise",
        ),
        pytest.param(
            replace(WELL, host=None, errors={"host": "OSError: /proc"}), "host", "OSError: /proc", id="so is the host"
        ),
        pytest.param(
            replace(WELL, smi=None, errors={"smi": "OSError: fork"}), "smi", "OSError: fork", id="so is nvidia-smi"
        ),
        pytest.param(
            replace(WELL, smi={"topo -m": Output("", 124, "no answer within 60 s\n")}),
            "smi",
            "topo -m: exit status 124",
            id="nvidia-smi hangs",
        ),
    ],
)
def test_a_source_that_fails_keeps_its_facts(now: Snapshot, source: str, why: str) -> None:
    before = fill_from_last_good(WELL, None).snapshot

    snapshot, failures = fill_from_last_good(now, before)

    assert failures == {source: why}
    assert discover(snapshot) == discover(WELL)


def test_a_source_that_never_answered_stays_empty() -> None:
    now = nvml_failed(Snapshot(smi={"-L": Output("", 127)}), "DRIVER_NOT_LOADED")

    first = fill_from_last_good(now, None)
    second = fill_from_last_good(now, first.snapshot)

    assert first == second == (now, {"nvml": "nvmlInit_v2: DRIVER_NOT_LOADED"})


def test_a_command_that_never_worked_is_not_a_failure() -> None:
    smi = {"-L": Output("GPU 0: A"), "nvlink -s": Output("", 2)}

    assert fill_from_last_good(Snapshot(smi=smi), Snapshot(smi=smi)) == (Snapshot(smi=smi), {})


def test_the_output_of_a_new_command_is_used() -> None:
    before, now = Snapshot(smi={"-L": Output("old"), "-q -x": Output("old")}), Snapshot(smi={"-L": Output("new")})

    assert fill_from_last_good(now, before).snapshot.smi == {"-L": Output("new"), "-q -x": Output("old")}


def test_earlier_nvidia_smi_output_is_used_with_earlier_nvml_facts() -> None:
    now = replace(nvml_failed(WELL, "UNKNOWN"), smi={"topo -m": Output("half a driver")})

    assert fill_from_last_good(now, WELL).snapshot.smi == WELL.smi


@pytest.mark.parametrize("host", [None, Host(boot_id="b")])
def test_a_source_that_is_not_read_is_neither_a_failure_nor_kept(host: Host | None) -> None:
    before = Snapshot(host=Host(boot_id="a"), sysfs=Sysfs({"a": "b"}))

    assert fill_from_last_good(Snapshot(host=host), before) == (Snapshot(host=host), {})


def test_one_call_that_fails_keeps_its_answer() -> None:
    errors = {**gpu(3).errors, "nvmlDeviceGetMemoryInfo": "UNKNOWN"}
    holes = replace(gpu(3), memory_bytes=None, cpu_affinity=None, errors=errors)

    snapshot, failures = fill_from_last_good(with_gpu(WELL, 3, holes), WELL)

    assert (snapshot, failures) == (WELL, {})


def test_a_gpu_without_uuid_is_matched_by_bus_id() -> None:
    nameless = replace(gpu(3), uuid=None, errors={**gpu(3).errors, "nvmlDeviceGetUUID": "TIMEOUT"})

    assert fill_from_last_good(with_gpu(WELL, 3, nameless), WELL).snapshot == WELL


def test_a_link_whose_state_could_not_be_read_is_not_down() -> None:
    first, *rest = gpu(3).nvlinks
    unasked = replace(first, active=None, remote_type=None, remote_bus_id=None, speed_mbps=None, version=None)
    unasked = replace(unasked, errors={"nvmlDeviceGetNvLinkState": "UNKNOWN"})

    assert fill_from_last_good(with_gpu(WELL, 3, replace(gpu(3), nvlinks=(unasked, *rest))), WELL).snapshot == WELL


def test_an_unread_far_end_does_not_turn_a_bridge_into_a_switch() -> None:
    bridged = load_machine("8a100-2n-pairs12")
    one = gpu(0, bridged)
    mute = replace(one.nvlinks[0], remote_type=None, remote_bus_id=None)
    mute = replace(mute, errors={"nvmlDeviceGetNvLinkRemotePciInfo_v2": "TIMEOUT"})
    now = with_gpu(bridged, 0, replace(one, nvlinks=(mute, *one.nvlinks[1:])))

    assert discover(now) != discover(bridged)
    assert discover(fill_from_last_good(now, bridged).snapshot) == discover(bridged)


def test_an_unread_pair_keeps_its_distance_unless_indices_changed() -> None:
    nvml = nvml_of(WELL)
    mute = replace(nvml.pairs[0], ancestor=None, errors={"nvmlDeviceGetTopologyCommonAncestor": "UNKNOWN"})
    now = replace(nvml, pairs=(mute, *nvml.pairs[1:]))
    swapped = (replace(now.gpus[1], index=0), replace(now.gpus[0], index=1), *now.gpus[2:])
    moved = replace(now, gpus=swapped)

    assert fill_from_last_good(replace(WELL, nvml=now), WELL).snapshot == WELL
    assert fill_from_last_good(replace(WELL, nvml=moved), WELL).snapshot.nvml == moved


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NOT_FOUND", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"])
def test_a_removed_feature_is_not_kept(error: str) -> None:
    now = with_gpu(WELL, 3, replace(gpu(3), fabric=None, nvlinks=(), errors={"nvmlDeviceGetNvLinkState": error}))

    assert fill_from_last_good(now, WELL).snapshot == now


def test_a_link_that_is_down_is_down() -> None:
    now = ports_down(WELL, 3, 0, 1)

    assert fill_from_last_good(now, WELL).snapshot == now


def test_a_lost_gpu_is_lost() -> None:
    now = gpu_lost(WELL, 3)

    assert nvml_of(fill_from_last_good(now, WELL).snapshot) == nvml_of(now)


def test_a_gpu_that_is_lost_during_a_pass_is_not_completed() -> None:
    half = NvmlGpu(index=3, uuid=gpu(3).uuid, errors={"nvmlDeviceGetName": "GPU_IS_LOST"})

    assert gpu(3, fill_from_last_good(with_gpu(WELL, 3, half), WELL).snapshot) == half


def test_a_call_that_fails_for_good_gives_the_same_snapshot_every_time() -> None:
    first = with_gpu(WELL, 3, replace(gpu(3), memory_bytes=None, errors={"nvmlDeviceGetMemoryInfo": "NO_PERMISSION"}))

    assert fill_from_last_good(first, fill_from_last_good(first, None).snapshot).snapshot == first


def test_one_answer_is_filled_in_beside_a_call_that_fails_for_good() -> None:
    mute = {"nvmlDeviceGetMemoryInfo": "NO_PERMISSION"}
    before = with_gpu(WELL, 3, replace(gpu(3), memory_bytes=None, errors=mute))
    errors = {**mute, "nvmlDeviceGetName": "TIMEOUT"}
    now = with_gpu(WELL, 3, replace(gpu(3), memory_bytes=None, name=None, errors=errors))

    assert fill_from_last_good(now, before).snapshot == before
