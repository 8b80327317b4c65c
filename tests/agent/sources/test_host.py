"""Facts of the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from agent.snapshot import Host, Sysfs
from agent.sources.host import detect_virtualization, read_host

if TYPE_CHECKING:
    from pathlib import Path

VIRTUAL = "processor\t: 0\nflags\t\t: fpu hypervisor avx2\n"
BARE = "processor\t: 0\nflags\t\t: fpu avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\n"


def test_host_facts_come_from_the_given_root(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/hostname").write_text("gpu-node-17\n")
    (tmp_path / "sys/kernel/osrelease").write_text("6.8.0-45-generic\n")
    (tmp_path / "sys/kernel/random/boot_id").write_text("0f2c4b8e-6a1d-4b3f-9b0e-3d5c7a9e1f20\n")
    (tmp_path / "cpuinfo").write_text(VIRTUAL)

    assert read_host(tmp_path, {"NVIDIA_VISIBLE_DEVICES": "0,1"}, Sysfs()) == Host(
        name="gpu-node-17",
        kernel="6.8.0-45-generic",
        boot_id="0f2c4b8e-6a1d-4b3f-9b0e-3d5c7a9e1f20",
        cpus=os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        virtualization="vm",
        visible_devices="0,1",
    )


def test_a_root_that_is_not_there_leaves_what_psutil_knows(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total

    assert read_host(tmp_path / "absent", {}, Sysfs()) == Host(cpus=os.cpu_count(), memory_bytes=total)


@pytest.mark.parametrize(
    ("kernel", "cpuinfo", "vendor", "product", "expected"),
    [
        pytest.param("5.15.153.1-microsoft-standard-WSL2", VIRTUAL, "", "", "wsl", id="WSL 2"),
        pytest.param("4.4.0-19041-Microsoft", "", "", "", "wsl", id="WSL 1"),
        pytest.param("6.8.0", VIRTUAL, "QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu", id="qemu"),
        pytest.param("6.8.0", VIRTUAL, "Amazon EC2", "p5.48xlarge", "amazon", id="EC2"),
        pytest.param("6.8.0", VIRTUAL, "Google", "Google Compute Engine", "google", id="GCE, by the product"),
        pytest.param("6.8.0", VIRTUAL, "Microsoft Corporation", "Virtual Machine", "microsoft", id="Azure"),
        pytest.param("6.8.0", VIRTUAL, "Microsoft Corporation", "Surface", "vm", id="not all of Microsoft is virtual"),
        pytest.param("6.8.0", VIRTUAL, "Acme", "Cloud", "vm", id="a hypervisor that hides its name"),
        pytest.param("6.8.0", BARE, "Google", "Google Compute Engine", None, id="bare metal with a cloud's name"),
        pytest.param("6.8.0", BARE, "NVIDIA", "DGXH100", None, id="bare metal"),
        pytest.param("6.8.0", ARM, "Amazon EC2", "g5g.2xlarge", "amazon", id="Arm in EC2"),
        pytest.param("6.8.0", ARM, "Amazon EC2", "g5g.metal", None, id="Arm bare metal in EC2"),
        pytest.param("6.8.0", ARM, "Amazon EC2", "c8g.metal-24xl", None, id="Arm bare metal in EC2, by size"),
        pytest.param("6.8.0", ARM, "NVIDIA", "GB200 NVL", None, id="Arm bare metal"),
        pytest.param("", "", "", "", None, id="nothing known"),
    ],
)
def test_the_hypervisor_comes_from_cpu_and_firmware(
    kernel: str, cpuinfo: str, vendor: str, product: str, expected: str | None
) -> None:
    sysfs = Sysfs(files={"class/dmi/id/sys_vendor": f"{vendor}\n", "class/dmi/id/product_name": f"{product}\n"})

    assert detect_virtualization(kernel, cpuinfo, sysfs) == expected
