"""Error messages of ``nvidia-smi``, mostly on standard output, and not always with an exit code.

The messages are not an API; these are those of drivers 340 to 610. The exit codes are: ``man nvidia-smi``, "RETURN
VALUE" (they are NVML's ``nvmlReturn_t`` numbers).
"""

from __future__ import annotations

import re

from agent.failures import Failure
from agent.sources.smi.lines import OutputLine, split_lines


def classify_failure(text: str, exit_code: int = 0) -> Failure | None:
    """Return why nvidia-smi failed, from its output or that of the shell; None: no sign of failure.

    Text that describes GPUs after an unreachable one is not a failure: ``unreachable.py`` parses those lines.
    """
    failures = [_failure_of_line(line) for line in split_lines(text)]
    if Failure.GPU_LOST in failures:
        return Failure.GPU_LOST if set(failures) <= {Failure.GPU_LOST, Failure.NO_DEVICE} else None
    return next((failure for failure in failures if failure is not None), _EXIT_CODES.get(exit_code))


def _failure_of_line(line: OutputLine) -> Failure | None:
    for pattern, failure in _SENTENCES:
        if re.match(pattern, line.text, re.IGNORECASE):
            return failure
    if init := _INIT.match(line.text):
        return _NVML_STRINGS.get(init[1].strip(" .").lower(), Failure.UNKNOWN)
    return None


_INIT = re.compile(r"Failed to initialize NVML:(.*)", re.IGNORECASE)
_NVML_STRINGS = {  # nvmlErrorString of the return code, in lower case
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
    (r"Reboot the system to recover this GPU", Failure.GPU_LOST),  # its second half, after a line break
    (r".{0,200}\bnvidia-smi:? (?:command )?not found", Failure.NO_COMMAND),  # bash, dash, busybox
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
