"""The metrics of a machine, and their documentation."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from agent.daemon.health_metrics import HEALTH_TALLIES
from agent.daemon.metrics import CATALOGUE, COUNTERS, GAUGES, TIMES, AgentMetrics, status_samples
from agent.daemon.status import AgentStatus
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.model import Degradation, Gpu, Health, NodeTopology, Nvlink
from tests.machines import a100_mesh, dgx1_link_down, h100_lost_gpu, hgx_h100

MESH = a100_mesh()


def samples_with(status: AgentStatus, *prefixes: str) -> dict[tuple[str, ...], float]:
    """Samples with that prefix: (name without the prefix, label values) -> value."""
    return {
        (name.removeprefix("gputopo_"), *labels): value
        for name, labels, value in status_samples(status)
        if name.removeprefix("gputopo_").startswith(prefixes)
    }


def of(topology: NodeTopology) -> AgentStatus:
    return AgentStatus(iterated_at=0.0, observed=topology)


def test_an_agent_without_a_pass_has_its_build_info() -> None:
    assert [name for name, _, _ in status_samples(AgentStatus(iterated_at=0.0))] == [
        "gputopo_build_info",
        "gputopo_podresources_up",
        "gputopo_keys_kept_by_others",
        "gputopo_published",
        "gputopo_ready",
    ]


def test_a_gpu_is_labelled_by_its_uuid() -> None:
    gpu = MESH.gpus[2]
    uuid = str(gpu.uuid)

    assert {key: value for key, value in samples_with(of(MESH), "gpu_").items() if uuid in key} == {
        ("gpu_info", uuid, "2", "NVIDIA A100-SXM4-80GB", str(gpu.bus_id), "1"): 1,
        ("gpu_up", uuid): 1,
        ("gpu_memory_bytes", uuid): 81920 * 2**20,
    }


def test_a_lost_gpu_is_down_and_has_no_memory() -> None:
    status = of(h100_lost_gpu())
    bus_id = str(h100_lost_gpu().gpus[2].bus_id)

    assert {key[0]: value for key, value in samples_with(status, "gpu_").items() if key[1] == bus_id} == {
        "gpu_info": 1,
        "gpu_up": 0,
    }
    assert samples_with(status, "degraded") == {("degraded", "gpu2"): 1}


def test_a_gpu_without_uuid_and_bus_id_is_labelled_by_its_index() -> None:
    assert samples_with(of(NodeTopology(gpus=(Gpu(index=3, health=Health.LOST),))), "gpu_up") == {("gpu_up", "gpu3"): 0}


def test_an_island_has_a_size_and_a_bandwidth_where_it_has_one() -> None:
    assert samples_with(of(MESH), "island") == {
        ("island_gpus", "0", "nvlink"): 4,
        ("island_bandwidth_gigabytes_per_second", "0", "nvlink"): 600,
    }
    assert samples_with(of(NodeTopology(gpus=(Gpu(index=0),), nvlink=Nvlink())), "island") == {
        ("island_gpus", "0", "none"): 1
    }


def test_a_link_has_lanes_bandwidth_and_a_state() -> None:
    links = samples_with(of(dgx1_link_down()), "link")

    def of_pair(a: str, b: str) -> dict[tuple[str, ...], float]:
        return {(key[0], *key[3:]): value for key, value in links.items() if key[1:3] == (a, b)}

    states = [("link_state", "up"), ("link_state", "degraded"), ("link_state", "down")]
    assert of_pair("0", "3") == {
        ("link_lanes",): 1,
        ("link_expected_lanes",): 2,
        ("link_bandwidth_gigabytes_per_second",): 50,
        ("link_state", "up"): 0,
        ("link_state", "degraded"): 1,
        ("link_state", "down"): 0,
    }
    assert [of_pair("5", "7")[state] for state in states] == [0, 0, 1]
    assert [of_pair("0", "4")[state] for state in states] == [1, 0, 0]


def test_a_link_into_a_switch_names_the_fabric_and_what_is_unknown_is_left_out() -> None:
    blind = hgx_h100()
    assert blind.nvlink is not None
    bare = msgspec.structs.replace(blind.nvlink.uplinks[0], expected_lanes=None, gbps=None)
    one = msgspec.structs.replace(blind, nvlink=msgspec.structs.replace(blind.nvlink, uplinks=(bare,)))

    assert samples_with(of(one), "link") == {
        ("link_lanes", "0", "nvswitch0"): 18,
        ("link_state", "0", "nvswitch0", "up"): 1,
        ("link_state", "0", "nvswitch0", "degraded"): 0,
        ("link_state", "0", "nvswitch0", "down"): 0,
    }


def test_links_that_are_unknown_have_no_series() -> None:
    assert samples_with(of(msgspec.structs.replace(MESH, nvlink=None)), "link", "island") == {}


def test_holders_are_counted_by_container_and_unknown_without_a_kubelet() -> None:
    uuid = str(MESH.gpus[0].uuid)
    one, other = PodRef("ml", "a", "main"), PodRef("ml", "b", "main")
    held = (DeviceAllocation(uuid, one, 0), DeviceAllocation(uuid, one, 1), DeviceAllocation(uuid, other, 2))

    status = msgspec.structs.replace(of(MESH), allocations=held)

    assert list(samples_with(status, "gpu_holders").values()) == [2, 0, 0, 0]
    assert samples_with(of(MESH), "gpu_holders") == {}


def test_the_state_of_the_agent() -> None:
    status = AgentStatus(
        iterated_at=0.0,
        published=msgspec.structs.replace(MESH, degraded=(Degradation("gpu0", "lost"),)),
        observed_at=1234.0,
        failures={"nvml": "UNKNOWN"},
        good_at={"nvml": 1200.0, "sysfs": 1234.0},
        podresources_error="no socket",
        kept_by_others=("nvidia.com/gpu.product",),
        pending=False,
        unready_reason=None,
    )

    assert samples_with(status, "published", "observed", "source", "podresources", "keys", "ready") == {
        ("published_degraded",): 1,
        ("observed_timestamp_seconds",): 1234,
        ("source_up", "nvml"): 0,
        ("source_up", "sysfs"): 1,
        ("source_good_timestamp_seconds", "nvml"): 1200,
        ("source_good_timestamp_seconds", "sysfs"): 1234,
        ("podresources_up",): 0,
        ("keys_kept_by_others",): 1,
        ("published",): 1,
        ("ready",): 1,
    }


@pytest.mark.parametrize("machine", [MESH, dgx1_link_down(), h100_lost_gpu(), hgx_h100()])
def test_every_sample_has_a_family_with_its_labels(machine: NodeTopology) -> None:
    assert all(len(GAUGES[name][0]) == len(labels) for name, labels, _ in status_samples(of(machine)))


def test_calls_of_nvml_that_fail_are_named() -> None:
    status = msgspec.structs.replace(of(MESH), failed_calls={"nvmlDeviceGetName": "TIMEOUT for GPU 3"})

    assert samples_with(status, "nvml") == {("nvml_call_failed", "nvmlDeviceGetName"): 1}


def test_every_exposed_metric_is_in_the_catalogue() -> None:
    metrics = AgentMetrics()
    metrics.register_status(lambda: of(MESH))
    exposed = {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, family.documentation)
        for family in metrics.registry.collect()
    }

    assert set(exposed) == {*(f"{name}_total" for name in (*COUNTERS, *HEALTH_TALLIES)), *GAUGES, *TIMES}
    assert {name: (kind, meaning) for name, kind, _, meaning in CATALOGUE.described()} == exposed


def test_the_default_registry_is_not_changed() -> None:
    code = (
        "from prometheus_client import REGISTRY as r; n = len(list(r.collect())); "
        "from agent.daemon.metrics import AgentMetrics; AgentMetrics(); assert len(list(r.collect())) == n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
