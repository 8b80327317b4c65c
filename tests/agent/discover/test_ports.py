"""The far ends of a GPU's ports, from NVML and the PCI bus."""

import pytest

from agent.discover.ports import GpuPorts, lane_bandwidth, ports_from_nvml
from agent.snapshot import NvmlGpu, NvmlLink

PEERS = {"0000:07:00.0": 0, "0000:0f:00.0": 1}
SWITCHES = frozenset({"0000:c4:00.0"})


def port(number: int = 0, *, active: bool = True, to: str | None = None, kind: str | None = None) -> NvmlLink:
    return NvmlLink(link=number, active=active, remote_type=kind, remote_bus_id=to, speed_mbps=25000)


FAR_ENDS = {
    "a visible GPU": (port(to="00000000:0F:00.0", kind="gpu"), GpuPorts(gpus={1: 1}, ports=1, gbps=50.0)),
    "a visible GPU, type unknown": (port(to="00000000:0F:00.0"), GpuPorts(gpus={1: 1}, ports=1, gbps=50.0)),
    "a GPU that is not visible here": (
        port(to="00000000:99:00.0", kind="gpu"),
        GpuPorts(hidden=1, ports=1, gbps=50.0),
    ),
    "an NVSwitch by its type": (port(to="00000000:C4:00.0", kind="switch"), GpuPorts(switch=1, ports=1, gbps=50.0)),
    "an NVSwitch by its place on the bus": (port(to="00000000:C4:00.0"), GpuPorts(switch=1, ports=1, gbps=50.0)),
    "all F, as in virtual machines": (
        port(to="FFFFFFFF:FF:FF.0", kind="unknown"),
        GpuPorts(switch=1, assumed=True, ports=1, gbps=50.0),
    ),
    "no far end, as on NVLink 5": (port(), GpuPorts(switch=1, assumed=True, ports=1, gbps=50.0)),
    "a GPU without an address": (port(kind="gpu"), GpuPorts(switch=1, assumed=True, ports=1, gbps=50.0)),
    "a POWER CPU": (port(to="00000000:0F:00.0", kind="ibmnpu"), GpuPorts(elsewhere=1, ports=1, gbps=50.0)),
    "a port that is down": (port(active=False), GpuPorts(ports=1)),
}


@pytest.mark.parametrize(("link", "expected"), FAR_ENDS.values(), ids=FAR_ENDS)
def test_the_far_end_of_a_port(link: NvmlLink, expected: GpuPorts) -> None:
    assert ports_from_nvml(NvmlGpu(index=0, nvlinks=(link,)), PEERS, SWITCHES) == expected


def test_lanes_to_one_peer_are_added_and_every_active_lane_counts() -> None:
    links = (
        port(0, to="0000:0f:00.0", kind="gpu"),
        port(1, to="0000:0f:00.0", kind="gpu"),
        port(2, kind="ibmnpu"),
        port(3, to="0000:99:00.0", kind="gpu"),
        port(4, active=False),
    )

    ports = ports_from_nvml(NvmlGpu(index=0, nvlinks=links, nvlink_count=6), PEERS, SWITCHES)

    assert ports == GpuPorts(gpus={1: 2}, hidden=1, elsewhere=1, ports=6, gbps=50.0)
    assert ports.active == 4


ASKED = {
    "no NVLink": ({"nvmlDeviceGetNvLinkState": "NOT_SUPPORTED"}, GpuPorts()),
    "an old driver": ({"nvmlDeviceGetNvLinkState": "FUNCTION_NOT_FOUND"}, GpuPorts()),
    "the call failed": ({"nvmlDeviceGetNvLinkState": "UNKNOWN"}, None),
    "a lost GPU": ({"nvmlDeviceGetHandleByIndex_v2": "GPU_IS_LOST"}, None),
}


@pytest.mark.parametrize(("errors", "expected"), ASKED.values(), ids=ASKED)
def test_no_nvlink_differs_from_unknown(errors: dict[str, str], expected: GpuPorts | None) -> None:
    assert ports_from_nvml(NvmlGpu(index=0, errors=errors), PEERS, SWITCHES) == expected


def test_an_unread_port_is_not_down() -> None:
    links = (port(0, kind="switch"), NvmlLink(1, errors={"nvmlDeviceGetNvLinkState": "TIMEOUT"}))

    assert ports_from_nvml(NvmlGpu(index=0, nvlinks=links), PEERS, SWITCHES) is None


def test_lanes_of_different_speeds_have_an_unknown_speed() -> None:
    links = (NvmlLink(0, active=True, speed_mbps=25000), NvmlLink(1, active=True, speed_mbps=20000))

    ports = ports_from_nvml(NvmlGpu(index=0, nvlinks=links), PEERS, SWITCHES)

    assert ports is not None
    assert ports.gbps is None


SPEEDS = {
    "V100": (25781, 50.0),
    "A100": (25000, 50.0),
    "H100": (26562, 50.0),
    "B200": (53125, 100.0),
    "new": (60000, 120.0),
}


@pytest.mark.parametrize(("mbps", "gbps"), SPEEDS.values(), ids=SPEEDS)
def test_a_lane_carries_its_payload_rate_both_ways(mbps: int, gbps: float) -> None:
    assert lane_bandwidth(mbps) == gbps
