"""The advice for each failure."""

import pytest

from agent.failures import Failure, failure_from_nvml


@pytest.mark.parametrize("failure", list(Failure), ids=lambda failure: failure.value)
def test_every_failure_has_a_headline_and_advice(failure: Failure) -> None:
    assert failure.headline.strip(". ") == failure.headline
    assert 1 <= failure.advice.count(". ") + 1 <= 2
    assert failure.advice.endswith(".")


def test_no_two_failures_share_a_headline_or_an_advice() -> None:
    assert len({failure.headline for failure in Failure}) == len(Failure)
    assert len({failure.advice for failure in Failure}) == len(Failure)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param("nvmlInit_v2: DRIVER_NOT_LOADED", Failure.NO_DRIVER, id="as in a snapshot"),
        pytest.param("NVML_ERROR_LIB_RM_VERSION_MISMATCH", Failure.VERSION_MISMATCH, id="as nvml.h spells it"),
        pytest.param("LIBRARY_NOT_FOUND", Failure.NO_LIBRARY, id="no library"),
        pytest.param("NO_PERMISSION", Failure.NO_PERMISSION, id="no permission"),
        pytest.param("GPU_IS_LOST", Failure.GPU_LOST, id="lost"),
        pytest.param("RESET_REQUIRED", Failure.RESET_REQUIRED, id="reset"),
        pytest.param("OPERATING_SYSTEM", Failure.BLOCKED, id="blocked"),
        pytest.param("NOT_FOUND", Failure.NO_DEVICE, id="no device"),
        pytest.param("GPU_NOT_FOUND", Failure.NO_DEVICE, id="no such GPU"),
        pytest.param("UNKNOWN", Failure.UNKNOWN, id="unknown"),
        pytest.param("CORRUPTED_INFOROM", Failure.UNKNOWN, id="an error without a remedy of its own"),
        pytest.param("", Failure.UNKNOWN, id="nothing"),
    ],
)
def test_nvml_error_names_map_to_a_failure(error: str, expected: Failure) -> None:
    assert failure_from_nvml(error) is expected
