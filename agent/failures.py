"""Why the GPUs of a machine cannot be read, and what to do about it: one closed list for all sources.

``nvidia-smi`` reports failures in prose, NVML by the name of an error; both map to ``Failure``, so that the same
failure gets the same advice. Names and meanings: ``nvmlReturn_t`` in NVML's ``nvml.h``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class _FailureText(NamedTuple):
    headline: str
    advice: str


class Failure(Enum):
    """Why the GPUs of a machine cannot be read."""

    NO_COMMAND = "no-command"  # nvidia-smi is not installed
    NO_LIBRARY = "no-library"  # NVML_ERROR_LIBRARY_NOT_FOUND: no libnvidia-ml.so.1
    NO_DRIVER = "no-driver"  # NVML_ERROR_DRIVER_NOT_LOADED
    VERSION_MISMATCH = "version-mismatch"  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NO_DEVICE = "no-device"  # the driver runs and finds no GPU
    NO_PERMISSION = "no-permission"  # NVML_ERROR_NO_PERMISSION
    BLOCKED = "blocked"  # NVML_ERROR_OPERATING_SYSTEM: mostly WSL and sandboxes
    GPU_LOST = "gpu-lost"  # NVML_ERROR_GPU_IS_LOST
    RESET_REQUIRED = "reset-required"  # NVML_ERROR_RESET_REQUIRED
    UNKNOWN = "unknown"  # NVML_ERROR_UNKNOWN, and every error without advice of its own

    @property
    def headline(self) -> str:
        """The failure, as a clause without full stop."""
        return _TEXTS[self].headline

    @property
    def advice(self) -> str:
        """The remedy, in one or two sentences."""
        return _TEXTS[self].advice


def failure_from_nvml(error: str) -> Failure:
    """Return the failure for an NVML error name, with or without the call: "nvmlInit_v2: DRIVER_NOT_LOADED".

    A name without advice of its own is ``Failure.UNKNOWN``; the caller shows the name beside the advice.
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
    Failure.NO_COMMAND: _FailureText(
        "nvidia-smi is not installed",
        "On a GPU machine install the NVIDIA driver's utilities; in a container start it with the NVIDIA container "
        "runtime (nvidia-container-toolkit), which mounts them.",
    ),
    Failure.NO_LIBRARY: _FailureText(
        "the NVIDIA driver's library (libnvidia-ml.so.1) is not installed",
        "On a GPU machine install the NVIDIA driver; in a container start it with the NVIDIA container runtime "
        "(nvidia-container-toolkit), and run `ldconfig` if the library is there but not found.",
    ),
    Failure.NO_DRIVER: _FailureText(
        "the NVIDIA kernel driver is not loaded",
        "Load it with `sudo modprobe nvidia`; if that fails, it was not built for this kernel (`dkms status`) or "
        "Secure Boot rejects it (`sudo dmesg | grep -i nvidia`).",
    ),
    Failure.VERSION_MISMATCH: _FailureText(
        "the loaded NVIDIA kernel driver and the installed library are of different versions",
        "The driver was upgraded while it was in use: reboot, or stop everything that uses a GPU and reload the "
        "module (`sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && sudo modprobe nvidia`); restart "
        "containers that mounted the old library.",
    ),
    Failure.NO_DEVICE: _FailureText(
        "the NVIDIA driver runs and sees no GPU",
        "Check `lspci -d 10de:` for the card, `sudo dmesg | grep NVRM` for why the driver refused it, and, in a "
        "container, that a GPU was requested (NVIDIA_VISIBLE_DEVICES, `nvidia.com/gpu`).",
    ),
    Failure.NO_PERMISSION: _FailureText(
        "this user may not access the NVIDIA driver",
        "Check the owner and mode of /dev/nvidia* (often group `video`), the container's device rules, and SELinux "
        "(`sudo setsebool -P container_use_devices on`).",
    ),
    Failure.BLOCKED: _FailureText(
        "the operating system blocks access to the GPU",
        "Under WSL run `wsl --shutdown` in Windows and start it again, with a current NVIDIA driver for Windows; "
        "elsewhere a sandbox or security module keeps this process from the device.",
    ),
    Failure.GPU_LOST: _FailureText(
        "a GPU has fallen off the bus or no longer answers",
        "Look for `Xid 79` in `sudo dmesg`, drain the node, and reset the GPU or power-cycle the machine; if it "
        "comes back, check the card's power and seat.",
    ),
    Failure.RESET_REQUIRED: _FailureText(
        "a GPU must be reset before it can be used",
        "Stop what uses the GPU and run `sudo nvidia-smi --gpu-reset -i <index>`; where that is refused, reboot.",
    ),
    Failure.UNKNOWN: _FailureText(
        "the NVIDIA driver answered with an error that names no cause",
        "In a container that worked before, a `systemctl daemon-reload` on the host took its devices away: restart "
        "the container. Otherwise `sudo dmesg | grep NVRM` says more.",
    ),
}
