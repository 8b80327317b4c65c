"""Device ids of network device plugins are mapped to NICs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.allocation.nics import nic_allocations, read_physical_functions
from agent.allocation.wire import HeldDevices
from gputopo.crd.nodegpus import NicAllocation, PodRef
from gputopo.model import Nic

NICS = (
    Nic(name="mlx5_0", bus_id="0000:3b:00.0", distances=()),
    Nic(name="mlx5_1", bus_id="0000:5e:00.0", distances=()),
    Nic(name="mlx5_2", distances=()),  # known from topo -m only
)
POD = PodRef("ml", "train-0", "main")


def held(*devices: str, resource: str = "nvidia.com/hostdev") -> HeldDevices:
    return HeldDevices(POD.namespace, POD.name, POD.container, resource, devices)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two cards, and a virtual function of the first."""
    devices = tmp_path / "bus/pci/devices"
    for address in ("0000:3b:00.0", "0000:5e:00.0", "0000:3b:00.2"):
        (devices / address).mkdir(parents=True)
    (devices / "0000:3b:00.2" / "physfn").symlink_to("../0000:3b:00.0")
    return tmp_path


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        pytest.param("0000:5e:00.0", (NicAllocation("mlx5_1", POD),), id="a whole card, by its PCI address"),
        pytest.param("0000:5E:00.0", (NicAllocation("mlx5_1", POD),), id="upper case"),
        pytest.param("mlx5_2", (NicAllocation("mlx5_2", POD),), id="by its RDMA name"),
        pytest.param("0000:3b:00.2", (NicAllocation("mlx5_0", POD, "0000:3b:00.2"),), id="a virtual function"),
        pytest.param("0000:99:00.0", (), id="a device that the topology does not list as a NIC"),
        pytest.param("7", (), id="a number of the shared plugin"),
        pytest.param("../../../etc/passwd", (), id="a path"),
        pytest.param("", (), id="an empty id"),
    ],
)
def test_a_device_id_names_a_nic(sysfs: Path, device: str, expected: tuple[NicAllocation, ...]) -> None:
    devices = [held(device)]

    assert nic_allocations(devices, NICS, read_physical_functions(devices, sysfs)) == expected


def test_the_result_does_not_depend_on_the_order_of_the_report() -> None:
    several = [held("mlx5_2", "mlx5_0"), held("0000:5e:00.0", resource="vendor.example/nic")]

    found = nic_allocations(several, NICS, {})

    assert found == nic_allocations(reversed(several), NICS, {})
    assert [each.nic for each in found] == ["mlx5_0", "mlx5_1", "mlx5_2"]
