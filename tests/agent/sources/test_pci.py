"""Interpretation of the texts of /sys."""

from __future__ import annotations

import pytest

from agent.snapshot import Sysfs
from agent.sources.pci import (
    PciDevice,
    RdmaDevice,
    find_gpus,
    find_numa_nodes,
    find_rdma_devices,
    find_switches,
    pcie_distance,
    pcie_generation,
    product_name,
)
from gputopo.model import NumaNode, Pcie, PcieDistance

BUS = "bus/pci/devices"


def device(bus_id: str, pci_class: str, vendor: str = "0x10de", **files: str) -> dict[str, str]:
    result = {"vendor": vendor, "class": pci_class, **files}
    return {f"{BUS}/{bus_id}/{name}": f"{text}\n" for name, text in result.items()}


def test_gpus_are_distinguished_from_other_devices() -> None:
    sysfs = Sysfs(
        files={
            **device(
                "0000:c1:00.0",
                "0x030200",
                numa_node="1",
                local_cpulist="64-127",
                current_link_speed="2.5 GT/s PCIe",
                current_link_width="8",
                max_link_speed="32.0 GT/s PCIe",
                max_link_width="16",
            ),
            **device("0000:07:00.0", "0x030000"),
            **device("0000:08:00.0", "0x068000"),
            **device("0000:09:00.0", "0x030000", vendor="0x102b"),
            **device("0000:0a:00.0", "0x020700", vendor="0x15b3"),
            f"{BUS}/0000:0b:00.0/class": "0x030000\n",
        },
        links={f"{BUS}/0000:c1:00.0": "devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0"},
    )

    assert find_gpus(sysfs) == (
        PciDevice("0000:07:00.0", None, None, Pcie(), ()),
        PciDevice(
            "0000:c1:00.0",
            1,
            "64-127",
            Pcie(generation=1, width=8, max_generation=5, max_width=16),
            ("devices", "pci0000:c0", "0000:c0:01.1", "0000:c1:00.0"),
        ),
    )
    assert find_switches(sysfs) == (PciDevice("0000:08:00.0", None, None, Pcie(), ()),)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"numa_node": "0"}, PciDevice("b", 0, None, Pcie(), ()), id="node 0"),
        pytest.param({"numa_node": "-1"}, PciDevice("b", None, None, Pcie(), ()), id="the kernel does not know"),
        pytest.param({"numa_node": "²"}, PciDevice("b", None, None, Pcie(), ()), id="a digit that is no number"),
        pytest.param({"local_cpulist": ""}, PciDevice("b", None, None, Pcie(), ()), id="no CPU"),
        pytest.param(
            {"current_link_width": "0", "max_link_width": "255"}, PciDevice("b", None, None, Pcie(), ()), id="no width"
        ),
    ],
)
def test_unknown_is_none(files: dict[str, str], expected: PciDevice) -> None:
    assert find_gpus(Sysfs(files=device("b", "0x030200", **files))) == (expected,)


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        pytest.param("2.5 GT/s PCIe", 1, id="gen1"),
        pytest.param("5.0 GT/s PCIe", 2, id="gen2"),
        pytest.param("8.0 GT/s PCIe\n", 3, id="gen3"),
        pytest.param("8 GT/s", 3, id="gen3 before Linux 5.7"),
        pytest.param("16.0 GT/s PCIe", 4, id="gen4"),
        pytest.param("32.0 GT/s PCIe", 5, id="gen5"),
        pytest.param("64.0 GT/s PCIe", 6, id="gen6"),
        pytest.param("128.0 GT/s PCIe", 7, id="gen7"),
        pytest.param("Unknown", None, id="unknown"),
        pytest.param("Unknown speed", None, id="unknown in older words"),
        pytest.param("133 MHz PCI-X", None, id="not PCI Express"),
        pytest.param("9.0 GT/s PCIe", None, id="no generation has this speed"),
        pytest.param(None, None, id="absent"),
    ],
)
def test_a_link_speed_is_a_generation(speed: str | None, generation: int | None) -> None:
    assert pcie_generation(speed) == generation


def at(path: str, numa: int | None = None) -> PciDevice:
    return PciDevice(path.rsplit("/", 1)[-1], numa, None, Pcie(), tuple(path.split("/")) if path else ())


