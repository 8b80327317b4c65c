"""``nvidia-smi nvlink -s``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.smi.listing import GpuHeader
from agent.sources.smi.nvlink import (
    GpuLinkStatus,
    LinkStatus,
    parse_nvlink_status,
)

A = "GPU-11111111-2222-3333-4444-5555555555aa"
ONE = GpuHeader(0, "Tesla V100-SXM2-32GB", A)


def status(*said: str) -> str:
    return f"GPU 0: Tesla V100-SXM2-32GB (UUID: {A})\n" + "".join(
        f"\t Link {i}: {what}\n" for i, what in enumerate(said)
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param("25.781 GB/s", LinkStatus(0, active=True, mbps=25781), id="V100"),
        pytest.param("14.062 GB/s", LinkStatus(0, active=True, mbps=14062), id="A6000"),
        pytest.param("25 GB/s", LinkStatus(0, active=True, mbps=25000), id="a round rate"),
        pytest.param("53125 MB/s", LinkStatus(0, active=True, mbps=53125), id="megabytes"),
        pytest.param("<inactive>", LinkStatus(0, active=False), id="down"),
        pytest.param("inActive", LinkStatus(0, active=False), id="down, in other letters"),
        pytest.param("Unknown Error", LinkStatus(0, active=None, raw="Unknown Error"), id="neither"),
        pytest.param("", LinkStatus(0, active=None, raw=""), id="nothing"),
    ],
)
def test_a_link_is_up_at_a_rate_or_down_or_unknown(said: str, expected: LinkStatus) -> None:
    assert parse_nvlink_status(status(said)) == (GpuLinkStatus(ONE, (expected,)),)


def test_active_counts_the_links_known_to_be_up() -> None:
    (gpu,) = parse_nvlink_status(status("25 GB/s", "<inactive>", "25 GB/s", "25 GB/s", "Unknown Error"))

    assert gpu.active == 3


def test_inactive_links_of_a_gpu_are_summed_up_if_all_are() -> None:
    text = f"""\
$ nvidia-smi nvlink -s
GPU 0: NVIDIA RTX A6000 (UUID: {A})
\t Link 0: 14.062 GB/s
GPU 1: NVIDIA RTX A6000
NVML: Unable to retrieve NVLink information as all links are inActive
GPU 2: Tesla T4
"""

    assert parse_nvlink_status(text) == (
        GpuLinkStatus(GpuHeader(0, "NVIDIA RTX A6000", A), (LinkStatus(0, active=True, mbps=14062),)),
        GpuLinkStatus(GpuHeader(1, "NVIDIA RTX A6000", None), all_inactive=True),
        GpuLinkStatus(GpuHeader(2, "Tesla T4", None)),
    )


def test_a_machine_without_nvlink_ports_prints_nothing() -> None:
    assert parse_nvlink_status("") == ()


def test_an_unreachable_gpu_is_skipped() -> None:
    text = "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\n" + status("25 GB/s")

    assert [gpu.gpu.index for gpu in parse_nvlink_status(text)] == [0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("Link 0: 25 GB/s", "line 1: 'Link 0: 25 GB/s': not a line of `nvidia-smi nvlink`", id="no GPU"),
        pytest.param(status("25 GB/s") + "hello", "line 3: 'hello': not a line of `nvidia-smi nvlink`", id="other"),
        pytest.param(status("25 GB/s") * 2, "line 3: 'GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-1", id="two outputs"),
        pytest.param(
            status("25 GB/s") + "Link 0: 1 GB/s", "line 3: 'Link 0: 1 GB/s': link 0 of GPU 0 is listed twice", id="link"
        ),
        pytest.param(
            "Failed to initialize NVML: Unknown Error", "line 1: 'Failed to initialize NVML: Unknown", id="fail"
        ),
    ],
)
def test_an_error_quotes_the_line(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_nvlink_status(text)

    assert why in str(refusal.value)


PIECES = st.sampled_from(
    ["GPU 0: L4\n", "GPU 1: V100 (UUID: ...)\n", "Link 0:", "Link 17:", " 25 GB/s", " 9.9 mb/s", "<inactive>", "\n"]
)


@given(text=st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_links_or_a_parse_error(text: str) -> None:
    try:
        found = parse_nvlink_status(text)
    except ParseError:
        return

    assert len({gpu.gpu.index for gpu in found}) == len(found)
