"""The rules of the generator, on small machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot import NvmlLink, NvmlPair, Output
from fixtures.generate import products
from fixtures.generate.nvml import build_nvml
from fixtures.generate.pcie import bonded_links, spec_distance
from fixtures.generate.smi import build_smi
from fixtures.generate.spec import (
    GpuSpec,
    MachineSpec,
    NicSpec,
    NumaNodeSpec,
    PortSpec,
    linux_bus,
    nvml_bus,
    ports_from_cables,
    switch_slot_path,
    with_ports_down,
)
from fixtures.generate.sysfs import build_sysfs

BUSES = ("04:00.0", "05:00.0")
LINKS = ports_from_cables(BUSES, "0-1:2")


def pair(driver: str = "550.90.07") -> MachineSpec:
    """Two cards with two links behind one switch, and a NIC on another root complex of the same node."""
    return MachineSpec(
        shape="test",
        vendor="Vendor",
        product_name="Product",
        driver=driver,
        cuda=12040,
        kernel="6.8.0",
        nodes=(NumaNodeSpec(0, "0-7", 64),),
        roots={"pci0000:00": 0, "pci0000:40": 0, "pci0000:80": -1},
        gpus=tuple(
            GpuSpec(product=products.A6000, bus=bus, bridge_path=switch_slot_path("00", bus, port), ports=ports)
            for port, (bus, ports) in enumerate(zip(BUSES, LINKS, strict=True))
        ),
        nics=(NicSpec("mlx5_0", "41:00.0", "pci0000:40/40:01.0"),),
        cpus=8,
    )


@pytest.mark.parametrize(
    ("place", "bus", "expected"),
    [
        pytest.param("pci0000:00/00:01.0/01:00.0/02:00.0", "03:00.1", "PIX", id="two functions of one card"),
        pytest.param("pci0000:00/00:01.0/01:00.0/02:01.0", "04:00.0", "PIX", id="two ports of one switch"),
        pytest.param("pci0000:00/00:01.0/01:00.0/02:01.0/05:00.0/06:00.0", "07:00.0", "PXB", id="a switch below"),
        pytest.param("pci0000:00/00:02.0", "08:00.0", "PHB", id="two root ports"),
        pytest.param("pci0000:40/40:01.0", "41:00.0", "NODE", id="two root complexes of a node"),
        pytest.param("pci0000:80/80:01.0", "81:00.0", "SYS", id="a root complex of unknown node"),
    ],
)
def test_the_distance_follows_the_tree(place: str, bus: str, expected: str) -> None:
    here = ("pci0000:00/00:01.0/01:00.0/02:00.0", "03:00.0")

    assert spec_distance(pair(), here, (place, bus)) == expected
    assert spec_distance(pair(), (place, bus), here) == expected


def test_a_slot_numbers_its_switch_after_the_root() -> None:
    assert switch_slot_path("15", "1b:00.0", port=1) == "pci0000:15/15:01.0/16:00.0/17:01.0"


@pytest.mark.parametrize(
    ("short", "linux", "in_nvml"),
    [
        pytest.param("0a:00.0", "0000:0a:00.0", "00000000:0A:00.0", id="domain 0"),
        pytest.param("0039:01:00.0", "0039:01:00.0", "00000039:01:00.0", id="another domain"),
    ],
)
def test_bus_ids_are_spelled_as_each_source_does(short: str, linux: str, in_nvml: str) -> None:
    assert (linux_bus(short), nvml_bus(short)) == (linux, in_nvml)


def test_cables_become_ports_on_both_ends() -> None:
    first, second, third = (
        PortSpec("gpu", "00000000:01:00.0"),
        PortSpec("gpu", "00000000:02:00.0"),
        PortSpec("gpu", "00000000:03:00.0"),
    )

    assert ports_from_cables(("01:00.0", "02:00.0", "03:00.0"), "0-1:2 1-2:1") == [
        (second, second),
        (first, first, third),
        (second,),
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, 2, id="both up"),
        pytest.param({"ports": with_ports_down(LINKS[1], 0)}, 2, id="the first GPU's view"),
        pytest.param({"isolated": "out"}, 0, id="not in the same partition"),
        pytest.param({"mig": ()}, 0, id="MIG mode"),
        pytest.param({"ports": (), "bus": "06:00.0"}, 0, id="linked to somebody else"),
    ],
)
def test_nvlinks_count_where_peers_can_talk(change: dict[str, object], expected: int) -> None:
    machine = pair()
    changed = replace(machine, gpus=(machine.gpus[0], replace(machine.gpus[1], **change)))

    assert bonded_links(changed, 0, 1) == expected


def test_nvml_says_nothing_of_the_far_end_of_a_link_that_is_down() -> None:
    machine = pair()
    changed = replace(machine, gpus=(replace(machine.gpus[0], ports=with_ports_down(LINKS[0], 1)), machine.gpus[1]))

    result = build_nvml(changed)

    assert result.gpus[0].nvlinks == (
        NvmlLink(link=0, active=True, version=5, remote_type="gpu", remote_bus_id="00000000:05:00.0", speed_mbps=14062),
        NvmlLink(link=1, active=False),
    )
    assert result.pairs == (NvmlPair(a=0, b=1, ancestor=10, p2p_nvlink=0),)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        pytest.param(
            "418.67",
            "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
            "GPU0\t X \tNV2\tNODE\t0-7\n"
            "GPU1\tNV2\t X \tNODE\t0-7\n"
            "mlx5_0\tNODE\tNODE\t X \t\n",
            id="418: CPU affinity",
        ),
        pytest.param(
            "470.57.02",
            "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
            "GPU0\t X \tNV2\tNODE\t0-7\t0\n"
            "GPU1\tNV2\t X \tNODE\t0-7\t0\n"
            "mlx5_0\tNODE\tNODE\t X \t\t\n",
            id="470: and NUMA affinity",
        ),
        pytest.param(
            "550.90.07",
            "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
            "GPU0\t X \tNV2\tNODE\t0-7\t0\t\tN/A\n"
            "GPU1\tNV2\t X \tNODE\t0-7\t0\t\tN/A\n"
            "NIC0\tNODE\tNODE\t X \t\t\t\t\n",
            id="550: and the GPU's own node, NICs by number",
        ),
    ],
)
def test_topo_m_is_printed_in_the_style_of_its_driver(driver: str, expected: str) -> None:
    matrix, _, _ = build_smi(pair(driver))["topo -m"].stdout.partition("\nLegend:")

    assert matrix == expected


def test_nvlink_status_has_a_line_for_links_that_are_all_down() -> None:
    machine = replace(pair(), smi=("nvlink -s",))
    changed = replace(machine, gpus=(machine.gpus[0], replace(machine.gpus[1], ports=with_ports_down(LINKS[1], 0, 1))))

    one, two = (machine.gpu_uuid(gpu) for gpu in machine.gpus)
    assert build_smi(changed) == {
        "nvlink -s": Output(
            stdout=(
                f"GPU 0: NVIDIA RTX A6000 (UUID: {one})\n"
                "\t Link 0: 14.062 GB/s\n"
                "\t Link 1: 14.062 GB/s\n"
                f"GPU 1: NVIDIA RTX A6000 (UUID: {two})\n"
                "NVML: Unable to retrieve NVLink information as all links are inActive\n"
            )
        )
    }


def test_sysfs_shows_each_device_where_it_sits() -> None:
    machine = pair()
    shown = build_sysfs(replace(machine, gpus=machine.gpus[:1]))

    assert shown.links == {
        "bus/pci/devices/0000:04:00.0": "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:04:00.0",
        "bus/pci/devices/0000:41:00.0": "devices/pci0000:40/0000:40:01.0/0000:41:00.0",
        "class/infiniband/mlx5_0/device": "devices/pci0000:40/0000:40:01.0/0000:41:00.0",
    }
    assert shown.files == {
        "bus/pci/devices/0000:04:00.0/class": "0x030000\n",
        "bus/pci/devices/0000:04:00.0/current_link_speed": "2.5 GT/s PCIe\n",
        "bus/pci/devices/0000:04:00.0/current_link_width": "16\n",
        "bus/pci/devices/0000:04:00.0/device": "0x2230\n",
        "bus/pci/devices/0000:04:00.0/local_cpulist": "0-7\n",
        "bus/pci/devices/0000:04:00.0/max_link_speed": "16.0 GT/s PCIe\n",
        "bus/pci/devices/0000:04:00.0/max_link_width": "16\n",
        "bus/pci/devices/0000:04:00.0/numa_node": "0\n",
        "bus/pci/devices/0000:04:00.0/vendor": "0x10de\n",
        "bus/pci/devices/0000:41:00.0/class": "0x020700\n",
        "bus/pci/devices/0000:41:00.0/device": "0x101b\n",
        "bus/pci/devices/0000:41:00.0/local_cpulist": "0-7\n",
        "bus/pci/devices/0000:41:00.0/numa_node": "0\n",
        "bus/pci/devices/0000:41:00.0/vendor": "0x15b3\n",
        "class/dmi/id/product_name": "Product\n",
        "class/dmi/id/sys_vendor": "Vendor\n",
        "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
        "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "devices/system/node/node0/cpulist": "0-7\n",
        "devices/system/node/node0/meminfo": "Node 0 MemTotal:       67108864 kB\n",
        "devices/system/node/online": "0\n",
    }
