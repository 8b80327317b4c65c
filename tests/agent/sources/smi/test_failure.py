"""Error messages of nvidia-smi."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.failures import Failure
from agent.sources.smi.failure import classify_failure
from agent.sources.smi.lines import OutputLine, split_lines

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
LOST = (
    "Unable to determine the device handle for GPU 0000:66:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
LISTED = "GPU 0: NVIDIA L4 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(NO_DRIVER, Failure.NO_DRIVER, id="no driver"),
        pytest.param("$ nvidia-smi\n" + NO_DRIVER, Failure.NO_DRIVER, id="after the prompt"),
        pytest.param(
            "Failed to initialize NVML: Driver Not Loaded", Failure.NO_DRIVER, id="no driver, in NVML's words"
        ),
        pytest.param(
            "Failed to initialize NVML: Driver/library version mismatch", Failure.VERSION_MISMATCH, id="mismatch"
        ),
        pytest.param(
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n",
            Failure.VERSION_MISMATCH,
            id="mismatch, 535 and newer",
        ),
        pytest.param("Failed to initialize NVML: Insufficient Permissions", Failure.NO_PERMISSION, id="permissions"),
        pytest.param(
            "NVIDIA-SMI has failed because you do not have permission to talk to the driver",
            Failure.NO_PERMISSION,
            id="old",
        ),
        pytest.param("Failed to initialize NVML: Unknown Error", Failure.UNKNOWN, id="unknown"),
        pytest.param("Failed to initialize NVML: GPU is lost.", Failure.GPU_LOST, id="lost, in NVML's words"),
        pytest.param(
            "Failed to initialize NVML: RM has detected an NVML/RM version mismatch.",
            Failure.VERSION_MISMATCH,
            id="mismatch, in NVML's words",
        ),
        pytest.param(
            "Failed to initialize NVML: The operating system has blocked the request.", Failure.BLOCKED, id="blocked"
        ),
        pytest.param(
            "Failed to initialize NVML: NVML Shared Library Not Found",
            Failure.NO_LIBRARY,
            id="no library, NVML's words",
        ),
        pytest.param("Failed to initialize NVML: Something new", Failure.UNKNOWN, id="unknown words"),
        pytest.param(
            "Failed to initialize NVML: GPU access blocked by the operating system", Failure.BLOCKED, id="WSL"
        ),
        pytest.param("No devices were found\n", Failure.NO_DEVICE, id="no device"),
        pytest.param("No devices found.", Failure.NO_DEVICE, id="no device, -L"),
        pytest.param(
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure ...",
            Failure.NO_LIBRARY,
            id="no library",
        ),
        pytest.param("bash: nvidia-smi: command not found", Failure.NO_COMMAND, id="bash"),
        pytest.param("sh: 1: nvidia-smi: not found", Failure.NO_COMMAND, id="dash"),
        pytest.param("zsh: command not found: nvidia-smi", Failure.NO_COMMAND, id="zsh"),
        pytest.param(
            'exec: "nvidia-smi": executable file not found in $PATH: unknown',
            Failure.NO_COMMAND,
            id="container runtime",
        ),
        pytest.param("env: 'nvidia-smi': No such file or directory", Failure.NO_COMMAND, id="env"),
        pytest.param(LOST, Failure.GPU_LOST, id="the one GPU is lost"),
        pytest.param(LOST.replace("  Reboot", "\nReboot"), Failure.GPU_LOST, id="wrapped by a terminal"),
        pytest.param(LOST + "No devices were found\n", Failure.GPU_LOST, id="the only GPU of a machine"),
        pytest.param(LOST + LISTED, None, id="one lost, the others listed"),
        pytest.param(LISTED, None, id="a good answer"),
        pytest.param("<power_smoothing>Insufficient Permissions</power_smoothing>", None, id="a value, not a failure"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_failures_are_recognised_by_their_message(text: str, expected: Failure | None) -> None:
    assert classify_failure(text) is expected


@pytest.mark.parametrize(
    ("exit_code", "expected"),
    [
        (0, None),
        (2, None),
        (4, Failure.NO_PERMISSION),
        (6, Failure.NO_DEVICE),
        (9, Failure.NO_DRIVER),
        (12, Failure.NO_LIBRARY),
        (15, Failure.GPU_LOST),
        (16, Failure.RESET_REQUIRED),
        (17, Failure.BLOCKED),
        (18, Failure.VERSION_MISMATCH),
        (127, Failure.NO_COMMAND),
        (255, None),
    ],
)
def test_without_a_message_the_exit_code_is_used(exit_code: int, expected: Failure | None) -> None:
    assert classify_failure("in words that nobody knows yet", exit_code) is expected


def test_a_listing_with_one_lost_gpu_is_not_a_failure() -> None:
    assert classify_failure(LOST + LISTED, 15) is None


def test_the_message_has_precedence_over_the_exit_code() -> None:
    assert classify_failure(NO_DRIVER, 255) is Failure.NO_DRIVER


@given(st.text(), st.integers())
def test_any_text_is_classified(text: str, exit_code: int) -> None:
    assert classify_failure(text, exit_code) in {None, *Failure}


def test_lines_that_are_blank_are_left_out_and_the_others_keep_their_number() -> None:
    assert list(split_lines("\n a\t\n\n\tb")) == [OutputLine(2, "a", 1), OutputLine(4, "b", 1)]
