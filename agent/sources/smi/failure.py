"""What ``nvidia-smi`` prints when it cannot do its work: on standard output, mostly, and not always with an exit code.

The words are no API; these are those of drivers 340 to 610. The exit codes are: ``man nvidia-smi``, "RETURN VALUE"
(they are NVML's ``nvmlReturn_t`` numbers).
"""

from __future__ import annotations

import re

from agent.failures import Failure
from agent.sources.smi.lines import Line, lines


def classify(text: str, exit_code: int = 0) -> Failure | None:
    """Why nvidia-smi failed, from what it (or the shell that did not find it) printed; None: nothing says it did.

    Text that goes on to describe GPUs after an unreachable one is no failure: ``unreachable.py`` finds those.
    """
    said = [_said(line) for line in lines(text)]
    if Failure.GPU_LOST in said:
        return Failure.GPU_LOST if set(said) <= {Failure.GPU_LOST, Failure.NO_DEVICE} else None
    return next((failure for failure in said if failure is not None), _EXIT_CODES.get(exit_code))


def _said(line: Line) -> Failure | None:
    for pattern, failure in _SENTENCES:
        if re.match(pattern, line.text, re.IGNORECASE):
            return failure
    if init := _INIT.match(line.text):
        return _NVML_STRINGS.get(init[1].strip(" .").lower(), Failure.UNKNOWN)
    return None


_INIT = re.compile(r"Failed to initialize NVML:(.*)", re.IGNORECASE)
_NVML_STRINGS = {  # nvmlErrorString of the return code, in small letters
    "driver not loaded": Failure.NO_DRIVER,
    "driver/library version mismatch": Failure.VERSION_MISMATCH,
    "gpu access blocked by the operating system": Failure.BLOCKED,
    "gpu is lost": Failure.GPU_LOST,
    "insufficient permissions": Failure.NO_PERMISSION,
    "nvml shared library not found": Failure.NO_LIBRARY,
    "rm has detected an nvml/rm version mismatch": Failure.VERSION_MISMATCH,
    "the operating system has blocked the request": Failure.BLOCKED,
}

_SENTENCES = (
    (r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", Failure.NO_DRIVER),
    (r"NVIDIA-SMI has failed because you .{0,40}permission", Failure.NO_PERMISSION),
    (r"NVIDIA-SMI couldn't find libnvidia-ml", Failure.NO_LIBRARY),
    (r"No devices (?:were )?found", Failure.NO_DEVICE),
    (r"Unable to determine the device handle for gpu", Failure.GPU_LOST),
    (r"Reboot the system to recover this GPU", Failure.GPU_LOST),  # its second half, where a terminal wrapped it
    (r".{0,200}\bnvidia-smi:? (?:command )?not found", Failure.NO_COMMAND),  # bash, dash, busybox, zsh's reverse
    (r".{0,200}command not found: nvidia-smi", Failure.NO_COMMAND),
    (r".{0,200}executable file not found in \$PATH", Failure.NO_COMMAND),  # runc, containerd, kubectl exec
    (r".{0,200}nvidia-smi['\"]?: No such file or directory", Failure.NO_COMMAND),
)

_EXIT_CODES = {
    4: Failure.NO_PERMISSION,
    6: Failure.NO_DEVICE,
    9: Failure.NO_DRIVER,
    12: Failure.NO_LIBRARY,
    15: Failure.GPU_LOST,
    16: Failure.RESET_REQUIRED,
    17: Failure.BLOCKED,
    18: Failure.VERSION_MISMATCH,
    127: Failure.NO_COMMAND,  # the shell's
}