SWITCH = "devices/pci0000:00/0000:00:01.1/0000:01:00.0"  # root port, upstream port of a switch
HYPERV = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(
            at(f"{SWITCH}/0000:02:00.0/0000:03:00.0"),
            at(f"{SWITCH}/0000:02:01.0/0000:04:00.0"),
            PcieDistance.PIX,
            id="two ports of one switch",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:00:01.1/0000:01:00.0"),
            at("devices/pci0000:00/0000:00:01.1/0000:01:00.1"),
            PcieDistance.PIX,
            id="two functions behind one root port",
        ),
        pytest.param(
            at(f"{SWITCH}/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0"),
            at(f"{SWITCH}/0000:02:01.0/0000:06:00.0"),
            PcieDistance.PXB,
            id="a switch behind a switch",
        ),
        pytest.param(
            at(f"{SWITCH}/0000:02:00.0/0000:03:00.0"),
            at(f"{SWITCH}/0000:02:01.0/0000:06:00.0/0000:07:00.0/0000:08:00.0"),
            PcieDistance.PXB,
            id="the other one is the deeper one",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:00:01.1/0000:01:00.0"),
            at("devices/pci0000:00/0000:00:02.1/0000:02:00.0"),
            PcieDistance.PHB,
            id="two root ports of one host bridge",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:00:05.0"),
            at("devices/pci0000:00/0000:00:06.0"),
            PcieDistance.PHB,
            id="a virtual machine with a flat bus, NUMA unknown",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:00:01.1/0000:01:00.0", 0),
            at("devices/pci0000:40/0000:40:01.1/0000:41:00.0", 0),
            PcieDistance.NODE,
            id="two host bridges of one NUMA node",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:00:01.1/0000:01:00.0", 0),
            at("devices/pci0000:c0/0000:c0:01.1/0000:c1:00.0", 1),
            PcieDistance.SYS,
            id="two NUMA nodes",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:01:00.0", None),
            at("devices/pci0000:c0/0000:c1:00.0", 1),
            None,
            id="two host bridges, one NUMA node unknown",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:01:00.0", 0),
            at("devices/pci0000:c0/0000:c1:00.0", None),
            None,
            id="two host bridges, the other NUMA node unknown",
        ),
        pytest.param(
            at("devices/pci0000:00/0000:01:00.0", 0),
            at("devices/pci0001:00/0001:01:00.0", 0),
            PcieDistance.NODE,
            id="two PCI domains",
        ),
        pytest.param(
            at(f"{HYPERV}/pci0001:00/0001:00:00.0", 0),
            at(f"{HYPERV[:-1]}2/pci0002:00/0002:00:00.0", 1),
            PcieDistance.SYS,
            id="Hyper-V gives each GPU a host bridge",
        ),
        pytest.param(at("", 0), at("devices/pci0000:00/0000:01:00.0", 0), None, id="no path recorded"),
        pytest.param(at("devices/pci0000:00/0000:01:00.0", 0), at("devices/x", 0), None, id="no host bridge"),
    ],
)
def test_the_distance_between_two_devices(a: PciDevice, b: PciDevice, expected: PcieDistance | None) -> None:
    assert pcie_distance(a, b) is expected
    assert pcie_distance(b, a) is expected


def test_rdma_devices_are_in_the_order_of_their_numbers() -> None:
    place = "devices/pci0000:40/0000:40:01.1/0000:42:00.0"
    sysfs = Sysfs(
        files={
            "class/infiniband/mlx5_10/ports/1/rate": "100 Gb/sec (4X EDR)\n",
            "class/infiniband/mlx5_2/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            "class/infiniband/mlx5_2/ports/1/link_layer": "InfiniBand\n",
            **device("0000:42:00.0", "0x020700", vendor="0x15b3", numa_node="1"),
        },
        links={f"{BUS}/0000:42:00.0": place, "class/infiniband/mlx5_2/device": place},
    )

    nic = PciDevice("0000:42:00.0", 1, None, Pcie(), tuple(place.split("/")))
    assert find_rdma_devices(sysfs) == (
        RdmaDevice("mlx5_2", nic, 400, "InfiniBand"),
        RdmaDevice("mlx5_10", None, 100, None),
    )


@pytest.mark.parametrize(
    ("rate", "state", "result"),
    [
        pytest.param("200 Gb/sec (4X HDR)\n", "4: ACTIVE\n", 200, id="up"),
        pytest.param("200 Gb/sec (4X HDR)\n", "5: ACTIVE_DEFER\n", 200, id="recovering"),
        pytest.param("10 Gb/sec (4X SDR)\n", "1: DOWN\n", None, id="down"),
        pytest.param("2.5 Gb/sec (1X SDR)\n", "2: INIT\n", None, id="coming up"),
        pytest.param("fast\n", "4: ACTIVE\n", None, id="rubbish"),
    ],
)
def test_the_rate_of_a_port(rate: str, state: str, result: int | None) -> None:
    port = "class/infiniband/mlx5_0/ports/1"
    sysfs = Sysfs(files={f"{port}/rate": rate, f"{port}/state": state})

    assert find_rdma_devices(sysfs) == (RdmaDevice("mlx5_0", None, result, None),)


def test_an_rdma_device_off_the_pci_bus_has_no_pci_device() -> None:
    sysfs = Sysfs(links={"class/infiniband/hns_0/device": "devices/platform/HISI00D1:00"})

    assert find_rdma_devices(sysfs) == (RdmaDevice("hns_0", None, None, None),)


def test_numa_nodes_are_in_order_and_may_lack_cpus_or_memory() -> None:
    base = "devices/system/node"
    sysfs = Sysfs(
        files={
            f"{base}/node10/cpulist": "\n",
            f"{base}/node10/meminfo": "Node 10 MemTotal:       98304000 kB\n",
            f"{base}/node2/cpulist": "0-71\n",
            f"{base}/online": "2,10\n",
        }
    )

    assert find_numa_nodes(sysfs) == (NumaNode(2, "0-71", None), NumaNode(10, "", 96000))


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param({"class/dmi/id/product_name": "DGXH100\n"}, "DGXH100", id="told"),
        pytest.param({"class/dmi/id/product_name": "\n"}, None, id="empty"),
        pytest.param({}, None, id="absent"),
    ],
)
def test_the_machine_has_its_vendors_name(files: dict[str, str], name: str | None) -> None:
    assert product_name(Sysfs(files=files)) == name
