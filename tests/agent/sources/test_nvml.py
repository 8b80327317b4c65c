"""Reading NVML, through the real bindings with a fake driver."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from agent.snapshot import Nvml, NvmlC2cLink, NvmlFabric, NvmlGpu, NvmlLink, NvmlMigDevice, NvmlPair, NvmlPlatform
from agent.sources.nvml import read_nvml, structures
from tests.agent.sources.fake_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeDriver,
    FakeGpu,
    FakeLink,
    FakeMig,
    Fault,
    plug,
    write,
)
from tests.agent.sources.fake_nvml_health import FIELD_VALUE, FakeFabric, FakeHealth

NO_FABRIC = dict.fromkeys(
    (
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetNumaNodeId",
        "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetRemappedRows",
    ),
    "NOT_SUPPORTED",
)
BARE = {**NO_FABRIC, "nvmlDeviceGetNvLinkState": "NOT_SUPPORTED"}
LINK = NvmlLink(
    link=0, active=True, version=6, remote_type="switch", remote_bus_id="00000000:C1:00.0", speed_mbps=26562
)
UNKNOWN_ERROR = 999


def read(*gpus: FakeGpu, cpus: int = 4, **driver: Any) -> Nvml:
    return read_nvml(plug(FakeDriver(*gpus, **driver)), cpus)


def gpu_of(gpu: FakeGpu, **driver: Any) -> NvmlGpu:
    return read(gpu, **driver).gpus[0]


def test_a_gpu_without_nvlink_is_read_whole() -> None:
    gpu = FakeGpu(
        uuid=b"GPU-aabbccdd-0000-0000-0000-000000000001",
        bus_id=b"00000000:AF:00.0",
        minor=3,
        name=b"NVIDIA L40S",
        architecture=8,
        capability=(8, 9),
        memory=46068 * 2**20,
        memory_used=512 * 2**20,
        busy=37,
        cpus=frozenset({0, 2, 3, 64, 65}),
        nodes=frozenset({0, 5}),
        mig_mode=None,
    )

    assert read(gpu) == Nvml(
        driver_version="580.95.05",
        cuda_version=13000,
        nvml_version="13.580.95.05",
        device_count=1,
        gpus=(
            NvmlGpu(
                index=0,
                uuid="GPU-aabbccdd-0000-0000-0000-000000000001",
                bus_id="00000000:AF:00.0",
                minor=3,
                name="NVIDIA L40S",
                architecture=8,
                compute_capability=(8, 9),
                memory_bytes=46068 * 2**20,
                memory_used_bytes=512 * 2**20,
                busy_percent=37,
                cpu_affinity="0,2-3,64-65",
                memory_affinity="0,5",
                pcie_generation=1,
                pcie_width=8,
                pcie_max_generation=5,
                pcie_max_width=16,
                performance_state=8,
                errors={**BARE, "nvmlDeviceGetMigMode": "NOT_SUPPORTED"},
            ),
        ),
    )


@pytest.mark.parametrize(
    ("code", "name"),
    [
        pytest.param(DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", id="no driver"),
        pytest.param(12, "LIBRARY_NOT_FOUND", id="no library"),
        pytest.param(18, "LIB_RM_VERSION_MISMATCH", id="after an upgrade"),
        pytest.param(4, "NO_PERMISSION", id="no permission"),
        pytest.param(999, "UNKNOWN", id="device cgroup lost"),
        pytest.param(4321, "ERROR_4321", id="a code younger than the bindings"),
    ],
)
def test_where_nvml_does_not_start_the_reason_is_the_answer(code: int, name: str) -> None:
    assert read(FakeGpu(), init=code) == Nvml(error=f"nvmlInit_v2: {name}")


def test_a_machine_without_gpus_is_not_an_error() -> None:
    assert read() == Nvml(driver_version="580.95.05", cuda_version=13000, nvml_version="13.580.95.05", device_count=0)


def test_functions_that_an_old_driver_lacks_are_named() -> None:
    missing = frozenset({"nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2"})

    assert read(FakeGpu(), missing=missing) == Nvml(
        driver_version="580.95.05",
        nvml_version="13.580.95.05",
        errors={
            "nvmlSystemGetCudaDriverVersion_v2": "FUNCTION_NOT_FOUND",
            "nvmlDeviceGetCount_v2": "FUNCTION_NOT_FOUND",
        },
    )


def test_functions_that_old_bindings_lack_are_named() -> None:
    lib = plug(FakeDriver(FakeGpu()))
    old = SimpleNamespace(**{name: each for name, each in vars(lib).items() if name != "nvmlDeviceGetNumaNodeId"})

    assert read_nvml(old, 4).gpus[0].errors == {**BARE, "nvmlDeviceGetNumaNodeId": "FUNCTION_NOT_FOUND"}


def test_a_lost_gpu_keeps_its_index_and_the_others_are_read() -> None:
    nvml = read(FakeGpu(fails={"nvmlDeviceGetHandleByIndex_v2": GPU_IS_LOST}), FakeGpu(minor=1), FakeGpu(minor=2))

    assert nvml.gpus[0] == NvmlGpu(index=0, errors={"nvmlDeviceGetHandleByIndex_v2": "GPU_IS_LOST"})
    assert [(gpu.index, gpu.minor) for gpu in nvml.gpus[1:]] == [(1, 1), (2, 2)]
    assert [(pair.a, pair.b) for pair in nvml.pairs] == [(1, 2)]


def test_each_call_about_a_gpu_that_is_lost_meanwhile_has_its_error() -> None:
    calls = ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState")
    gpu = gpu_of(FakeGpu(fails=dict.fromkeys(calls, GPU_IS_LOST)))

    assert (gpu.name, gpu.memory_bytes, gpu.mig_mode, gpu.nvlinks) == (None, None, None, ())
    assert gpu.errors == {**NO_FABRIC, **dict.fromkeys(calls, "GPU_IS_LOST")}


def test_nvml_is_shut_down_after_a_pass() -> None:
    driver = FakeDriver(FakeGpu())

    read_nvml(plug(driver), 4)

    assert driver.initialised == 0
    assert driver.calls["nvmlShutdown"] == 1


def test_nvml_is_shut_down_after_an_exception_of_the_bindings() -> None:
    driver = FakeDriver(FakeGpu())
    lib = plug(driver)

    with pytest.raises(TypeError):
        read_nvml(lib, "four")  # type: ignore[arg-type]

    assert driver.initialised == 0


def test_a_failed_shutdown_keeps_the_facts() -> None:
    assert read(missing=frozenset({"nvmlShutdown"})).device_count == 0


@pytest.mark.parametrize(
    ("cpus", "ids", "expected"),
    [
        pytest.param(4, frozenset({0, 1, 2, 3}), "0-3", id="from the first"),
        pytest.param(192, frozenset({63, 64, 127}), "63-64,127", id="across words"),
        pytest.param(2048, frozenset({0, 2047}), "0,2047", id="more CPUs than the least set holds, up to its last bit"),
        pytest.param(8, frozenset({900}), "900", id="CPU ids with holes go beyond the number of CPUs"),
        pytest.param(4, frozenset(), None, id="no CPU at all is not an answer"),
    ],
)
def test_cpu_affinity_is_a_cpulist(cpus: int, ids: frozenset[int], expected: str | None) -> None:
    assert read(FakeGpu(cpus=ids), cpus=cpus).gpus[0].cpu_affinity == expected


def test_ports_are_counted_by_their_state() -> None:
    gpu = gpu_of(FakeGpu(links=(FakeLink(), FakeLink(active=False))))

    assert (gpu.nvlink_count, gpu.nvlinks) == (2, (LINK, NvmlLink(link=1, active=False)))
    assert gpu.errors == NO_FABRIC


@pytest.mark.parametrize(
    ("limit", "asked"),
    [
        pytest.param(18, 36, id="bindings older than the GPU"),
        pytest.param(36, 36, id="bindings 13"),
        pytest.param(72, 40, id="bindings younger than this table"),
    ],
)
def test_ports_are_read_up_to_the_newest_known_limit(limit: int, asked: int) -> None:
    lib = plug(FakeDriver(FakeGpu(links=(FakeLink(),) * 40)))
    bindings = SimpleNamespace(**{**vars(lib), "NVML_NVLINK_MAX_LINKS": limit})

    assert len(read_nvml(bindings, 4).gpus[0].nvlinks) == asked


@pytest.mark.parametrize(
    ("remote_type", "result"),
    [
        pytest.param(0, "gpu", id="gpu"),
        pytest.param(1, "ibmnpu", id="POWER9 processor"),
        pytest.param(255, "unknown", id="hidden by a hypervisor"),
        pytest.param(7, "7", id="younger than this table"),
    ],
)
def test_the_far_end_of_a_port_has_a_type(remote_type: int, result: str) -> None:
    assert gpu_of(FakeGpu(links=(FakeLink(remote_type=remote_type),))).nvlinks[0].remote_type == result


def test_a_hidden_far_end_is_noted_at_its_port() -> None:
    hidden = FakeLink(remote_type=None, remote_bus_id=None)

    assert gpu_of(FakeGpu(links=(hidden, FakeLink(remote_bus_id=b"")))).nvlinks == (
        NvmlLink(
            link=0,
            active=True,
            version=6,
            speed_mbps=26562,
            errors={
                "nvmlDeviceGetNvLinkRemoteDeviceType": "NOT_SUPPORTED",
                "nvmlDeviceGetNvLinkRemotePciInfo_v2": "NOT_SUPPORTED",
            },
        ),
        NvmlLink(link=1, active=True, version=6, remote_type="switch", remote_bus_id="", speed_mbps=26562),
    )


def test_garbage_in_a_bus_id_is_an_unreadable_value() -> None:
    link = gpu_of(FakeGpu(links=(FakeLink(remote_bus_id=b"\xff\xfe"),))).nvlinks[0]

    assert link.remote_bus_id is None
    assert link.errors == {"nvmlDeviceGetNvLinkRemotePciInfo_v2": "UNREADABLE"}


def test_garbage_in_a_name_is_an_unreadable_value() -> None:
    gpu = gpu_of(FakeGpu(name=b"\xff"))

    assert (gpu.name, gpu.errors) == (None, {**BARE, "nvmlDeviceGetName": "UNREADABLE"})


@pytest.mark.parametrize(
    ("links", "ports"),
    [
        pytest.param(
            (FakeLink(), FakeLink(error=NOT_SUPPORTED), FakeLink(active=False)), [(0, True), (2, False)], id="a hole"
        ),
        pytest.param((FakeLink(), FakeLink(error=UNKNOWN_ERROR)), [(0, True), (1, None)], id="a sick port"),
        pytest.param(
            (FakeLink(), FakeLink(error=GPU_IS_LOST), FakeLink()), [(0, True), (1, None)], id="lost on the way"
        ),
        pytest.param((FakeLink(error=INVALID_ARGUMENT),) * 2, [], id="no port"),
        pytest.param(
            (FakeLink(error=INVALID_ARGUMENT), FakeLink()), [(0, None), (1, True)], id="a first port that fails once"
        ),
        pytest.param(
            (FakeLink(), FakeLink(error=INVALID_ARGUMENT), FakeLink()),
            [(0, True), (1, None), (2, True)],
            id="a port that fails once",
        ),
    ],
)
def test_the_walk_over_the_ports_ends_where_there_are_none(
    links: tuple[FakeLink, ...], ports: list[tuple[int, bool | None]]
) -> None:
    assert [(port.link, port.active) for port in gpu_of(FakeGpu(links=links)).nvlinks] == ports


def test_a_failing_port_has_its_error() -> None:
    sick = gpu_of(FakeGpu(links=(FakeLink(error=UNKNOWN_ERROR),)))

    assert sick.nvlinks == (NvmlLink(link=0, errors={"nvmlDeviceGetNvLinkState": "UNKNOWN"}),)


@pytest.mark.parametrize(
    ("speed", "driver", "result"),
    [
        pytest.param(25781, {"speed_field": False}, 25781, id="an old driver knows one speed for all"),
        pytest.param(0, {}, None, id="no speed is an unknown speed"),
        pytest.param(25781, {"missing": frozenset({"nvmlDeviceGetFieldValues"})}, None, id="no field values at all"),
    ],
)
def test_the_speed_comes_from_the_newest_field_that_answers(
    speed: int, driver: dict[str, Any], result: int | None
) -> None:
    assert gpu_of(FakeGpu(links=(FakeLink(speed=speed),)), **driver).nvlinks[0].speed_mbps == result


def test_all_ports_are_asked_for_their_speed_in_one_call() -> None:
    driver = FakeDriver(FakeGpu(links=(FakeLink(),) * 18))

    read_nvml(plug(driver), 4)

    assert driver.calls["nvmlDeviceGetFieldValues"] == 1


CLUSTER = UUID("7b968a6d-c8aa-45e1-9e07-e1e51be99c31")
FABRIC = FakeFabric(cluster=CLUSTER, clique=2, health_mask=0x1234, health_summary=1)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        pytest.param({}, NvmlFabric(3, 0, str(CLUSTER), 2, 0x1234, 1), id="v3"),
        pytest.param({"fabric_version": 2}, NvmlFabric(3, 0, str(CLUSTER), 2, 0x1234), id="v2"),
        pytest.param(
            {"missing": frozenset({"nvmlDeviceGetGpuFabricInfoV"})}, NvmlFabric(3, 0, str(CLUSTER), 2), id="v1"
        ),
    ],
)
def test_fabric_membership_is_read_in_the_newest_way_the_driver_knows(
    driver: dict[str, Any], expected: NvmlFabric
) -> None:
    gpu = gpu_of(FakeGpu(fabric=FABRIC), **driver)

    assert gpu.fabric == expected
    assert "nvmlDeviceGetGpuFabricInfoV" not in gpu.errors


def test_bindings_with_a_wrong_fabric_structure_do_not_change_the_facts() -> None:
    """nvidia-ml-py 12.560 declares 80 bytes for the cluster UUID, as does 12.575 for the oldest structure."""
    lib = plug(FakeDriver(FakeGpu(fabric=FABRIC)))

    class Structure(lib._PrintableStructure):  # type: ignore[misc, name-defined]
        _fields_ = (
            ("version", ctypes.c_uint),
            ("clusterUuid", ctypes.c_char * 80),
            ("status", ctypes.c_uint),
            ("cliqueId", ctypes.c_uint32),
            ("state", ctypes.c_ubyte),
            ("healthMask", ctypes.c_uint32),
        )

        def __init__(self) -> None:
            super().__init__(version=0x02000024)

    old = SimpleNamespace(**{name: each for name, each in vars(lib).items() if name != "c_nvmlGpuFabricInfo_v3_t"})
    old.c_nvmlGpuFabricInfoV_t = Structure

    assert read_nvml(old, 4).gpus[0].fabric == NvmlFabric(3, 0, str(CLUSTER), 2, 0x1234, 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(
            {"nvmlPciInfo_t": ctypes.c_ubyte * 20}, "declare 20 bytes for nvmlPciInfo_t, nvml.h 68", id="size"
        ),
        pytest.param({"c_nvmlFieldValue_t": None}, "lack c_nvmlFieldValue_t", id="missing"),
    ],
)
def test_bindings_that_read_other_bytes_than_the_driver_writes_are_an_error(change: dict[str, Any], why: str) -> None:
    lib = SimpleNamespace(**{**vars(plug(FakeDriver(FakeGpu()))), **change})

    assert read_nvml(lib, 4) == Nvml(error=f"the NVML bindings {why}; install nvidia-ml-py 12.570 or newer")


def test_bindings_that_cannot_read_a_fabric_are_an_error() -> None:
    """nvidia-ml-py 12.535: a registered fabric would look like none."""
    lib = plug(FakeDriver(FakeGpu(fabric=FABRIC)))
    old = SimpleNamespace(**{name: each for name, each in vars(lib).items() if name != "nvmlDeviceGetGpuFabricInfoV"})

    assert read_nvml(old, 4).error == (
        "the NVML bindings lack nvmlDeviceGetGpuFabricInfoV; install nvidia-ml-py 12.570 or newer"
    )


def test_the_structures_have_the_sizes_of_the_header() -> None:
    """The versions of nvml.h contain the size: nvmlGpuFabricInfo_v2 is 0x02000024."""
    assert ctypes.sizeof(structures.FabricInfoV1) == 28
    assert [
        each().version
        for each in (
            structures.FabricInfoV2,
            structures.FabricInfoV3,
            structures.PlatformInfoV1,
            structures.PlatformInfo,
        )
    ] == [0x02000024, 0x03000028, 0x0100002C, 0x0200002C]


RICH = FakeHealth(
    ecc=(1, 3, 1),
    remapped=(2, 1, 0, 1),
    platform=(b"1820325190001", 24, 5, 0, 2),
    c2c=(1, 0),
    counters={161: 7, 162: 2, 163: 900},
)


def test_health_facts_are_read() -> None:
    gpu = gpu_of(FakeGpu(health=RICH, links=(FakeLink(), FakeLink(active=False))))

    assert (gpu.ecc_mode, gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.remapped_rows) == (1, 3, 1, (2, 1, 0, 1))
    assert gpu.platform == NvmlPlatform("1820325190001", slot=24, tray=5, host=0, module=2)
    assert gpu.c2c_links == (NvmlC2cLink(0, True, 44712), NvmlC2cLink(1, False, 44712))
    assert [link.counters for link in gpu.nvlinks] == [{"replay": 7, "recovery": 2, "crc": 900}, {}]


def test_health_facts_come_from_older_calls_too() -> None:
    rack = FakeHealth(platform=(b"\x01" * 16, 1, 2, 3, 4), platform_version=1, old_counters=(5, 6, 7), ecc=(0, 0, 0))
    gpu = gpu_of(FakeGpu(health=rack, links=(FakeLink(version=4),)))

    assert gpu.nvlinks[0].counters == {"replay": 5, "recovery": 6, "crc": 7}
    assert gpu.platform == NvmlPlatform("01" * 16, slot=1, tray=2, host=3, module=4)
    assert (gpu.ecc_mode, gpu.ecc_corrected) == (0, None)


def test_an_old_call_for_error_counters_is_not_made_for_nvlink_5() -> None:
    driver = FakeDriver(FakeGpu(health=FakeHealth(old_counters=(1, 1, 1)), links=(FakeLink(version=7),)))

    assert read_nvml(plug(driver), 4).gpus[0].nvlinks[0].counters == {}
    assert driver.calls["nvmlDeviceGetNvLinkErrorCounter"] == 0


@pytest.mark.parametrize("serial", [b"", b"\xff\xfe", b"a\nb"], ids=["none", "no text", "two lines"])
def test_an_unreadable_chassis_is_unknown(serial: bytes) -> None:
    platform = gpu_of(FakeGpu(health=FakeHealth(platform=(serial, 1, 2, 3, 4)))).platform

    assert platform == NvmlPlatform(None, slot=1, tray=2, host=3, module=4)


@pytest.mark.parametrize("function", ["nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"])
def test_a_gpu_that_is_lost_after_it_was_read_is_found_by_its_pairs(function: str) -> None:
    driver = FakeDriver(FakeGpu(), FakeGpu(minor=1), FakeGpu(minor=2))
    driver.faults = [Fault(function, GPU_IS_LOST, gpu=1)]
    lost_now = Fault("nvmlDeviceGetMemoryInfo", GPU_IS_LOST, gpu=2)

    assert [gpu.access_error for gpu in read_nvml(plug(driver), 4).gpus] == [None, None, None]
    driver.faults.append(Fault("nvmlDeviceGetMemoryInfo", 0, gpu=2, times=1))  # the first call still succeeds
    driver.faults.append(lost_now)
    assert [gpu.access_error for gpu in read_nvml(plug(driver), 4).gpus] == [None, None, "GPU_IS_LOST"]


@pytest.mark.parametrize("code", [GPU_IS_LOST, 16], ids=["lost", "to be reset"])
@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetName", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues", FIELD_VALUE, "nvmlDeviceGetEccMode"],
)
def test_any_call_shows_that_a_gpu_is_lost(function: str, code: int) -> None:
    gpu = gpu_of(FakeGpu(links=(FakeLink(),), fails={function: code}))

    assert gpu.access_error == {GPU_IS_LOST: "GPU_IS_LOST", 16: "RESET_REQUIRED"}[code]


def test_a_gpu_that_reports_nothing_of_itself_does_not_answer() -> None:
    calls = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName")

    assert gpu_of(FakeGpu(fails=dict.fromkeys(calls, UNKNOWN_ERROR))).access_error == "UNKNOWN"
    assert gpu_of(FakeGpu(fails=dict.fromkeys(calls[:2], UNKNOWN_ERROR))).access_error is None


def test_a_cluster_of_zeroes_is_recorded_as_it_is() -> None:
    assert gpu_of(FakeGpu(fabric=FakeFabric(state=1, status=27))).fabric == NvmlFabric(
        1, 27, "00000000-0000-0000-0000-000000000000", 0, 0, 0
    )


def test_a_missing_fabric_function_is_reported() -> None:
    missing = frozenset({"nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"})

    assert gpu_of(FakeGpu(), missing=missing).errors["nvmlDeviceGetGpuFabricInfo"] == "FUNCTION_NOT_FOUND"


def test_mig_devices_are_read_and_free_slots_skipped() -> None:
    gpu = FakeGpu(
        mig_mode=1,
        mig_slots=(
            None,
            FakeMig(b"MIG-1", b"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * 2**20, gpu_instance=7),
            FakeMig(b"", b"", 0, 0, error=UNKNOWN_ERROR),
        ),
    )

    assert gpu_of(gpu).mig_devices == (
        NvmlMigDevice(
            slot=1,
            uuid="MIG-1",
            name="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            memory_bytes=4864 * 2**20,
            gpu_instance=7,
            compute_instance=0,
        ),
        NvmlMigDevice(slot=2, errors={"nvmlDeviceGetMigDeviceHandleByIndex": "UNKNOWN"}),
    )


@pytest.mark.parametrize(
    ("gpu", "mode"),
    [
        pytest.param(FakeGpu(mig_mode=0, mig_slots=(FakeMig(b"M", b"M", 1, 1),)), 0, id="off"),
        pytest.param(FakeGpu(mig_mode=1, fails={"nvmlDeviceGetMaxMigDeviceCount": NOT_SUPPORTED}), 1, id="no count"),
    ],
)
def test_there_may_be_no_mig_devices(gpu: FakeGpu, mode: int) -> None:
    result = gpu_of(gpu)

    assert (result.mig_mode, result.mig_devices) == (mode, ())


def test_a_gpu_in_mig_mode_has_no_busy_share() -> None:
    gpu = gpu_of(FakeGpu(mig_mode=1, busy=None))

    assert gpu.busy_percent is None
    assert gpu.errors["nvmlDeviceGetUtilizationRates"] == "NOT_SUPPORTED"


def test_the_memory_of_a_mig_device_may_be_refused() -> None:
    """In MIG mode the whole GPU needs a privilege, and so may its parts in a container."""
    gpu = FakeGpu(
        mig_mode=1, mig_slots=(FakeMig(b"MIG-1", b"X", 1, gpu_instance=1),), fails={"nvmlDeviceGetMemoryInfo": 4}
    )

    assert gpu_of(gpu).mig_devices == (
        NvmlMigDevice(
            slot=0,
            uuid="MIG-1",
            name="X",
            gpu_instance=1,
            compute_instance=0,
            errors={"nvmlDeviceGetMemoryInfo": "NO_PERMISSION"},
        ),
    )


def test_a_grace_gpu_names_its_own_memory_node() -> None:
    assert gpu_of(FakeGpu(numa_node_id=4)).numa_node_id == 4


def test_pairs_have_their_common_ancestor_and_peer_access() -> None:
    driver = FakeDriver(FakeGpu(), FakeGpu(), FakeGpu())
    driver.ancestors = {(0, 1): 10, (0, 2): 50}
    driver.p2p = {(0, 1): 0}

    assert read_nvml(plug(driver), 4).pairs == (
        NvmlPair(a=0, b=1, ancestor=10, p2p_nvlink=0),
        NvmlPair(a=0, b=2, ancestor=50, p2p_nvlink=5),
        NvmlPair(a=1, b=2, p2p_nvlink=5, errors={"nvmlDeviceGetTopologyCommonAncestor": "NOT_SUPPORTED"}),
    )


class _ManyGpus(FakeDriver):
    """A driver that counts too many GPUs and MIG devices."""

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:  # noqa: N802
        return write(out, 1 << 31) if not self.gpus else super()._nvmlDeviceGetCount_v2(out)

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, out: Any) -> int:  # noqa: N802
        return write(out, 1 << 16)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: Any, _slot: Any, _out: Any) -> int:  # noqa: N802
        return NOT_FOUND


def test_too_many_gpus_are_refused() -> None:
    driver = _ManyGpus()

    nvml = read_nvml(plug(driver), 4)

    assert nvml.error == "nvmlDeviceGetCount_v2: 2147483648 GPUs; at most 64 are supported; check the driver"
    assert driver.initialised == 0


def test_too_many_slots_of_mig_devices_are_not_read() -> None:
    driver = _ManyGpus(FakeGpu(mig_mode=1))

    assert read_nvml(plug(driver), 4).gpus[0].mig_devices == ()
    assert driver.calls["nvmlDeviceGetMigDeviceHandleByIndex"] == 64
