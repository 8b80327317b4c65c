"""Why no GPU can be read here, and what to do about it: one closed list for every source.

``nvidia-smi`` tells it in prose, NVML by the name of an error; both are folded into ``Failure``, so that the same
trouble gets the same advice. Names and meanings: ``nvmlReturn_t`` in NVML's ``nvml.h``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class _Text(NamedTuple):
    headline: str
    advice: str


class Failure(Enum):
    """Why the GPUs of a machine cannot be read."""

    NO_COMMAND = "no-command"  # there is no nvidia-smi to run
    NO_LIBRARY = "no-library"  # NVML_ERROR_LIBRARY_NOT_FOUND: no libnvidia-ml.so.1
    NO_DRIVER = "no-driver"  # NVML_ERROR_DRIVER_NOT_LOADED
    VERSION_MISMATCH = "version-mismatch"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NO_DEVICE = "no-device"  # the driver runs and sees no GPU
    NO_PERMISSION = "no-permission"  # NVML_ERROR_NO_PERMISSION
    BLOCKED = "blocked"  # NVML_ERROR_OPERATING_SYSTEM: mostly WSL and sandboxes
    GPU_LOST = "gpu-lost"  # NVML_ERROR_GPU_IS_LOST
    RESET_REQUIRED = "reset-required"  # NVML_ERROR_RESET_REQUIRED
    UNKNOWN = "unknown"  # NVML_ERROR_UNKNOWN, and every error without a remedy of its own

    @property
    def headline(self) -> str:
        """What is wrong, as half a sentence without its full stop."""
        return _TEXTS[self].headline

    @property
    def advice(self) -> str:
        """What to do about it, in one or two sentences."""
        return _TEXTS[self].advice


def from_nvml(error: str) -> Failure:
    """The failure behind an NVML error name, with or without the call before it: "nvmlInit_v2: DRIVER_NOT_LOADED".

    A name with no remedy of its own is ``Failure.UNKNOWN``: the caller shows the name beside the advice.
    """
    name = error.rpartition(":")[2].strip().upper().removeprefix("NVML_ERROR_")
    return _NVML_NAMES.get(name, Failure.UNKNOWN)


_NVML_NAMES = {
    "DRIVER_NOT_LOADED": Failure.NO_DRIVER,
    "GPU_IS_LOST": Failure.GPU_LOST,
    "GPU_NOT_FOUND": Failure.NO_DEVICE,
    "LIBRARY_NOT_FOUND": Failure.NO_LIBRARY,
    "LIB_RM_VERSION_MISMATCH": Failure.VERSION_MISMATCH,
    "NOT_FOUND": Failure.NO_DEVICE,
    "NO_PERMISSION": Failure.NO_PERMISSION,
    "OPERATING_SYSTEM": Failure.BLOCKED,
    "RESET_REQUIRED": Failure.RESET_REQUIRED,
    "UNKNOWN": Failure.UNKNOWN,
}

_TEXTS = {
    Failure.NO_COMMAND: _Text(
        "nvidia-smi is not installed here",
        "On a GPU machine install the NVIDIA driver's utilities; in a container start it with the NVIDIA container "
        "runtime (nvidia-container-toolkit), which brings them along.",
    ),
    Failure.NO_LIBRARY: _Text(
        "the NVIDIA driver's library (libnvidia-ml.so.1) is not installed here",
        "On a GPU machine install the NVIDIA driver; in a container start it with the NVIDIA container runtime "
        "(nvidia-container-toolkit), and run `ldconfig` if the library is there but not found.",
    ),
    Failure.NO_DRIVER: _Text(
        "the NVIDIA kernel driver is not loaded",
        "Load it with `sudo modprobe nvidia`; if that fails, it was not built for this kernel (`dkms status`) or "
        "Secure Boot rejects it (`sudo dmesg | grep -i nvidia`).",
    ),
    Failure.VERSION_MISMATCH: _Text(
        "the loaded NVIDIA kernel driver and the installed library are of different versions",
        "The driver was upgraded while it was in use: reboot, or stop everything that uses a GPU and reload the "
        "module (`sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && sudo modprobe nvidia`); restart "
        "containers that mounted the old library.",
    ),
    Failure.NO_DEVICE: _Text(
        "the NVIDIA driver runs and sees no GPU",
        "Check `lspci -d 10de:` for the card, `sudo dmesg | grep NVRM` for why the driver refused it, and, in a "
        "container, that a GPU was asked for (NVIDIA_VISIBLE_DEVICES, `nvidia.com/gpu`).",
    ),
    Failure.NO_PERMISSION: _Text(
        "this user may not talk to the NVIDIA driver",
        "Check the owner and mode of /dev/nvidia* (often group `video`), the container's device rules, and SELinux "
        "(`sudo setsebool -P container_use_devices on`).",
    ),
    Failure.BLOCKED: _Text(
        "the operating system blocks access to the GPU",
        "Under WSL run `wsl --shutdown` in Windows and start it again, with a current NVIDIA driver for Windows; "
        "elsewhere a sandbox or security module keeps this process from the device.",
    ),
    Failure.GPU_LOST: _Text(
        "a GPU has fallen off the bus or no longer answers",
        "Look for `Xid 79` in `sudo dmesg`, drain the node, and reset the GPU or power-cycle the machine; if it "
        "comes back, check the card's power and seat.",
    ),
    Failure.RESET_REQUIRED: _Text(
        "a GPU must be reset before it can be used",
        "Stop what uses the GPU and run `sudo nvidia-smi --gpu-reset -i <index>`; where that is refused, reboot.",
    ),
    Failure.UNKNOWN: _Text(
        "the NVIDIA driver answered with an error that names no cause",
        "In a container that worked before, a `systemctl daemon-reload` on the host took its devices away: restart "
        "the container. Otherwise `sudo dmesg | grep NVRM` says more.",
    ),
}
