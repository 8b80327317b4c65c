"""Reading /sys: kept, skipped and missing files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot import Sysfs
from agent.sources.sysfs import read_sysfs

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def pci(root: Path, path: str, files: dict[str, str]) -> str:
    """A device in the PCI tree, linked from the bus like in the kernel."""
    bus_id = path.rsplit("/", 1)[-1]
    write(root, {f"{path}/{name}": text for name, text in files.items()})
    bus = root / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / bus_id).symlink_to(root / path)
    return bus_id


def test_gpus_and_nvswitches_are_kept_with_their_place_in_the_tree(tmp_path: Path) -> None:
    gpu = {"vendor": "0x10de\n", "class": "0x030200\n", "numa_node": "1\n", "max_link_width": "16\n"}
    pci(tmp_path, "devices/pci0000:40/0000:40:01.1/0000:41:00.0", {**gpu, "serial_number": "7\n", "config": "x"})
    pci(tmp_path, "devices/pci0000:c0/0000:c1:00.0", {"vendor": "0x10de\n", "class": "0x068000\n"})
    pci(tmp_path, "devices/pci0000:00/0000:00:1f.0", {"vendor": "0x8086\n", "class": "0x060100\n"})
    pci(tmp_path, "devices/pci0000:40/0000:41:00.1", {"vendor": "0x10de\n", "class": "0x040300\n"})
    pci(tmp_path, "devices/pci0000:40/0000:42:00.0", {"vendor": "0x10de\n"})
    pci(tmp_path, "devices/pci0000:40/0000:40:01.1/0000:41:00.4", {**gpu, "physfn/vendor": "0x10de\n"})

    assert read_sysfs(tmp_path) == Sysfs(
        files={
            "bus/pci/devices/0000:41:00.0/class": "0x030200\n",
            "bus/pci/devices/0000:41:00.0/max_link_width": "16\n",
            "bus/pci/devices/0000:41:00.0/numa_node": "1\n",
            "bus/pci/devices/0000:41:00.0/vendor": "0x10de\n",
            "bus/pci/devices/0000:c1:00.0/class": "0x068000\n",
            "bus/pci/devices/0000:c1:00.0/vendor": "0x10de\n",
        },
        links={
            "bus/pci/devices/0000:41:00.0": "devices/pci0000:40/0000:40:01.1/0000:41:00.0",
            "bus/pci/devices/0000:c1:00.0": "devices/pci0000:c0/0000:c1:00.0",
        },
    )


def test_rdma_devices_are_kept_with_their_pci_device_and_without_their_guids(tmp_path: Path) -> None:
    place = "devices/pci0000:40/0000:40:01.1/0000:42:00.0"
    pci(tmp_path, place, {"vendor": "0x15b3\n", "class": "0x020700\n", "numa_node": "1\n"})
    port = {"ports/1/rate": "400 Gb/sec (4X NDR)\n", "ports/1/link_layer": "InfiniBand\n", "ports/1/state": "4: ACTIVE"}
    write(tmp_path / "class/infiniband/mlx5_0", {**port, "node_guid": "0002:c903", "ports/1/gids/0": "fe80::1"})
    (tmp_path / "class/infiniband/mlx5_0/device").symlink_to(tmp_path / place)

    assert read_sysfs(tmp_path) == Sysfs(
        files={
            "bus/pci/devices/0000:42:00.0/class": "0x020700\n",
            "bus/pci/devices/0000:42:00.0/numa_node": "1\n",
            "bus/pci/devices/0000:42:00.0/vendor": "0x15b3\n",
            "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
            "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        },
        links={
            "bus/pci/devices/0000:42:00.0": place,
            "class/infiniband/mlx5_0/device": place,
        },
    )


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "class/infiniband/mlx5_7", {"ports/1/rate": "400 Gb/sec\n", "device/physfn/vendor": "0x15b3\n"})

    assert read_sysfs(tmp_path) == Sysfs()


def test_an_rdma_device_without_hardware_has_no_place(tmp_path: Path) -> None:
    """Soft-RoCE."""
    write(tmp_path / "class/infiniband/rxe0", {"ports/1/rate": "100 Gb/sec\n"})

    assert read_sysfs(tmp_path) == Sysfs(files={"class/infiniband/rxe0/ports/1/rate": "100 Gb/sec\n"})


def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "sys"
    (root / "class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (root / "class/infiniband/mlx5_0/device").symlink_to(tmp_path / "elsewhere")

    assert read_sysfs(root) == Sysfs()


def test_numa_nodes_are_kept_without_changing_values(tmp_path: Path) -> None:
    write(
        tmp_path / "devices/system/node",
        {
            "online": "0,8\n",
            "node0/cpulist": "0-63\n",
            "node0/meminfo": "Node 0 MemTotal:       1048576 kB\nNode 0 MemFree:        77 kB\n",
            "node8/cpulist": "\n",
            "power/control": "auto\n",
        },
    )

    assert read_sysfs(tmp_path) == Sysfs(
        files={
            "devices/system/node/node0/cpulist": "0-63\n",
            "devices/system/node/node0/meminfo": "Node 0 MemTotal:       1048576 kB\n",
            "devices/system/node/node8/cpulist": "\n",
            "devices/system/node/online": "0,8\n",
        }
    )


def test_the_machines_name_is_kept_and_its_serial_number_is_not(tmp_path: Path) -> None:
    write(tmp_path / "class/dmi/id", {"product_name": "DGXH100\n", "sys_vendor": "NVIDIA\n", "product_serial": "165\n"})
    write(tmp_path, {"module/nvidia/version": "580.95.05\n"})

    assert read_sysfs(tmp_path) == Sysfs(
        files={
            "class/dmi/id/product_name": "DGXH100\n",
            "class/dmi/id/sys_vendor": "NVIDIA\n",
            "module/nvidia/version": "580.95.05\n",
        }
    )


def test_text_that_is_not_utf8_is_kept_readable(tmp_path: Path) -> None:
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/board_name").write_bytes(b"X\xff\n")

    assert read_sysfs(tmp_path).files == {"class/dmi/id/board_name": "X\ufffd\n"}


def test_a_root_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_sysfs(tmp_path / "absent") == Sysfs()
