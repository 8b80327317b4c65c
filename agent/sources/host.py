"""The host: kernel, boot id, CPUs, memory, and the hypervisor of a virtual machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.snapshot import Host, Sysfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# prefix of the firmware's vendor or product name -> the hypervisor in systemd-detect-virt
_HYPERVISORS = {
    "Amazon EC2": "amazon",
    "Google Compute Engine": "google",
    "KubeVirt": "kvm",
    "KVM": "kvm",
    "OpenStack": "kvm",
    "QEMU": "qemu",
    "VMware": "vmware",
    "innotek GmbH": "oracle",
    "Xen": "xen",
}


def read_host(proc: Path, environ: Mapping[str, str], sysfs: Sysfs) -> Host:
    """Read the facts of the host; ``sysfs`` has the firmware's names."""
    import psutil  # noqa: PLC0415  20 ms, not needed for recordings

    kernel = _line(proc / "sys/kernel/osrelease")
    return Host(
        name=_line(proc / "sys/kernel/hostname"),
        kernel=kernel,
        boot_id=_line(proc / "sys/kernel/random/boot_id"),
        cpus=psutil.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        virtualization=detect_virtualization(kernel or "", _text(proc / "cpuinfo"), sysfs),
        visible_devices=environ.get("NVIDIA_VISIBLE_DEVICES"),
    )


def detect_virtualization(kernel: str, cpuinfo: str, sysfs: Sysfs) -> str | None:
    """Return the hypervisor as systemd-detect-virt names it; "vm" for an unknown one; None: bare metal, or unknown.

    On x86 the CPU flag ``hypervisor`` decides, because firmware of a bare-metal cloud machine has the same names as
    that of a virtual machine. On other architectures the firmware names decide.
    """
    if "microsoft" in kernel.lower():
        return "wsl"
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if flags is not None:
        return (_firmware(sysfs) or "vm") if "hypervisor" in flags[1].split() else None
    return _firmware(sysfs)


def _firmware(sysfs: Sysfs) -> str | None:
    vendor, product = (sysfs.files.get(f"class/dmi/id/{name}", "").strip() for name in ("sys_vendor", "product_name"))
    if product.endswith(".metal") or ".metal-" in product:  # EC2: "c7g.metal", "c8g.metal-24xl"
        return None
    if (vendor, product) == ("Microsoft Corporation", "Virtual Machine"):
        return "microsoft"
    return next(
        (name for start, name in _HYPERVISORS.items() if vendor.startswith(start) or product.startswith(start)), None
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _line(path: Path) -> str | None:
    return _text(path).strip() or None
